// Solve one row i of coupled problems p (coupled.cl) exactly, with the other rows fixed.
// With the curvature k = K_ii, gradients f_p, coefficients b_p and their changes d_p:
//   minimise sum_p 1/2 * k * d_p^2 + f_p * d_p,   b_p + d_p <= hi_p,   sum_p d_p = 0
// The solution is s_p = hi_p - b_p - d_p = max(0, z_p - threshold) with z_p = hi_p - b_p + f_p / k.
// s is the projection of z on the simplex {s >= 0, sum s = sum (hi - b)} (Crammer and Singer 2002, section 5).
// The lower bounds lo = -C follow from the other constraints.
// The threshold is found by repeated means: each over the entries of z above the mean before it (Michelot 1986).
// Rounding: if the curvature is tiny, f / k is so large that hi - b would be rounded away. So gradients are taken
// relative to the largest gradient before the division by k.
// Work-items: each work-item that calls row_threshold computes the whole row by itself.
#define TAU 1e-12f  // smallest curvature of a row
#define SLACK(p) wide_sub(hi[(size_t)(p) * n + row], B[(size_t)(p) * W + i])
#define RISE(p) wide_sub(wide_of(F[(size_t)(p) * W + i]), wide_of(F[(size_t)first * W + i]))
#define Z(p) wide_add(SLACK(p), wide_div(RISE(p), curve))
#define SHARE(p) wide_mul(wide_max(wide_sub(Z(p), threshold), wide_of(0)), factor)  // s_p

// Return the threshold of row ``row``, which is place i of a working set of W rows. ``curve`` is the curvature k.
// B and F are the working set's coefficients and gradients (problems, W).
// Set *at to the problem with the largest gradient. Set *factor to the number by which SHARE multiplies each s_p, so
// that their sum is right in spite of rounding.
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
