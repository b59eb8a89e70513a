<%include file="kernel_function.mako"/>
<%namespace name="lanes" file="chain_lanes_vector.mako"/>
// Rows of Q = K(ws, ws) made when the subproblem first asks for them: most are of rows that never change. Vector shape:
// the work-item that solves the problem makes them, from a panel of its rows that stays in its core's cache,
//   Q[i][k] = f(<u_k, u_i>, |u_k|^2, |u_i|^2), or f(s),   u_k[j] = panel[(k / V d + j) V + k % V]
// by the chain of operations of the gram kernels, so to the same bits: contiguous loads of V against one broadcast.
#define ROWS_PARAMETERS , global uchar *restrict made, global const real *restrict panel, global const real *restrict uu, \
    const int d KERNEL_PARAMETERS
#define ROWS_BEGIN made += (size_t)p * W, panel += (size_t)p * W * d, uu += (size_t)p * W;
#define ROWS_DIAGONAL make_diagonal(rows, W, panel, uu, d, diagonal KERNEL_ARGUMENTS);
#define ROW(i) \
  if (!made[i]) made[i] = 1, make_row(i, rows, W, panel, uu, d, Q + (size_t)(i) * W KERNEL_ARGUMENTS);
#define AT_A_TIME 4  // lane groups whose sums are in registers: their chains hide one another's latency
#define AHEAD 0

<%def name="values(at_a_time, other, norm, to)">\
  const int groups = W / V, length = d;
  for (int g = 0; g < groups; g += ${at_a_time}) {
    global const real *restrict x[${at_a_time}];
    realv sums[${at_a_time}][1];
#pragma unroll
    for (int a = 0; a < ${at_a_time}; ++a)
      x[a] = panel + (size_t)min(g + a, groups - 1) * V * d, sums[a][0] = (realv)(real)0;
${lanes.chain(at_a_time, "1", other)}
#pragma unroll
    for (int a = 0; a < ${at_a_time}; ++a) {
      const int at = min(g + a, groups - 1);
      storev(kernel_value(sums[a][0], loadv(at, uu), ${norm} KERNEL_ARGUMENTS), at, ${to});
    }
  }
  for (int k = rows; k < W; ++k) ${to}[k] = 0;  // (the function may have no value there)
</%def>\
// to[k] = Q[i][k]
inline void make_row(const int i, const int rows, const int W, global const real *restrict panel,
                     global const real *restrict uu, const int d, global real *restrict to KERNEL_PARAMETERS) {
  global const real *restrict ui = panel + (size_t)(i - i % V) * d + i % V;
${values("AT_A_TIME", "(realv)ui[(size_t)j * V]", "(realv)uu[i]", "to")}
}

// diagonal[k] = Q[k][k]
inline void make_diagonal(const int rows, const int W, global const real *restrict panel, global const real *restrict uu,
                          const int d, local real *restrict diagonal KERNEL_PARAMETERS) {
${values("1", "xj[0]", "loadv(at, uu)", "diagonal")}
}
