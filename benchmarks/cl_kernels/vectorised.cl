// Compute K[w][i] = exp(-gamma |x_i - u_w|^2) for right-hand rows u_w = x_rows[w], U at a time. A work-item has LANES
// neighbouring rows as a vector, so that no sum crosses lanes.
//   x_i[j] = X[j ld + i]    one load of LANES floats a column; u_w[j] is one float of the same column, for all lanes
//   K[w ld + i]             ld is a multiple of LANES; items beyond n compute the last vector again and store nothing
#ifndef LANES
#define LANES 4  // rows of a work-item (4, 8, 16)
#endif
#ifndef U
#define U 2  // right-hand rows that share one pass over the item's rows
#endif
#define floatl CAT(float, LANES)
#define loadl CAT(vload, LANES)
#define storel CAT(vstore, LANES)

kernel __attribute__((vec_type_hint(floatl))) void vectorised(
    const int n, const int d, const int W, global const int *restrict rows, const float gamma, const int ld,
    global const float *restrict X, global float *restrict K) {
  const size_t i = get_global_id(0) * LANES, from = min(i, (size_t)(ld - LANES));
  for (int w0 = 0; w0 < W; w0 += U) {
    int row[U];
    floatl sum[U];
#pragma unroll
    for (int u = 0; u < U; ++u) row[u] = rows[min(w0 + u, W - 1)], sum[u] = (floatl)0.0f;
    for (int j = 0; j < d; ++j) {
      global const float *restrict column = X + (size_t)j * ld;
      const floatl x = loadl(0, column + from);
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const floatl difference = x - column[row[u]];
        sum[u] = fma(difference, difference, sum[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (w0 + u < W && i < n) storel(exp(-gamma * sum[u]), 0, K + (size_t)(w0 + u) * ld + i);
  }
}
