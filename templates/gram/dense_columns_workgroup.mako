<%doc>Start the sums of a product K(X, U) with the densely stored columns of CSR rows X, in a work-group kernel:
  tile[r][lane] = sum_j x_r[j] * y_u[j],   over j < dense_columns
The row y_u is row ``lane`` of a block of UB rows of U.
A team of UB work-items takes SHARE rows x_r, AT_ONCE rows at a time. A line of the block has the UB values y_u[j] of a
feature j, and each line that is read serves AT_ONCE rows x_r.
Consecutive items read consecutive values of a line, and all items read the same value of a row x_r.
</%doc>
#ifdef DENSE_COLUMNS
#ifndef AT_ONCE
#define AT_ONCE (SHARE < 8 ? SHARE : 8)
#endif
#pragma unroll 1
    for (int r1 = team * SHARE; r1 < (team + 1) * SHARE; r1 += AT_ONCE) {
      size_t at[AT_ONCE];
      real sum[AT_ONCE];
#pragma unroll
      for (int r = 0; r < AT_ONCE; ++r) {
        // Read row 0 of X in place of a row that does not exist. Its sums are not used.
        at[r] = (size_t)max(ROW(r0 + r1 + r), 0) * dense_columns;
        sum[r] = 0;
      }
      for (int j = 0; j < dense_columns; ++j) {
        const real y = block[(size_t)(1 + j) * UB];
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r) sum[r] = ADD_TERM(sum[r], dense[at[r] + j], y);
      }
#pragma unroll
      for (int r = 0; r < AT_ONCE; ++r) tile[(r1 + r) * (UB + 1) + lane] = sum[r];
    }
#endif
