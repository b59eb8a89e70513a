// Solve the multiclass SVM of Crammer and Singer over a working set ws of W rows, with the coefficients of all other
// rows fixed. Each class has one problem p, and each row has one coefficient in each problem. The sum of a row's
// coefficients over all problems is 0 (coupled.cl). Each SMO iteration takes the row with the largest violation, and
// finds the best coefficients of this row in all problems (row_threshold.cl).
// in:      ws      W row numbers. -1 stands for no row.
// in:      Q       (W, W), the kernel values among the rows of ws
// in:      f, hi   (problems, n), the gradients of all n rows, and the upper bounds of their coefficients
// in, out: b       (problems, n), the coefficients of all n rows. They change only at the end of the solve.
// in, out: counters   counters[0] is the number of iterations of all solves so far
// out:     delta   (problems, W), the changes of the coefficients by the solve
// scratch: state   memory for the arrays F, U and D below
// Arrays during the solve, for the rows k = 0 .. W - 1 of ws:
//   B[p][k]   the current coefficient of row k in problem p. B is in the buffer ``delta`` until the solve ends.
//   F[p][k]   the gradient of row k in problem p, minus a number that is the same in all problems. The number is the
//             mean of the row's smallest and largest gradient at the start. Subtracting it does not change violations.
//   U[p][k]   0 if B[p][k] is below its upper bound, else infinity
//   D[p]      the change of B[p][j] in the previous iteration. Row j is the row that the previous iteration changed.
// The violation of row k is M - m. M is the largest F[p][k] among the problems p in which B[p][k] is above its lower
// bound. m is the smallest F[p][k] among the problems p in which B[p][k] is below its upper bound. A row with
// M - m <= 0 is optimal.
// The kernel does not compute M. It computes top - m, which is equal to max(M - m, 0):
//   top = max_p F[p][k],   m = min_p (F[p][k] + U[p][k])
// Proof: let C be the penalty of row k. The lower bound of its coefficients is -C in each problem. The upper bound is C
// in the problem of the row's class, and 0 in all other problems. First case: no coefficient of row k is at its lower
// bound. Then top is M, and M >= m. Second case: row k has the coefficient -C in a problem r. The other coefficients of
// row k are then at their upper bounds, because the sum of all its coefficients is 0. So m is F[r][k], and top is
// max(M, m).
// Work-items: one, which computes with vectors of DW rows (fold.cl). Each iteration adds D[p] * Q[j][k] to
// F[p][k] for all problems p and rows k. It computes top - m for each row k in the same pass.
// The solve ends when the largest violation is at most ``tolerance``, or at most ``shrink`` times the largest violation
// at the start. It also ends after ``most`` iterations. During the solve, counters[0] is the number of iterations of
// all earlier solves. When counters[0] plus the iterations of this solve reach ``budget``, the solve ends too.
kernel EXPLICIT void subproblem(const int n, const int problems, const int W, global const int *restrict ws,
                       global real *restrict Q, global const wide *restrict f, global wide *restrict b,
                       global const wide *restrict hi, global wide *restrict delta, global long *restrict counters,
                       const float tolerance, const float shrink, const int most, const long budget,
                       global real *restrict state) {
  global real *restrict F = state, *restrict U = F + (size_t)problems * W, *restrict D = U + (size_t)problems * W;
  global wide *restrict B = delta;
  for (int k = 0; k < W; ++k) {
    const int row = ws[k];
    if (row < 0)  // set the tile to 0 where ws has no row, since it may be NaN there
      for (int z = 0; z < W; ++z) Q[(size_t)k * W + z] = Q[(size_t)z * W + k] = 0;
    double lowest = INFINITY, highest = -INFINITY;
    for (int p = 0; p < problems && row >= 0; ++p) {
      const double fp = f[(size_t)p * n + row];
      lowest = fmin(lowest, fp), highest = fmax(highest, fp);
    }
    for (int p = 0; p < problems; ++p) {
      const size_t at = (size_t)p * n + row, to = (size_t)p * W + k;
      B[to] = row >= 0 ? b[at] : 0;
      F[to] = row >= 0 ? (real)(f[at] - (lowest + highest) / 2) : 0;
      U[to] = row >= 0 && b[at] < hi[at] ? 0 : INFINITY;
    }
  }
  for (int p = 0; p < problems; ++p) D[p] = 0;
  const long left = budget - counters[0];
  const int limit = left < most ? (int)max(left, 0L) : most;
  ivec lanes;
  for (int z = 0; z < DW; ++z) ((private INDEX_TYPE *)&lanes)[z] = z;
  int i = 0, steps = 0;
  real stop = INFINITY;
  for (;;) {
    global const real *restrict Qi = Q + (size_t)i * W;
    rvec best = 0;
    ivec where = 0;
    for (int k = 0; k < W / DW; ++k) {
      const rvec q = load(k, Qi);
      rvec m = INFINITY, M = -INFINITY;
      for (int p = 0; p < problems; ++p) {
        const rvec now = fma(q, (rvec)D[p], load(k, F + (size_t)p * W));
        store(now, k, F + (size_t)p * W);
        m = min(m, now + load(k, U + (size_t)p * W));
        M = max(M, now);
      }
      const rvec violation = M - m;
      const ivec more = isgreater(violation, best);
      best = select(best, violation, more);
      where = select(where, (ivec)(k), more);
    }
    real violation;
    FOLD(REAL, max, best, violation)
    if (steps == 0) stop = fmax((real)tolerance, (real)shrink * violation);
    if (!(violation > stop) || steps >= limit) break;
    i = first_index(best, violation, where, lanes);
    const int row = ws[i];
    const wide curve = wide_max(wide_of(Q[(size_t)i * W + i]), wide_of(TAU));
    wide factor;
    int first;
    const wide threshold = row_threshold(n, W, problems, row, i, curve, B, hi, F, &first, &factor);
    for (int p = 0; p < problems; ++p) {
      const size_t at = (size_t)p * W + i;
      const wide bound = hi[(size_t)p * n + row], s = SHARE(p), now = bound - s;
      D[p] = (real)(now - B[at]);
      B[at] = now;
      U[at] = s > 0 ? 0 : INFINITY;
    }
    ++steps;
  }
  for (int k = 0; k < W; ++k) {
    const int row = ws[k];
    for (int p = 0; p < problems; ++p) {
      const size_t at = (size_t)p * n + row, to = (size_t)p * W + k;
      const wide now = B[to];
      delta[to] = row >= 0 ? now - b[at] : 0;
      if (row >= 0) b[at] = now;
    }
  }
  counters[0] += steps;
}
