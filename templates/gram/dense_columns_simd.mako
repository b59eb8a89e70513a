<%doc>Start the sums of a product K(X, U) with the densely stored columns of CSR rows X, in a SIMD kernel:
  tile[v][r][lane] = sum_j x_r[j] * u[j],   over j < dense_columns, where u is right-hand row first + v * V + lane
The kernel takes the V rows of a lane group, AT_ONCE rows at a time. A line of the block has the UB values u[j] of a
feature j, and each line that is read serves AT_ONCE rows.
</%doc>
#ifdef DENSE_COLUMNS
#ifndef AT_ONCE
#define AT_ONCE 4  // a divisor of V
#endif
  for (int r0 = 0; r0 < V; r0 += AT_ONCE) {
    global const real *restrict x[AT_ONCE];
    realv sum[AT_ONCE][UB / V];
#pragma unroll
    for (int r = 0; r < AT_ONCE; ++r) {
#ifdef LISTED
      // row 0 stands in for a missing row, whose sums are unused
      x[r] = dense + (size_t)max(rows[row + r0 + r], 0) * dense_columns;
#else
      x[r] = dense + (row + r0 + r) * dense_columns;
#endif
#pragma unroll
      for (int v = 0; v < UB / V; ++v) sum[r][v] = (realv)(real)0;
    }
    for (int j = 0; j < dense_columns; ++j) {
      if (j % V == 0)  // prefetch one cache line of each of the next rows
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r) FETCH(x[r] + AT_ONCE * dense_columns + j);
      global const real *restrict line = block + (size_t)(1 + j) * UB;
#pragma unroll
      for (int v = 0; v < UB / V; ++v) {
        const realv y = loadv(v, line);
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r) sum[r][v] = ADD_TERM(sum[r][v], (realv)x[r][j], y);
      }
    }
#pragma unroll
    for (int r = 0; r < AT_ONCE; ++r)
#pragma unroll
      for (int v = 0; v < UB / V; ++v) storev(sum[r][v], 0, tile + (v * V + r0 + r) * V);
  }
#endif
