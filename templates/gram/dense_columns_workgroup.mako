<%doc>Start the sums of a product K(X, U) with the densely stored columns of CSR rows X, in a work-group kernel:
  tile[r][lane] = sum_j x_r[j] * u[j],   over j < dense_columns, where u is right-hand row ``lane`` of the block
A team of UB work-items takes SHARE rows, AT_ONCE rows at a time. A line of the block has the UB values u[j] of a
feature j, and each line that is read serves AT_ONCE rows.
Consecutive items read consecutive values of a line, and all items read the same value of a row.
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
        // row 0 stands in for a missing row, whose sums are unused
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
