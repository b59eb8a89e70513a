// Compute the gradient f[p] of the dual objective for each of several small problems p with W rows:
//   f[p][i] = q[p][i] + sum_k b[p][k] * Q[p][k][i]
// In:
//   Q    (problems, W, W), the kernel matrix of each problem
//   b    (problems, W), the coefficients. Terms with b[p][k] = 0 are skipped.
//   q    (problems, W), the linear terms of the dual objectives
// Out:
//   f    (problems, W), the gradients
// Work-items: get_global_id(1) is the problem p. An item in SIMD style (on CPUs) computes VECTORS vectors of
// consecutive numbers f[p][i], in registers. An item in work-group style (on GPUs) computes one number f[p][i], and
// consecutive items read consecutive addresses.
#define VECTORS 4
kernel EXPLICIT void respond(const int W, global const real *restrict Q, global const wide *restrict b,
                    global const wide *restrict q, global wide *restrict f) {
  const size_t base = (size_t)get_global_id(1) * W;
  Q += base * W, b += base, q += base, f += base;
#ifdef SIMD
  const int first = get_global_id(0) * VECTORS, end = min(first + VECTORS, W / V);
  widev sum[VECTORS];
  for (int v = 0; v < VECTORS; ++v) sum[v] = first + v < end ? loadv(first + v, q) : (widev)0;
  for (int k = 0; k < W; ++k) {
    if (b[k] == 0) continue;
    for (int v = 0; v < VECTORS; ++v)
      if (first + v < end) sum[v] = fma(to_widev(loadv(first + v, Q + (size_t)k * W)), (widev)b[k], sum[v]);
  }
  for (int v = 0; v < VECTORS; ++v)
    if (first + v < end) storev(sum[v], first + v, f);
#else
  const int i = get_global_id(0);
  if (i >= W) return;
  wide sum = q[i];
  for (int k = 0; k < W; ++k) {
    const wide d = b[k];
    if (wide_less(d, wide_of(0)) || wide_less(wide_of(0), d)) sum = wide_fma(wide_of(Q[(size_t)k * W + i]), d, sum);
  }
  f[i] = sum;
#endif
}
