<%doc>What sums of CSR rows begin with, in the group shape, where the first columns are stored whole:
    tile[r][lid] = sum_j x_rj u[j],  j < dense_columns, u vector ``lid`` of a block
for ROWS rows from r0 on, AT_ONCE of them at a time: consecutive items read consecutive numbers of a line, which meets so
many rows; a row's number is the same for all items.</%doc>
#ifdef DENSE_COLUMNS
#ifndef AT_ONCE
#define AT_ONCE 8  // a divisor of ROWS
#endif
#pragma unroll 1
    for (int r1 = 0; r1 < ROWS; r1 += AT_ONCE) {
      size_t at[AT_ONCE];
      real sum[AT_ONCE];
#pragma unroll
      for (int r = 0; r < AT_ONCE; ++r) {
#ifdef LISTED
        at[r] = (size_t)max(rows[row + r0 + r1 + r], 0) * dense_columns;  // (what is not there has no meaning)
#else
        at[r] = (row + r0 + r1 + r) * dense_columns;
#endif
        sum[r] = 0;
      }
      for (int j = 0; j < dense_columns; ++j) {
        const real y = block[(size_t)(1 + j) * UB];
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r) sum[r] = ADD_TERM(sum[r], dense[at[r] + j], y);
      }
#pragma unroll
      for (int r = 0; r < AT_ONCE; ++r) tile[(r1 + r) * (UB + 1) + lid] = sum[r];
    }
#endif
