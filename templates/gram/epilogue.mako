<%doc>Define the parameters and macros by which a kernel for a product K(X, U) writes its values. K[u][row] is the value
of right-hand row u of U and row ``row`` of X. The files finish_*.mako use these macros. Row ``base`` of X has output
index 0.
STORE: the kernel writes K[u][row] to entry row - base of slot[u] in a store. With SUM, it adds K[u][row] to that entry.
The store has SLABS buffers of slab_rows slots, and a slot has ld values.
UPDATE: the kernel adds c[p][row - base] += sum_u D[p][u] * K[u][row] for each problem p.
c and D hold doubles, or pairs of floats. A row of D has ``capacity`` numbers, and a row of c has n.
SECTIONS: the panel, the buffer of U, holds several sections of right-hand rows, each with its own array c. Item s of
the launch's dimension 2 takes section s. Three numbers from count[SECTIONS * s] on are the section's number of
right-hand rows, its first right-hand row, and the number of its array c.
PAST: if the store is larger than the caches, SIMD kernels write whole cache lines around the caches, so that no cache
line is read before it is written. NEAR turns PAST off for values that are read soon.
</%doc>
#ifdef SUM
#define COMBINED(old, k) ((old) + (k))
#else
#define COMBINED(old, k) (k)
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
#if defined(STORE) && defined(SIMD) && !defined(SUM) && !defined(NEAR) && defined(__clang__) && !defined(NO_FETCH)
#define FAR (8 << 20)  // bytes; stores larger than this are taken to be larger than a core's own cache
#define PAST (sizeof(realv) == 64 && (size_t)slab_rows * ld * SLABS * sizeof(real) > FAR && ld % V == 0 && to % V == 0 && (size_t)K0 % 64 == 0)
#define store_past(value, p) __builtin_nontemporal_store(value, (global realv *)(p))
#define FENCED __c11_atomic_thread_fence(__ATOMIC_SEQ_CST);  // non-temporal stores are not ordered with others
#else
#define PAST false
#define store_past(value, p)
#define FENCED
#endif
