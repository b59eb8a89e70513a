<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef UB
#define UB 64  // working vectors of a panel block, and work-items of a work-group
#endif
#ifndef INDEX
#define INDEX int  // type of a column number (ushort, int)
#endif
#ifndef ROWS
#define ROWS 32  // rows that stand in local memory at a time, a divisor of V and at most UB
#endif
// K[u][i] = f(<x_i, u>, |x_i|^2, |u|^2), or f(s), for rows in CSR and the working vectors u of a panel.
// One work-group of UB items: V rows, ROWS at a time and one after another, item u reading lane u of a panel line for
// every non-zero (consecutive items on consecutive addresses); the ROWS x UB products are turned in local memory so that items then
// own rows. The block is of the working vectors from ``first`` on (scatter.cl).
//   u[j] = block[max(place[j] - mark, 0) UB + u - first]
// Element-wise: s = sum e(x_j, u_j) over the entries of x + zero(u) - sum e(0, u_j) over the same; xx and uu hold
// zero sums (zero_sums.mako) in place of norms.
// DENSE_COLUMNS: the first columns are stored whole; a row's sums begin with them (dense_columns_group.mako).
// LISTED: row r is rows[r] (the W x W tile of the working set); else row r is r.
kernel __attribute__((reqd_work_group_size(UB, 1, 1))) void gram(
    const int group0, const int groups, const int base, global const long *restrict indptr,
    global const INDEX *restrict indices, global const real *restrict data, global const real *restrict dense,
    const int dense_columns, global const int *restrict rows,
    global const real *restrict xx, const int first, const int mark, global const int *restrict count, global const int *restrict place,
    global const real *restrict block, global const real *restrict uu STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  const size_t row = (size_t)(group0 + get_group_id(0)) * V, out = row - base;
  const int total = count[0];
  const int lid = get_local_id(0);
  local real tile[ROWS * (UB + 1)];
  const int u0 = first, here = min(UB, total - u0);
  block += lid;
#pragma unroll 1  // (unrolled, the ends of all rows fill the scalar registers)
  for (int r0 = 0; r0 < V && here > 0; r0 += ROWS) {
<%include file="dense_columns_group.mako"/>
#pragma unroll 1
    for (int r = 0; r < ROWS; ++r) {
#ifdef LISTED
      const int i = rows[row + r0 + r];
      const long begin = i >= 0 ? indptr[i] : 0, end = i >= 0 ? indptr[i + 1] : 0;
#else
      const long begin = indptr[row + r0 + r], end = indptr[row + r0 + r + 1];
#endif
#ifdef DENSE_COLUMNS
      real sum = tile[r * (UB + 1) + lid];
#else
      real sum = 0;
#endif
#ifdef ELEMENTWISE
      real seen = 0;
#endif
<%include file="chain_csr_group.mako"/>
#ifdef ELEMENTWISE
      sum += uu[u0 + lid] - seen;
#endif
      tile[r * (UB + 1) + lid] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int r = lid; r < ROWS; r += UB) {
#ifdef LISTED
      const int i = rows[row + r0 + r];
      const real x2 = i >= 0 ? xx[i] : (real)0;
#else
      const real x2 = xx[row + r0 + r];
#endif
<%include file="finish_csr_group.mako"/>
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
