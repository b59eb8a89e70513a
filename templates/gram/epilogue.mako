<%doc>Parameters of what a gram kernel does with its values (see finish_*.mako). Row ``base`` is the first of the output.
STORE: K[slot[u]][row - base] is kept in the row cache, slab_rows rows of ld values in each of SLABS buffers; SUM: added to
what is there. In the vector shape, where K fills whole lines and no core's own cache holds it (PAST), values go past the
caches: their lines need not be read before they are written, which takes half the time of a store. Not where they are
read soon (NEAR).
UPDATE: c[p][row - base] += sum_u D[p][u] K[u][row]; D stands in rows of ``capacity`` values, wide numbers. SECTIONS: the
panel holds several sets of vectors, each with sums of its own; item s of the range's third dimension takes one of which
count[SECTIONS s] and the next two say how many there are, at which vector they begin, and which of the c is theirs.</%doc>
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
#define FAR (8 << 20)  // bytes of a store that no core's own cache holds
#define PAST (sizeof(realv) == 64 && (size_t)slab_rows * ld * SLABS * sizeof(real) > FAR && ld % V == 0 && to % V == 0 && (size_t)K0 % 64 == 0)
#define store_past(value, p) __builtin_nontemporal_store(value, (global realv *)(p))
#define FENCED __c11_atomic_thread_fence(__ATOMIC_SEQ_CST);  // (such stores are in no order with others)
#else
#define PAST false
#define store_past(value, p)
#define FENCED
#endif
