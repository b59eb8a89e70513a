<%doc>Turn the sums k[g][m][s] = <x, y_u> of matrix units into values of K(X, U), for rows x of X and y_u of U. Then
store the values, or add their products with factors D to sums c (epilogue.mako).
x is row ROW_AT(g, s) of the work-group's rows. The row y_u has the number u = u0 + VECTOR_AT(m, s).
Values of rows u past the last row of U become 0, since the kernel function may be infinite there.
Several warps and items have terms of the same entry of c. These terms are added in local memory, for TOGETHER fragments
of rows at a time. A fragment is the part of a matrix that one instruction of the matrix units reads.
</%doc>
#define ROW_AT(g, s) (along * WARP_ROWS + (g) * FRAGMENT_ROWS + SUM_ROW(lane, s))
#define VECTOR_AT(m, s) (across * WARP_VECTORS + (m) * FRAGMENT_VECTORS + SUM_VECTOR(lane, s))
${unroll}
    for (int g = 0; g < X_FRAGMENTS; ++g)
${unroll}
      for (int m = 0; m < U_FRAGMENTS; ++m)
${unroll}
        for (int s = 0; s < SUMS; ++s) {
          const int u = u0 + VECTOR_AT(m, s);
          const real x2 = xx[row + min(ROW_AT(g, s), present * V - 1)], u2 = uu[min(u, total - 1)];
          k[g][m][s] = u < total ? kernel_value(k[g][m][s], x2, u2 KERNEL_ARGUMENTS) : 0.0f;
        }
#ifdef STORE
    for (int u = lid; u < COLUMNS; u += ITEMS) {
      const int s = u0 + u < total ? slot[u0 + u] : -1;
      to[u] = s < 0 ? (global real *)0 : STORED_ROW(s) + out;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
${unroll}
    for (int m = 0; m < U_FRAGMENTS; ++m)
${unroll}
      for (int s = 0; s < SUMS; s += RUN) {
        global real *row_u = to[VECTOR_AT(m, s)];
${unroll}
        for (int g = 0; g < X_FRAGMENTS; ++g)
          if (row_u && ROW_AT(g, s) < present * V) {
            global run *stored = (global run *)(row_u + ROW_AT(g, s));
            *stored = COMBINED(*stored, RUN_OF(k[g][m], s));
          }
      }
#endif
#ifdef UPDATE
#define EACH (ALONG * FRAGMENT_ROWS)  // rows that the fragments g of all ALONG warps have together
#define SHARED_LINE (TOGETHER * EACH + 4)
    local wide *partial = (local wide *)staged + (across * SHARING + SHARE(lane)) * SHARED_LINE + along * FRAGMENT_ROWS;
${unroll}
    for (int g0 = 0; g0 < X_FRAGMENTS; g0 += TOGETHER)
      for (int p = 0; p < problems; ++p) {
${unroll}
        for (int z = 0; z < TOGETHER; ++z)
${unroll}
          for (int one = 0; one < SUMS; ++one)  // one sum of each row, the one with right-hand row SUM_VECTOR(lane, 0)
            if (SUM_VECTOR(lane, one) == SUM_VECTOR(lane, 0)) {
              wide sum = wide_of(0);
${unroll}
              for (int m = 0; m < U_FRAGMENTS; ++m)
${unroll}
                for (int s = 0; s < SUMS; ++s)
                  if (SUM_ROW(lane, s) == SUM_ROW(lane, one)) {
                    const int u = u0 + VECTOR_AT(m, s);
                    sum = wide_fma(wide_of(k[g0 + z][m][s]), u < total ? D[(size_t)p * capacity + u] : wide_of(0), sum);
                  }
              partial[z * EACH + SUM_ROW(lane, one)] = sum;
            }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int one = lid; one < TOGETHER * EACH; one += ITEMS) {
          const int g = g0 + one / EACH, i = one % EACH / FRAGMENT_ROWS * WARP_ROWS + g * FRAGMENT_ROWS + one % FRAGMENT_ROWS;
          if (i < present * V) {
            global wide *sum_at = c + (size_t)p * n + out + i;
            wide sum = *sum_at;
            for (int z = 0; z < ITEMS / WARP / ALONG * SHARING; ++z)
              sum = wide_add(sum, ((local const wide *)staged)[z * SHARED_LINE + one]);
            *sum_at = sum;
          }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
      }
#endif
