// One row of coupled problems, solved exactly with the other rows fixed: with curvature k = K_ii and gradients f_p,
//   minimise 1/2 k |d|^2 + f'd,  b + d <= hi,  sum d = 0;   s = hi - b - d is the projection of z = hi - b + f / k on
//   the simplex {s >= 0, sum s = sum (hi - b)}, s_p = max(0, z_p - threshold)   (Crammer and Singer 2002, section 5)
// The lower bounds lo = -C follow from the others. The threshold: means over ever fewer entries (Michelot 1986).
// All z are less the largest f / k, and the difference is taken before the division: where the curvature is tiny f / k
// has no digits left for hi - b, and these differences are 0 or out of reach.
#define TAU 1e-12f  // smallest curvature of a row
#define SLACK(p) wide_sub(hi[(size_t)(p) * n + row], B[(size_t)(p) * W + i])
#define RISE(p) wide_sub(wide_of(F[(size_t)(p) * W + i]), wide_of(F[(size_t)first * W + i]))
#define Z(p) wide_add(SLACK(p), wide_div(RISE(p), curve))
#define SHARE(p) wide_mul(wide_max(wide_sub(Z(p), threshold), wide_of(0)), factor)  // s_p

// first: the problem of the largest gradient. factor: what makes the shares add up in spite of rounding
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
