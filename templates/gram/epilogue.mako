<%doc>Define the parameters and macros by which a gram kernel writes its values K(x, u). Files finish_*.mako use them.
Output index 0 belongs to row ``base`` of X.
STORE: write K[slot[u]][row - base] into a store of slab_rows rows of ld values in each of SLABS buffers. SUM adds to
the stored value instead.
UPDATE: add c[p][row - base] += sum_u D[p][u] K[u][row] for each problem p. c and D hold wide numbers; a row of D has
``capacity`` of them.
SECTIONS: the panel holds several sections of right-hand rows, each with its own c. Item s of the launch's third
dimension takes section s. count[SECTIONS s] and the next two numbers are the section's size, its first right-hand row,
and the number of its c.
PAST: SIMD kernels write whole cache lines around the caches if the store exceeds them, which halves the time: a line is
then not read before it is written. NEAR turns this off for values that are read soon.
</%doc>
#ifdef SUM
#define KEPT(there, k) ((there) + (k))
#else
#define KEPT(there, k) (k)
#endif
#ifdef STORE
#define STORE_PARAMETERS , SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict slot
#else
#define STORE_PARAMETERS
#endif
#ifdef SECTIONS
#define SECTION                                                                        \
  count += SECTIONS * get_global_id(2), panel += (size_t)count[1] * d, uu += count[1]; \
  D += count[1], c += (size_t)count[2] * problems * n;
#else
#define SECTION
#endif
#ifdef UPDATE
#define UPDATE_PARAMETERS , const int problems, const long n, global wide *restrict c, global const wide *restrict D, const int capacity
#else
#define UPDATE_PARAMETERS
#endif
#if defined(STORE) && defined(VECTOR) && !defined(SUM) && !defined(NEAR) && defined(__clang__) && !defined(NO_FETCH)
#define FAR (8 << 20)  // bytes of a store from which it exceeds a core's own cache
#define PAST (sizeof(realv) == 64 && (size_t)slab_rows * ld * SLABS * sizeof(real) > FAR && ld % V == 0 && to % V == 0 && (size_t)K0 % 64 == 0)
#define store_past(value, p) __builtin_nontemporal_store(value, (global realv *)(p))
#define FENCED __c11_atomic_thread_fence(__ATOMIC_SEQ_CST);  // non-temporal stores are not ordered with others
#else
#define PAST false
#define store_past(value, p)
#define FENCED
#endif
