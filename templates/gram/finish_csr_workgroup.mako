<%doc>Turn the sums tile[r][u] = <x_r, y_u> of a work-group kernel into values of K(X, U), for rows x_r of X and y_u
of U. Then store the values, or add their products with factors D to sums c (epilogue.mako).
x_r is row r0 + r of the V rows of the work-group. y_u is row u of a block of U, and only the rows u < valid exist.
An item takes one row x_r and the rows y_u with u = part, part + PARTS, ...
</%doc>
#ifdef UPDATE
    for (int p = 0; p < problems; ++p) {
      wide sum = wide_of(0);
#else
    {
      const int p = 0;
#endif
#pragma unroll 1
      for (int u = part; u < valid; u += PARTS) {
        if (p == 0) {
          const real k = kernel_value(tile[r * (UB + 1) + u], x2, uu[u0 + u] KERNEL_ARGUMENTS);
          tile[r * (UB + 1) + u] = k;
#ifdef STORE
          const int s = slot[u0 + u];
          STORED_ROW(s)[out + r0 + r] = k;
#endif
        }
#ifdef UPDATE
        sum = wide_fma(wide_of(tile[r * (UB + 1) + u]), D[(size_t)p * capacity + u0 + u], sum);
#endif
      }
#ifdef UPDATE
      partial[lid] = sum;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (part == 0) {
        global wide *sum_at = c + (size_t)p * n + out + r0 + r;
        for (int other = 1; other < PARTS; ++other) sum = wide_add(sum, partial[other * ROWS + r]);
        *sum_at = wide_add(*sum_at, sum);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
#endif
    }
