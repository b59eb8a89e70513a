// Solve one row of coupled problems exactly, with the other rows fixed. With curvature k = K_ii and gradients f_p:
//   minimise 1/2 k |d|^2 + f'd,   b + d <= hi,   sum d = 0
// The solution is s = hi - b - d, the projection of z = hi - b + f / k on the simplex {s >= 0, sum s = sum (hi - b)}:
// s_p = max(0, z_p - threshold) (Crammer and Singer 2002, section 5). The lower bounds lo = -C follow from the others.
// The threshold is found by repeated means over the entries of z above the last mean (Michelot 1986).
// All z are computed relative to the largest f / k, and gradients are subtracted before the division. If the curvature
// is tiny, f / k is so large that hi - b would be rounded away; differences are then 0, or too large to matter.
// Work-items: each item that calls it computes the whole row by itself.
#define TAU 1e-12f  // smallest curvature of a row
#define SLACK(p) wide_sub(hi[(size_t)(p) * n + row], B[(size_t)(p) * W + i])
#define RISE(p) wide_sub(wide_of(F[(size_t)(p) * W + i]), wide_of(F[(size_t)first * W + i]))
#define Z(p) wide_add(SLACK(p), wide_div(RISE(p), curve))
#define SHARE(p) wide_mul(wide_max(wide_sub(Z(p), threshold), wide_of(0)), factor)  // s_p

// Return the threshold. Set at to the problem with the largest gradient, and factor to the number by which SHARE
// multiplies the shares, so that their sum is right in spite of rounding.
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
