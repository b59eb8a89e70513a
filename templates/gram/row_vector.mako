<%include file="kernel_function.mako"/>
// Rows of Q = K(ws, ws) made when the subproblem first asks for them: most are of rows that never change. Vector shape:
// the work-item that solves the problem makes them, from a panel of its rows that stays in its core's cache,
//   Q[i][k] = f(<u_k, u_i>, |u_k|^2, |u_i|^2), or f(s),   u_k[j] = panel[(k / V d + j) V + k % V]
// by the chain of operations of the gram kernels, so to the same bits: contiguous loads of V against one broadcast.
#define ROWS_PARAMETERS , global uchar *restrict made, global const real *restrict panel, global const real *restrict uu, \
    const int d KERNEL_PARAMETERS
#define ROW(i) \
  if (!made[i]) made[i] = 1, make_row(i, rows, W, panel, uu, d, Q + (size_t)(i) * W KERNEL_ARGUMENTS);
#define AT_A_TIME 4  // lane groups whose sums are in registers: their chains hide one another's latency

inline void make_row(const int i, const int rows, const int W, global const real *restrict panel,
                     global const real *restrict uu, const int d, global real *restrict to KERNEL_PARAMETERS) {
  global const real *restrict ui = panel + (size_t)(i - i % V) * d + i % V;
  const int groups = W / V;
  for (int g = 0; g < groups; g += AT_A_TIME) {
    global const real *restrict x[AT_A_TIME];
    realv sum[AT_A_TIME];
#pragma unroll
    for (int a = 0; a < AT_A_TIME; ++a) x[a] = panel + (size_t)min(g + a, groups - 1) * V * d, sum[a] = (realv)(real)0;
    for (int j = 0; j < d; ++j) {
      const realv y = (realv)ui[(size_t)j * V];
#pragma unroll
      for (int a = 0; a < AT_A_TIME; ++a) sum[a] = ADD_TERM(sum[a], loadv(j, x[a]), y);
    }
#pragma unroll
    for (int a = 0; a < AT_A_TIME; ++a) {
      const int at = min(g + a, groups - 1);
      storev(kernel_value(sum[a], loadv(at, uu), (realv)uu[i] KERNEL_ARGUMENTS), at, to);
    }
  }
  for (int k = rows; k < W; ++k) to[k] = 0;  // (the function may have no value there)
}

// diagonal[k] = Q[k][k]
inline void make_diagonal(const int rows, const int W, global const real *restrict panel, global const real *restrict uu,
                          const int d, local real *restrict diagonal KERNEL_PARAMETERS) {
  for (int g = 0; g < W / V; ++g) {
    global const real *restrict x = panel + (size_t)g * V * d;
    realv sum = (realv)(real)0;
    for (int j = 0; j < d; ++j) sum = ADD_TERM(sum, loadv(j, x), loadv(j, x));
    storev(kernel_value(sum, loadv(g, uu), loadv(g, uu) KERNEL_ARGUMENTS), g, diagonal);
  }
  for (int k = rows; k < W; ++k) diagonal[k] = 0;
}
