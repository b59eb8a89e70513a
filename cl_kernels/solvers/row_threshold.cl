// Find the changes d_p of one row's coefficients that minimise a multiclass SVM's dual objective, with all other rows
// fixed. The row has one coefficient b_p in each problem p. Its coefficients have the sum 0 over all problems
// (coupled.cl).
// f_p is the gradient by b_p, hi_p is the upper bound of b_p, and k is the kernel value of the row with itself:
//   minimise sum_p (1/2 * k * d_p^2 + f_p * d_p),   b_p + d_p <= hi_p,   sum_p d_p = 0
// The lower bounds lo_p <= b_p + d_p follow from these constraints.
// With s_p = hi_p - b_p - d_p and z_p = hi_p - b_p + f_p / k, the solution is s_p = max(0, z_p - t) for a threshold t.
// So the vector s is the projection of z on the simplex {s >= 0, sum s = sum (hi - b)} (Crammer and Singer 2002,
// section 5).
// The threshold t solves sum_p max(0, z_p - t) = sum_p (hi_p - b_p). It is found by iteration (Michelot 1986), which
// begins with all p in the set P:
//   t = (sum_{p in P} z_p - sum_p (hi_p - b_p)) / |P|,   next P = {p : z_p > t}
// Rounding: with a tiny k, f_p / k is so large that hi_p - b_p is rounded away. So f_p - max_p f_p replaces f_p. This
// changes all z_p and t by the same number, and leaves the solution unchanged.
// Work-items: each work-item that calls row_threshold computes the whole row by itself.
#define TAU 1e-12f  // smallest curvature of a row
#define SLACK(p) wide_sub(hi[(size_t)(p) * n + row], B[(size_t)(p) * W + i])                  // hi_p - b_p
#define RISE(p) wide_sub(wide_of(F[(size_t)(p) * W + i]), wide_of(F[(size_t)first * W + i]))  // f_p - max_p f_p
#define Z(p) wide_add(SLACK(p), wide_div(RISE(p), curve))                                     // z_p
#define SHARE(p) wide_mul(wide_max(wide_sub(Z(p), threshold), wide_of(0)), factor)  // s_p = hi_p - new b_p

// Return the threshold t from which the best new coefficients of row i in all problems p are computed:
//   new b_p = hi_p - max(0, z_p - t),   with z_p = hi_p - b_p + (f_p - g) / k
// b_p, hi_p and f_p are the row's old coefficient, upper bound and gradient in problem p. k = ``curve`` is the kernel
// value K_ii. g is the largest f_p. If g were not subtracted, a tiny k would make f_p / k so large that hi_p - b_p is
// rounded away. The new coefficients have the same sum over the problems as the old ones. So t solves
//   sum_p max(0, z_p - t) = sum_p (hi_p - b_p)
// in:  i, row    the row's place in a working set of W rows, and its number among all n rows
// in:  B, F      (problems, W), the old coefficients and gradients of the working set's rows
// in:  hi        (problems, n), the upper bounds of all rows
// out: *at       the problem p with the largest f_p
// out: *factor   sum_p (hi_p - b_p) / sum_p max(0, z_p - t), which is 1 up to rounding
// The caller sets the new coefficients to hi_p - factor * max(0, z_p - t), so that rounding does not change their sum.
// The macro SHARE(p) computes factor * max(0, z_p - t).
inline wide row_threshold(const int n, const int W, const int problems, const int row, const int i, const wide curve,
                          global const wide *B, global const wide *hi, global const real *F, int *at, wide *factor) {
  int first = 0;
  for (int p = 1; p < problems; ++p)
    if (F[(size_t)p * W + i] > F[(size_t)first * W + i]) first = p;
  *at = first;
  wide total = wide_of(0), sum = wide_of(0);
  for (int p = 0; p < problems; ++p) total = wide_add(total, SLACK(p)), sum = wide_add(sum, Z(p));
  int count = problems;
  wide threshold = wide_div(wide_sub(sum, total), wide_of(count));
  for (int round = 0; round < problems; ++round) {
    int left = 0;
    sum = wide_of(0);
    for (int p = 0; p < problems; ++p) {
      const wide z = Z(p);
      if (wide_less(threshold, z)) sum = wide_add(sum, z), ++left;
    }
    if (left == count || left == 0) break;
    count = left;
    threshold = wide_div(wide_sub(sum, total), wide_of(count));
  }
  sum = wide_of(0);
  for (int p = 0; p < problems; ++p) sum = wide_add(sum, wide_max(wide_sub(Z(p), threshold), wide_of(0)));
  const bool some = wide_less(wide_of(0), sum);
  *factor = wide_pick(some, wide_div(total, wide_pick(some, sum, wide_of(1))), wide_of(0));
  return threshold;
}
