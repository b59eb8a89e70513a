<%doc>Start the sums of a product K(X, U) with the densely stored columns of CSR rows X, in a SIMD kernel:
  tile[v][r][lane] = sum_j x_r[j] * y_u[j],   over j < dense_columns,   with row u = first + v * V + lane of U
x_r are V rows of X, which the kernel takes AT_ONCE at a time. The rows y_u are stored as a block of lines. A line has
the UB values y_u[j] of a feature j, and each line that is read serves AT_ONCE rows x_r.
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
      // Read row 0 of X in place of a row that does not exist. Its sums are not used.
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
