// Find the changes d_p of one row's coefficients that minimise a multiclass SVM's dual objective, with all other rows
// fixed. Each class has one problem p, and the row has one coefficient b_p in each problem. Its coefficients have the
// sum 0 over all problems (coupled.cl). The changes are the solution of
//   minimise sum_p (1/2 * k * d_p^2 + f_p * d_p),   b_p + d_p <= hi_p,   sum_p d_p = 0
//   f_p     the gradient of the dual objective by b_p
//   hi_p    the upper bound of b_p
//   k       the kernel value of the row with itself
// The solution has a threshold t. With z_p = hi_p - b_p + f_p / k, the new coefficients are
//   b_p + d_p = hi_p - max(0, z_p - t)
// The numbers max(0, z_p - t) are the projection of z on a simplex (Crammer and Singer 2002, section 5). The condition
// sum_p d_p = 0 determines t:
//   sum_p max(0, z_p - t) = sum_p (hi_p - b_p)
// An iteration finds t (Michelot 1986). It begins with all problems in the set P, and ends when P stays the same:
//   t = (sum_{p in P} z_p - sum_p (hi_p - b_p)) / |P|,   next P = {p : z_p > t}
// Rounding: a tiny k makes f_p / k so large that hi_p - b_p is rounded away. So f_p - max_p f_p replaces f_p. This
// changes all z_p and t by the same number, and leaves the solution unchanged.
// Work-items: each work-item that calls row_threshold computes the whole row by itself.
#define TAU 1e-12f  // smallest curvature of a row
#define SLACK(p) wide_sub(hi[(size_t)(p) * n + row], B[(size_t)(p) * W + i])                  // hi_p - b_p
#define RISE(p) wide_sub(wide_of(F[(size_t)(p) * W + i]), wide_of(F[(size_t)first * W + i]))  // f_p - max_p f_p
#define Z(p) wide_add(SLACK(p), wide_div(RISE(p), curve))                                     // z_p
#define SHARE(p) wide_mul(wide_max(wide_sub(Z(p), threshold), wide_of(0)), factor)  // s_p = hi_p - new b_p

// Return the threshold t from which the caller computes the best new coefficients of one row, while the coefficients of
// all other rows stay fixed. Crammer and Singer's multiclass SVM has one problem p for each class. The row has one
// coefficient in each problem.
//   b_p, hi_p    the row's old coefficient in problem p, and its upper bound
//   f_p          the gradient of the dual objective by b_p
//   g            the largest f_p of all problems
//   k            the kernel value of the row with itself, but at least TAU = 1e-12
// The new coefficients are
//   new b_p = hi_p - max(0, z_p - t),   z_p = hi_p - b_p + (f_p - g) / k
// g is subtracted because f_p / k can be so large that hi_p - b_p is rounded away.
// The new coefficients have the same sum over the problems as the old coefficients. So t solves
//   sum_p max(0, z_p - t) = sum_p (hi_p - b_p)
// In:
//   problems     the number of problems
//   n, W         the number of all rows, and the number of rows of the working set
//   row, i       the number of the row among all n rows, and its place in the working set
//   curve        k
//   B, F         (problems, W), the coefficients b_p and the gradients f_p of the rows of the working set
//   hi           (problems, n), the upper bounds hi_p of all rows
// Out:
//   *at          the problem p with the largest f_p
//   *factor      sum_p (hi_p - b_p) / sum_p max(0, z_p - t), which is 1 up to rounding
// The caller sets new b_p to hi_p - factor * max(0, z_p - t), so that rounding does not change the sum of the new
// coefficients. The macro SHARE(p) computes factor * max(0, z_p - t).
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
