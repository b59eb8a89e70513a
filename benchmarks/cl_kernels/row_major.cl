// Compute K[w][i] = exp(-gamma |x_i - u_w|^2) for right-hand rows u_w = x_rows[w], U at a time, in the plainest way: a
// work-item has a row.
//   x_i[j] = X[i d + j]     consecutive items read addresses d apart; the right-hand rows are rows of X
//   K[w ld + i]
#ifndef U
#define U 2  // right-hand rows that share one pass over x_i
#endif

kernel void row_major(const int n, const int d, const int W, global const int *restrict rows, const float gamma,
                      const int ld, global const float *restrict X, global float *restrict K) {
  const size_t i = get_global_id(0);
  if (i >= n) return;
  global const float *restrict x = X + i * d;
  for (int w0 = 0; w0 < W; w0 += U) {
    size_t at[U];
    float sum[U];
#pragma unroll
    for (int u = 0; u < U; ++u) at[u] = (size_t)rows[min(w0 + u, W - 1)] * d, sum[u] = 0;
    for (int j = 0; j < d; ++j) {
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const float difference = x[j] - X[at[u] + j];
        sum[u] = fma(difference, difference, sum[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (w0 + u < W) K[(size_t)(w0 + u) * ld + i] = exp(-gamma * sum[u]);
  }
}
