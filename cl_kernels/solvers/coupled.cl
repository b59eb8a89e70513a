// Compute violations and sums for the multiclass SVM of Crammer and Singer. It has one problem p for each class, and
// each row's coefficients have the sum 0 over all problems.
// b[p][i] is the signed coefficient of row i in problem p, and lo[p][i] and hi[p][i] are its bounds. K is the kernel
// matrix. q[p] is a vector of linear terms. The dual problem is
//   minimise sum_p (1/2 * b[p]^T K b[p] + q[p]^T b[p]),   lo <= b <= hi,   sum_p b[p][i] = 0 for every row i
// The gradients are f[p] = K b[p] + q[p]. The violation of row i is v[i] = M[i] - m[i] (GTSVM, section 5.1):
//   M[i] = largest f[p][i] over all p with b[p][i] > lo[p][i]
//   m[i] = smallest f[p][i] over all p with b[p][i] < hi[p][i]
// Two kernels:
//   row_violations   computes view[i] = -v[i] for all n rows. The kernels in count.cl, which choose working sets,
//     expect a dual problem with one coefficient for each row. The host gives them a substitute problem: its gradients
//     are ``view``, its coefficients are all at their lower bounds, and it has no bias. A coefficient at its lower
//     bound can only rise, so its violation is minus its gradient: -view[i] = v[i].
//   coupled   computes three sums over the rows i of each chunk of consecutive rows. The host computes the primal and
//     the dual objective from the sums. y is the class of row i, which is the only problem p with hi[p][i] > 0.
//     sum_i sum_p b[p][i] * (f[p][i] - q[p][i])
//     sum_i sum_p b[p][i] * q[p][i]
//     sum_i hi[y][i] * (max_p f[p][i] - f[y][i])   (GTSVM, equation 3)
// Work-items: row_violations has one for each row, and coupled one work-group for each chunk of rows. Consecutive items
// read consecutive rows of each problem.
kernel void row_violations(const int n, const int problems, global const wide *restrict f, global const wide *restrict b,
                   global const wide *restrict lo, global const wide *restrict hi, global wide *restrict view) {
  const size_t i = get_global_id(0);
  if (i >= n) return;
  wide m = WIDE_MAX, M = WIDE_MAX;  // m is the smallest f, and M the smallest -f
  for (int p = 0; p < problems; ++p) {
    const size_t at = (size_t)p * n + i;
    m = wide_min(m, wide_pick(wide_less(b[at], hi[at]), f[at], WIDE_MAX));
    M = wide_min(M, wide_pick(wide_less(lo[at], b[at]), wide_neg(f[at]), WIDE_MAX));
  }
  const bool valid = wide_less(m, WIDE_MAX) && wide_less(M, WIDE_MAX);
  view[i] = wide_pick(valid, wide_add(m, M), wide_of(0));
}

kernel OF_GROUP void coupled(const int n, const int chunk, const int problems, global const wide *restrict f,
                    global const wide *restrict b, global const wide *restrict hi, global const wide *restrict q,
                    global wide *restrict sums) {
  const int piece = get_group_id(0);
  local wide values[SCAN];
  wide quadratic = wide_of(0), linear = wide_of(0), loss = wide_of(0);
  const int end = min(n, (piece + 1) * chunk);
  for (int i = piece * chunk + get_local_id(0); i < end; i += WG) {
    wide most = wide_neg(WIDE_MAX), target = wide_of(0), cap = wide_of(0);
    for (int p = 0; p < problems; ++p) {
      const size_t at = (size_t)p * n + i;
      const wide fi = f[at], bi = b[at];
      // Skip coefficients of 0. Rows of padding have such coefficients, and their gradients f may be NaN.
      const bool in = wide_less(bi, wide_of(0)) || wide_less(wide_of(0), bi);
      quadratic = wide_add(quadratic, wide_pick(in, wide_mul(bi, wide_sub(fi, q[at])), wide_of(0)));
      linear = wide_add(linear, wide_mul(bi, q[at]));
      most = wide_max(most, fi);
      const bool here = wide_less(wide_of(0), hi[at]);
      target = wide_pick(here, fi, target), cap = wide_pick(here, hi[at], cap);
    }
    const bool valid = wide_less(wide_of(0), cap);
    loss = wide_add(loss, wide_pick(valid, wide_mul(cap, wide_sub(most, target)), wide_of(0)));
  }
  quadratic = group_sum(quadratic, values), linear = group_sum(linear, values);
  loss = group_sum(loss, values);
  if (get_local_id(0) == 0) sums[3 * piece] = quadratic, sums[3 * piece + 1] = linear, sums[3 * piece + 2] = loss;
}
