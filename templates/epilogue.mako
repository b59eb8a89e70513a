<%doc>Parameters of what a gram kernel does with its values (see finish_*.mako).
STORE: K[slot[u]][row] is kept in the row store, slab_rows rows of ld values in each of SLABS buffers.
UPDATE: c[p][row] += sum_u D[p][u] K[u][row]; D stands in rows of ``capacity`` values.</%doc>
#ifndef SLABS
#define SLABS 1  // buffers that the row store is spread over (1 or 8)
#endif
#if SLABS == 1
#define SLABS_GIVEN global real *K0
#define SLAB(s) K0
#else
#define SLABS_GIVEN global real *K0, global real *K1, global real *K2, global real *K3, global real *K4, global real *K5, global real *K6, global real *K7
#define SLAB(s) ((s) == 0 ? K0 : (s) == 1 ? K1 : (s) == 2 ? K2 : (s) == 3 ? K3 : (s) == 4 ? K4 : (s) == 5 ? K5 : (s) == 6 ? K6 : K7)
#endif
#define STORED_ROW(s) (SLAB((s) / slab_rows) + (size_t)((s) % slab_rows) * ld)
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
