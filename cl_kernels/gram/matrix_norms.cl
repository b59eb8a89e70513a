// Compute the squared norms |x_i|^2 = <x_i, x_i> of float32 rows by matrix units (tensor cores; mma.cl, mfma.cl).
// The inner product is computed by the same operations, in the same order, as in gram_matrix_workgroup.mako. So the
// squared distance |x|^2 + |x|^2 - 2 <x, x> of a row x from itself is exactly 0.
// X is stored in lane groups of V rows, whose values are interleaved. A row has d features j. Rows i are counted from
// the first row of lane group ``group0``.
// in:  values   the rows of X from lane group ``group0`` on. With the integer division i / V,
//                 x_i[j] = values[((i / V) * d + j) * V + i % V]
// out: xx       a number for each row of X, from lane group 0 on:   xx[group0 * V + i] = |x_i|^2
// Work-items: a work-group is one warp. It multiplies FRAGMENT_ROWS rows with one another, and writes the diagonal of
// the products.
kernel __attribute__((reqd_work_group_size(WARP, 1, 1))) void norms(
    const int d, global const float *restrict values, const int group0, global float *restrict xx) {
  const int lane = get_local_id(0);
  const size_t first = get_group_id(0) * FRAGMENT_ROWS;
  global const float *restrict x = values + first / V * d * V + first % V;
  EXCHANGE
  float sums[SUMS];
  for (int s = 0; s < SUMS; ++s) sums[s] = 0;
  for (int j0 = 0; j0 < d; j0 += FRAGMENT_FEATURES) {
    float u[U_VALUES], u_low[U_VALUES], high[X_VALUES], low[X_VALUES];
    for (int r = 0; r < U_VALUES; ++r) {
      const int j = j0 + U_FEATURE(lane, r);
      const float value = j < d ? x[(size_t)j * V + U_VECTOR(lane, r) % FRAGMENT_ROWS] : 0.0f;
      u[r] = high_of(value), u_low[r] = low_of(value, u[r]);
    }
    for (int r = 0; r < X_VALUES; ++r) {
      const int j = j0 + X_FEATURE(lane, r);
      const float value = j < d ? x[(size_t)j * V + X_ROW(lane, r)] : 0.0f;
      high[r] = high_of(value), low[r] = low_of(value, high[r]);
    }
    multiplied(sums, u, u_low, high, low EXCHANGING);
  }
  for (int s = 0; s < SUMS; ++s)
    if (SUM_ROW(lane, s) == SUM_VECTOR(lane, s)) xx[(size_t)group0 * V + first + SUM_ROW(lane, s)] = sums[s];
}
