<%doc>Parameters of what a gram kernel does with its values (see finish_*.mako). Row ``base`` is the first of the output.
STORE: K[slot[u]][row - base] is kept in the row cache, slab_rows rows of ld values in each of SLABS buffers; SUM: added to
what is there.
UPDATE: c[p][row - base] += sum_u D[p][u] K[u][row]; D stands in rows of ``capacity`` values, wide numbers.</%doc>
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
#ifdef UPDATE
#define UPDATE_PARAMETERS , const int problems, const long n, global wide *restrict c, global const wide *restrict D, const int capacity
#else
#define UPDATE_PARAMETERS
#endif
