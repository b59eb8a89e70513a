<%doc>What sums of CSR rows begin with, in the group shape, where the first columns are stored whole:
    tile[r][lane] = sum_j x_rj u[j],  j < dense_columns, u vector ``lane`` of a block
for a team's SHARE rows, AT_ONCE of them at a time: consecutive items read consecutive numbers of a line, which meets so
many rows; a row's number is the same for all items.</%doc>
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
        at[r] = (size_t)max(ROW(r0 + r1 + r), 0) * dense_columns;  // (what is not there has no meaning)
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
