<%doc>What sums of CSR rows begin with, in the vector shape, where the first columns are stored whole:
    tile[v][r][u] = sum_j x_rj u[j],  j < dense_columns, u the vectors first + v V .. of a block
for the V rows of a lane group, AT_ONCE of them at a time, so that each line of the block that is read meets so many.</%doc>
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
      x[r] = dense + (size_t)max(rows[row + r0 + r], 0) * dense_columns;  // (what is not there has no meaning)
#else
      x[r] = dense + (row + r0 + r) * dense_columns;
#endif
#pragma unroll
      for (int v = 0; v < UB / V; ++v) sum[r][v] = (realv)(real)0;
    }
    for (int j = 0; j < dense_columns; ++j) {
      if (j % V == 0)  // the rows after these, a line at a time: each is a stream of its own
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
