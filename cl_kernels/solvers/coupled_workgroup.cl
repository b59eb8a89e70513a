// Solve the multiclass SVM of Crammer and Singer over a working set ws of W rows, with the coefficients of all other
// rows fixed. There is one problem p for each class, and a row has one coefficient in each problem. The coefficients of
// a row have the sum 0 over all problems (coupled.cl).
// In:
//   ws       (W,), row numbers among all n rows. -1 stands for no row.
//   Q        (W, W), the kernel values among the rows of ws
//   f, hi    (problems, n), the gradients and the upper bounds of the coefficients of all n rows
// In and out:
//   b           (problems, n), the coefficients of all n rows
//   counters    counters[0] is the number of iterations of all solves so far
// Out:
//   delta    (problems, W), the changes of the coefficients by this solve
// During the solve, four arrays describe the problems p and the rows k = 0 .. W - 1 of ws:
//   B[p][k]    the coefficient of row k in problem p
//   F[p][k]    the gradient of the coefficient B[p][k], minus a number that is the same in all problems of row k
//   U[p][k]    0 if the coefficient B[p][k] is below its upper bound, else infinity
//   D[p]       the change of B[p][j] in the previous iteration. Row j is the row that the previous iteration changed.
// ``state`` is the memory of F, U and D. ``delta`` is the memory of B until the end of the solve.
// Work-items: one work-group of WG items. Item l takes the rows l, l + WG, ... of the working set. Consecutive items
// read consecutive addresses.
// The violation of row k is M - m. A row with M - m <= 0 is optimal.
//   M    the largest F[p][k] among the problems p in which B[p][k] is above its lower bound
//   m    the smallest F[p][k] among the problems p in which B[p][k] is below its upper bound.
//        So m = min_p (F[p][k] + U[p][k]).
// An SMO iteration has three steps:
//   1. Update each F[p][k] for the previous iteration: add D[p] * Q[j][k]. Then compute top - m for each row k, where
//      top is the largest F[p][k] among all problems p.
//   2. Find the row i with the largest top - m.
//   3. Find the best coefficients of row i in all problems (row_threshold.cl).
// The iteration computes top in place of M, because top needs no lower bounds. Step 2 finds the row with the largest
// violation, because top - m = max(M - m, 0) for every row. Proof:
//   Let C be the penalty of row k. The lower bound of its coefficients is -C in each problem. The upper bound is C in
//   the problem of the row's class, and 0 in all other problems.
//   Case 1: the row has the coefficient -C in a problem r. The row's coefficients in all other problems are then at
//   their upper bounds, because the sum of all coefficients is 0. So m is F[r][k], and top is max(M, m).
//   Case 2: no coefficient of the row is at its lower bound. Then top is M, and M >= m.
// The solve ends when the largest violation is at most ``tolerance``, or at most ``shrink`` times the largest violation
// of the first iteration. The solve also ends after ``most`` iterations, or when the number of iterations of all solves
// reaches ``budget``.
kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void subproblem(
    const int n, const int problems, const int W, global const int *restrict ws, global real *restrict Q,
    global const wide *restrict f, global wide *restrict b, global const wide *restrict hi,
    global wide *restrict delta, global long *restrict counters, const float tolerance, const float shrink,
    const int most, const long budget, global real *restrict state) {
  const int lid = get_local_id(0);
  global real *F = state, *U = F + (size_t)problems * W, *D = U + (size_t)problems * W;
  global wide *B = delta;
  local real violations[ENTRIES_EACH];
  local int indices[ENTRIES_EACH];
  for (int k = lid; k < W; k += WG) {
    const int row = ws[k];
    wide lowest = WIDE_MAX, highest = wide_neg(WIDE_MAX);
    for (int p = 0; p < problems && row >= 0; ++p) {
      lowest = wide_min(lowest, f[(size_t)p * n + row]), highest = wide_max(highest, f[(size_t)p * n + row]);
    }
    const wide middle = wide_mul(wide_of((real)0.5), wide_add(lowest, highest));
    for (int p = 0; p < problems; ++p) {
      const size_t at = (size_t)p * n + max(row, 0), to = (size_t)p * W + k;
      B[to] = wide_pick(row >= 0, b[at], wide_of(0));
      F[to] = row >= 0 ? wide_real(wide_sub(f[at], middle)) : (real)0;
      U[to] = row >= 0 && wide_less(b[at], hi[at]) ? (real)0 : (real)INFINITY;
    }
  }
  const long left = budget - counters[0];
  const int limit = left < most ? (int)max(left, 0L) : most;
  barrier(CLK_GLOBAL_MEM_FENCE);
  int i = 0, steps = 0;
  float stop = INFINITY;
  for (;;) {
    real best = 0;  // minus the largest violation
    int chosen = INT_MAX;
    for (int k = lid; k < W; k += WG) {
      if (ws[k] < 0) continue;
      const real q = Q[(size_t)i * W + k];
      real m = INFINITY, M = -INFINITY;
      for (int p = 0; p < problems; ++p) {
        const size_t at = (size_t)p * W + k;
        real now = F[at];
        if (steps > 0) now = fma(q, D[p], now), F[at] = now;
        m = fmin(m, now + U[at]), M = fmax(M, now);
      }
      if (m - M < best) best = m - M, chosen = k;
    }
    barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
    real_least(&best, &chosen, violations, indices);
    if (steps == 0) stop = fmax(tolerance, shrink * -(float)best);
    if (!(-(float)best > stop) || chosen == INT_MAX || steps >= limit) break;
    i = chosen;
    const int row = ws[i];
    const wide curve = wide_max(wide_of(Q[(size_t)i * W + i]), wide_of(TAU));
    wide factor;
    int first;
    const wide threshold = row_threshold(n, W, problems, row, i, curve, B, hi, F, &first, &factor);
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (int p = lid; p < problems; p += WG) {
      const size_t at = (size_t)p * W + i;
      const wide s = SHARE(p), now = wide_sub(hi[(size_t)p * n + row], s);
      const bool rises = wide_less(wide_of(0), s);
      D[p] = wide_real(wide_sub(now, B[at]));
      B[at] = now;
      U[at] = rises ? (real)0 : (real)INFINITY;
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    ++steps;
  }
  barrier(CLK_GLOBAL_MEM_FENCE);
  for (int k = lid; k < W; k += WG) {
    const int row = ws[k];
    for (int p = 0; p < problems; ++p) {
      const size_t at = (size_t)p * n + row, to = (size_t)p * W + k;
      const wide now = B[to];
      if (row >= 0) delta[to] = wide_sub(now, b[at]), b[at] = now;  // where ws has no row, delta is B, which is 0
    }
  }
  if (lid == 0) counters[0] += steps;
}
