<%include file="kernel_function.mako"/>
<%namespace name="lanes" file="chain_lanes_simd.mako"/>
// Compute rows of the kernel matrix Q = K(ws, ws) of a working set ws, each when an SMO solver first needs the row. The
// working set has W rows u_k. With a kernel function f:
//   Q[i][k] = f(<u_k, u_i>, |u_k|^2, |u_i|^2)
// For an element-wise kernel function, Q[i][k] = f(sum_j e(u_k[j], u_i[j])), where e is a function of two values.
// In:
//   panel, d    the rows u_k of d features: u_k[j] = panel[((k / V) * d + j) * V + k % V], with integer division
//   uu          squared norms: uu[k] = |u_k|^2
// In and out:
//   made        made[i] is 1 if row i of Q has been computed
// Out:
//   Q           (W, W). The macro ROW(i) computes row i.
//   diagonal    (W,), the diagonal of Q. The macro ROWS_DIAGONAL computes it.
// A solve needs row i of Q if it changes coefficient i, or if the coefficient is not 0 at the start. If most of the
// coefficients stay 0, most rows of Q are never computed.
// Work-items: one work-item on a CPU solves the problem of the working set, and also computes the rows of Q. It
// multiplies V contiguous values by one broadcast value at a time, while ``panel`` stays in the core's cache.
// The gram kernels do the same operations in the same order, so their kernel values are bitwise equal.
#define ROWS_PARAMETERS , global uchar *restrict made, global const real *restrict panel, global const real *restrict uu, \
    const int d KERNEL_PARAMETERS
#define ROWS_BEGIN made += (size_t)p * W, panel += (size_t)p * W * d, uu += (size_t)p * W;
#define ROWS_DIAGONAL make_diagonal(rows, W, panel, uu, d, diagonal KERNEL_ARGUMENTS);
#define ROW(i) \
  if (!made[i]) made[i] = 1, make_row(i, rows, W, panel, uu, d, Q + (size_t)(i) * W KERNEL_ARGUMENTS);
#define AT_A_TIME 4  // lane groups in registers at a time; independent sums hide the latency of additions
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
  for (int k = rows; k < W; ++k) ${to}[k] = 0;  // padding, where the kernel function may have no value
</%def>\
// Write to ``to`` the kernel values of row i of a working set with all W rows k of the set: to[k] = Q[i][k]
OUTLINED void make_row(const int i, const int rows, const int W, global const real *restrict panel,
                       global const real *restrict uu, const int d, global real *restrict to KERNEL_PARAMETERS) {
  global const real *restrict ui = panel + (size_t)(i - i % V) * d + i % V;
${values("AT_A_TIME", "(realv)ui[(size_t)j * V]", "(realv)uu[i]", "to")}
}

// Write to ``diagonal`` the kernel value of each row k of a working set with itself: diagonal[k] = Q[k][k]
OUTLINED void make_diagonal(const int rows, const int W, global const real *restrict panel,
                            global const real *restrict uu, const int d, local real *restrict diagonal KERNEL_PARAMETERS) {
${values("1", "xj[0]", "loadv(at, uu)", "diagonal")}
}
