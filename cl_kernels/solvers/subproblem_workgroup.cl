// Solve a dual problem over a working set ws of W rows by SMO iterations, with the coefficients of all other rows
// fixed:
//   minimise 1/2 * b^T Q b + c^T b + epsilon * sum |b|,   lo <= b <= hi,   sum b unchanged
//   b    the signed coefficients of the rows of ws, with bounds lo and hi
//   Q    the kernel values among these rows
//   c    c = f - Q b, which stays constant. f is the gradient without the term in epsilon.
// In:
//   ws           (problems, W), row numbers. -1 stands for no row.
//   Q            (problems, W, W), the kernel values among the rows of each working set
//   f            (problems, n), the gradient of the dual objective for all n rows, without the term in epsilon
//   lo, hi       (problems, n), the bounds of the coefficients of all n rows
//   epsilon      epsilon of epsilon-SVR, and 0 in other problems
// In and out:
//   b            (problems, n), the signed coefficients of all n rows
//   counters     counters[0] of each problem is the number of its iterations in all solves so far
// Out:
//   delta        (problems, W), the changes of the coefficients by this solve
// An SMO iteration adds a number t to one coefficient b_i, and subtracts it from another, b_j. It chooses i and j by
// second-order information (Fan, Chen, Lin 2005, WSS 2).
// The violation is the largest gradient of rows whose coefficient can fall, minus the smallest gradient of rows whose
// coefficient can rise. The solve ends when the violation is at most ``tolerance``, or at most ``shrink`` times its
// first value. It also ends after ``most`` iterations, or when counters[0] reaches ``budget``.
// Work-items: one work-group of WG items solves one problem p. Item l takes the rows l, l + WG, ... of the working set,
// and keeps their coefficients, bounds and gradients in registers. Consecutive items read consecutive addresses of a
// row of Q. An iteration reads row i of Q once, and keeps it in registers. The iteration uses row i to choose j, and
// then to update the gradients. Row j of Q is also read once, for the update. The next two paragraphs say what differs.
// SPLIT: rows with hi > 0 and rows with lo < 0 are two groups, and the sum of b over each group is fixed. Each group
// has its own candidate for row i, and its own violation. The larger violation counts. To choose j, the items read for
// each row k of the working set one kernel value: that of row k and the candidate of the group of k. The group of the
// chosen row j gives row i. The items then read all of row i and row j of Q, to update the gradients.
// NO_BIAS: the sum of b is free. The slope of row k is the absolute value of its gradient if the objective falls when
// b_k moves within its bounds, and otherwise 0. The violation is the largest slope. An iteration changes only one
// coefficient, that of the row with the largest gain slope^2 / Q_kk. The update of the gradients reads only this row
// of Q.
#ifndef EACH
#define EACH 1  // rows of the working set that an item owns
#endif
#define TAU 1e-12f  // smallest curvature of a pair (LIBSVM's)
#ifdef SPLIT
#define GROUPS 2
#define GROUP(lo) (int)wide_less(lo, wide_of(0))
#else
#define GROUPS 1
#define GROUP(lo) 0
#endif
#define OF(each, g) ((g) == 0 ? (each)[0] : (each)[GROUPS - 1])  // constant indices keep the array in registers

kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void subproblem(
    const int n, const int W, global const int *restrict ws, global const real *restrict Q,
    global const wide *restrict f, global wide *restrict b, global const wide *restrict lo,
    global const wide *restrict hi, global const wide *restrict epsilon, global wide *restrict delta, global long *restrict counters,
    const float tolerance, const float shrink, const int most, const long budget, local wide *restrict unused) {
  const int p = get_group_id(0), lid = get_local_id(0);
  const size_t base = (size_t)p * n;
  ws += (size_t)p * W, Q += (size_t)p * W * W, delta += (size_t)p * W, counters += (size_t)p * COUNTERS;
  local wide values[2 * ENTRIES_EACH];
  local real gains[2 * ENTRIES_EACH];
  local int indices[2 * ENTRIES_EACH];
#if GROUPS == 2
  local int group_of_j;
#endif
  local wide pair[4];  // largest rise of b_i, largest fall of b_j (with NO_BIAS of b_i), f_i, f_j
  local real entries[3];  // Q_ii, Q_jj, Q_ij
  const wide epsilon_term = epsilon[0];
  wide F[EACH], B[EACH], L[EACH], H[EACH];
  real diagonal[EACH];
  for (int e = 0; e < EACH; ++e) {
    const int k = e * WG + lid, i = k < W ? ws[k] : -1;
    F[e] = B[e] = L[e] = H[e] = wide_of(0);
    if (i >= 0) F[e] = f[base + i], B[e] = b[base + i], L[e] = lo[base + i], H[e] = hi[base + i];
    diagonal[e] = k < W ? Q[(size_t)k * W + k] : (real)0;
  }
  const long left = budget - counters[0];
  const int limit = left < most ? (int)max(left, 0L) : most;
  barrier(CLK_GLOBAL_MEM_FENCE);
  int i = 0, j = 0, steps = 0;
  wide t = wide_of(0);
  float stop = INFINITY;
#ifdef NO_BIAS
  for (;;) {
    real most_gap = 0, best = 0;  // minus the largest violation, and minus the largest gain
    int chosen = INT_MAX, ignored = INT_MAX;
    for (int e = 0; e < EACH; ++e) {
      const int k = e * WG + lid;
      if (k < W) {
        if (steps > 0) F[e] = wide_fma(t, wide_of(Q[(size_t)i * W + k]), F[e]);
        const real right = wide_real(right_of(F[e], B[e], epsilon_term)), left = wide_real(left_of(F[e], B[e], epsilon_term));
        const real gap = right < 0 && wide_less(B[e], H[e]) ? -right : left > 0 && wide_less(L[e], B[e]) ? left : (real)0;
        const real gain = -gap * gap / fmax(diagonal[e], (real)TAU);
        if (-gap < most_gap) most_gap = -gap, ignored = k;
        if (gain < best) best = gain, chosen = k;
      }
    }
    real_least_2(&most_gap, &ignored, &best, &chosen, gains, indices);
    const float violation = -(float)most_gap;
    if (steps == 0) stop = fmax(tolerance, shrink * violation);
    if (!(violation > stop) || chosen == INT_MAX || steps >= limit) break;
    i = chosen;
    for (int e = 0; e < EACH; ++e)
      if (e * WG + lid == i) {
        const wide right = right_of(F[e], B[e], epsilon_term);
        const bool rises = wide_less(right, wide_of(0)) && wide_less(B[e], H[e]);
        pair[0] = wide_sub(top_of(B[e], H[e]), B[e]), pair[1] = wide_sub(bottom_of(B[e], L[e]), B[e]);
        pair[2] = wide_pick(rises, right, left_of(F[e], B[e], epsilon_term));
        entries[0] = diagonal[e];
      }
    barrier(CLK_LOCAL_MEM_FENCE);
    const wide most_up = pair[0], least = pair[1];
    t = wide_neg(wide_div(pair[2], wide_max(wide_of(entries[0]), wide_of(TAU))));
    t = wide_min(wide_max(t, least), most_up);
    const bool full = !wide_less(t, most_up), empty = !wide_less(least, t);
    for (int e = 0; e < EACH; ++e)
      if (e * WG + lid == i) {
        const wide bottom = bottom_of(B[e], L[e]), top = top_of(B[e], H[e]);
        B[e] = wide_pick(empty, bottom, wide_pick(full, top, wide_add(B[e], t)));
      }
    ++steps;
  }
#else
  real Q_i[EACH], Q_j[EACH];  // rows i and j of Q of the last pair
  for (;;) {
    wide m[GROUPS], M[GROUPS];  // smallest f of rows that can rise, smallest -f of rows that can fall
    int first[GROUPS];
    float violation = -INFINITY;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      m[g] = M[g] = WIDE_MAX;
      int ignored = first[g] = INT_MAX;
      for (int e = 0; e < EACH; ++e) {
        const int k = e * WG + lid;
        if (k < W) {
          if (steps > 0 && g == 0) {
            const wide dq = wide_sub(wide_of(Q_i[e]), wide_of(Q_j[e]));
            F[e] = wide_fma(t, dq, F[e]);
          }
          const bool mine = GROUP(L[e]) == g;
          const wide a = wide_pick(mine && wide_less(B[e], H[e]), right_of(F[e], B[e], epsilon_term), WIDE_MAX);
          const wide c = wide_pick(mine && wide_less(L[e], B[e]), wide_neg(left_of(F[e], B[e], epsilon_term)), WIDE_MAX);
          if (wide_less(a, m[g])) m[g] = a, first[g] = k;
          if (wide_less(c, M[g])) M[g] = c, ignored = k;
        }
      }
      wide_least_2(&m[g], &first[g], &M[g], &ignored, values, indices);
#if GROUPS == 2
      barrier(CLK_LOCAL_MEM_FENCE);  // the next group's reduction writes to the memory that this one read
#endif
      if (first[g] < INT_MAX && ignored < INT_MAX) violation = fmax(violation, -(float)wide_real(wide_add(M[g], m[g])));
    }
    if (steps == 0) stop = fmax(tolerance, shrink * violation);
    if (!(violation > stop) || steps >= limit) break;

    real best = 0;  // minus the largest gain
    int partner = INT_MAX;
    for (int e = 0; e < EACH; ++e) {
      const int k = e * WG + lid, g = GROUP(L[e]), other = OF(first, g);
      if (k < W && other < INT_MAX) Q_i[e] = Q[(size_t)other * W + k];
      if (k < W && other < INT_MAX && wide_less(L[e], B[e])) {
        const real gap = wide_real(wide_sub(left_of(F[e], B[e], epsilon_term), OF(m, g)));
        const real of_first = Q[(size_t)other * W + other];
        const real curve = fmax(of_first + diagonal[e] - (real)2 * Q_i[e], (real)TAU);
        const real gain = gap > 0 ? -gap * gap / curve : (real)0;
        if (gain < best) best = gain, partner = k;
      }
    }
    real_least(&best, &partner, gains, indices);
    if (partner == INT_MAX) break;  // no row has a gain above 0, since all gains underflow
    j = partner;
#pragma unroll
    for (int e = 0; e < EACH; ++e)
      if (e * WG + lid < W) Q_j[e] = Q[(size_t)j * W + e * WG + lid];
#if GROUPS == 2
    for (int e = 0; e < EACH; ++e)
      if (e * WG + lid == j) group_of_j = GROUP(L[e]);
    barrier(CLK_LOCAL_MEM_FENCE);
    i = OF(first, group_of_j);
#pragma unroll
    for (int e = 0; e < EACH; ++e)
      if (e * WG + lid < W) Q_i[e] = Q[(size_t)i * W + e * WG + lid];
#else
    i = first[0];
#endif
    for (int e = 0; e < EACH; ++e) {
      const int k = e * WG + lid;
      if (k == i)
        pair[0] = wide_sub(top_of(B[e], H[e]), B[e]), pair[2] = right_of(F[e], B[e], epsilon_term), entries[0] = diagonal[e];
      if (k == j) {
        pair[1] = wide_sub(B[e], bottom_of(B[e], L[e])), pair[3] = left_of(F[e], B[e], epsilon_term);
        entries[1] = diagonal[e], entries[2] = Q_i[e];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const wide sum = wide_add(wide_of(entries[0]), wide_of(entries[1]));
    const wide cross = wide_of((real)2 * entries[2]);
    const wide curve = wide_max(wide_sub(sum, cross), wide_of(TAU));
    const wide slack_i = pair[0], slack_j = pair[1];
    t = wide_div(wide_sub(pair[3], pair[2]), curve);
    t = wide_min(t, wide_min(slack_i, slack_j));
    const bool full_i = !wide_less(t, slack_i), full_j = !wide_less(t, slack_j);
    for (int e = 0; e < EACH; ++e) {
      const int k = e * WG + lid;
      if (k == i) B[e] = wide_pick(full_i, top_of(B[e], H[e]), wide_add(B[e], t));
      if (k == j) B[e] = wide_pick(full_j, bottom_of(B[e], L[e]), wide_sub(B[e], t));
    }
    ++steps;
  }
#endif
  for (int e = 0; e < EACH; ++e) {
    const int k = e * WG + lid;
    if (k < W) {
      const int row = ws[k];
      delta[k] = row >= 0 ? wide_sub(B[e], b[base + row]) : wide_of(0);
      if (row >= 0) b[base + row] = B[e];
    }
  }
  if (lid == 0) counters[0] += steps;
}
