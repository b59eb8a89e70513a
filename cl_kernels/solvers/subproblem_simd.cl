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
// second-order information (Fan, Chen, Lin 2005, WSS 2). For row k, g_k is the derivative of the objective to the right
// of b_k, and h_k the derivative to the left. They differ only if b_k = 0 and epsilon > 0. An iteration has two passes
// over the W rows:
//   pass 1    updates the gradients for the previous iteration: it adds t * (Q_i - Q_j), with the rows Q_i and Q_j of
//             Q. Then it chooses the next i, the row with the smallest g_i among rows whose coefficient can rise.
//   pass 2    chooses the next j among the rows k whose coefficient can fall and that have h_k > g_i. j is the row k
//             with the largest gain (h_k - g_i)^2 / (Q_ii + Q_kk - 2 * Q_ik).
// The violation is M - m. m is the smallest g_k of rows whose coefficient can rise, and M the largest h_k of rows whose
// coefficient can fall. The solve ends when the violation is at most ``tolerance``, or at most ``shrink`` times its
// first value. It also ends after ``most`` iterations, or when counters[0] reaches ``budget``.
// Arrays of the solve, in the type of Q:
//   F      F = f + shift - (m + M) / 2, with m and M at the start of the solve. shift is epsilon or -epsilon, whichever
//          makes F smaller. So F is near 0 for the rows that change, and has small rounding errors.
//   up     g_k - f_k - shift, or infinity if coefficient k cannot rise
//   low    h_k - f_k - shift, or -infinity if coefficient k cannot fall
//   other  shift, but with SPLIT, where epsilon is 0, the row's group: -1 or 1
// Work-items (SIMD style, on CPUs): one for each of several independent problems p. It reads rows of Q in order, in
// vectors of DW values.
// SPLIT: rows with hi > 0 and rows with lo < 0 are two groups, and the sum of b over each group is fixed. Each group
// has its own row i, m and M. Both rows i and j of an iteration are of one group.
// NO_BIAS: the sum of b is free, and F = f + shift. The slope of row k is -g_k if g_k < 0 and b_k can rise, h_k if
// h_k > 0 and b_k can fall, and otherwise 0. The violation is the largest slope. An iteration changes only one
// coefficient, that of the row with the largest gain slope^2 / Q_kk.
// ROWS: the kernel computes a row of Q only when an iteration first needs it, or at the start if the row's coefficient
// is not 0 (templates/gram/row_simd.mako, cl_kernels/gram/row_stored.cl). ROWS cannot be combined with SPLIT.
#define TAU 1e-12  // smallest curvature of a pair (LIBSVM's)
#ifndef ROWS
#define ROWS_PARAMETERS
#define ROW(i)
#endif
#ifdef SPLIT
#define GROUPS 2
#define GROUP(k) (L[k] < 0)
#define SHIFT(k) 0.0
#else
#define GROUPS 1
#define GROUP(k) 0
#define SHIFT(k) (double)other[k]
#endif
#define UP(k) (B[k] < H[k] ? (real)right_of(-SHIFT(k), B[k], e) : (real)INFINITY)
#define LOW(k) (B[k] > L[k] ? (real)left_of(-SHIFT(k), B[k], e) : (real)-INFINITY)
// Move b_i up and b_j down by the step t that minimises the dual objective, within the bounds.
#define SMO_STEP \
    const double curve = fmax((double)diagonal[i] + (double)diagonal[j] - 2 * (double)Q[(size_t)i * W + j], TAU); \
    const double top = top_of(B[i], H[i]), bottom = bottom_of(B[j], L[j]), slack_i = top - B[i], slack_j = B[j] - bottom; \
    t = fmin(((double)F[j] + low[j] - ((double)F[i] + up[i])) / curve, fmin(slack_i, slack_j)); \
    B[i] = t == slack_i ? top : B[i] + t; \
    B[j] = t == slack_j ? bottom : B[j] - t; \
    up[i] = UP(i), low[i] = LOW(i); \
    up[j] = UP(j), low[j] = LOW(j); \
    ++steps;

kernel EXPLICIT void subproblem(const int n, const int W, global const int *restrict ws, global real *restrict Q,
                       global const wide *restrict f, global wide *restrict b, global const wide *restrict lo,
                       global const wide *restrict hi, global const wide *restrict epsilon, global wide *restrict delta,
                       global long *restrict counters,
                       const float tolerance, const float shrink, const int most, const long budget,
                       local wide *restrict memory ROWS_PARAMETERS) {
  const int p = get_global_id(0);
  const size_t base = (size_t)p * n;
  ws += (size_t)p * W, Q += (size_t)p * W * W, delta += (size_t)p * W, counters += (size_t)p * COUNTERS;
  local double *B = memory, *L = B + W, *H = L + W;
  local real *F = (local real *)(H + W), *up = F + W, *low = up + W, *diagonal = low + W, *other = diagonal + W;
  const double e = epsilon[0];
  double lowest[GROUPS], highest[GROUPS], middle[GROUPS];
  int rows = W;
  for (int g = 0; g < GROUPS; ++g) lowest[g] = INFINITY, highest[g] = -INFINITY;
#ifdef ROWS
  ROWS_BEGIN
  while (rows > 0 && ws[rows - 1] < 0) --rows;
  ROWS_DIAGONAL
#endif
  for (int k = 0; k < W; ++k) {
    const int i = ws[k];
#ifndef ROWS
    if (i < 0)  // Q may be NaN where ws has no row
      for (int z = 0; z < W; ++z) Q[(size_t)k * W + z] = Q[(size_t)z * W + k] = 0;
#endif
    const double fk = i >= 0 ? f[base + i] : 0;
    B[k] = i >= 0 ? b[base + i] : 0, L[k] = i >= 0 ? lo[base + i] : 0, H[k] = i >= 0 ? hi[base + i] : 0;
    delta[k] = B[k];
#ifdef ROWS
    if (B[k] != 0) {
      ROW(k)
    }
#endif
    const int g = GROUP(k);
    if (B[k] < H[k]) lowest[g] = fmin(lowest[g], right_of(fk, B[k], e));
    if (B[k] > L[k]) highest[g] = fmax(highest[g], left_of(fk, B[k], e));
  }
  for (int g = 0; g < GROUPS; ++g)
#ifdef NO_BIAS
    middle[g] = 0;  // without a bias violations are f and -f
#else
    middle[g] = isfinite(lowest[g]) && isfinite(highest[g]) ? (lowest[g] + highest[g]) / 2 : 0;
#endif
  for (int k = 0; k < W; ++k) {
    const int i = ws[k];
    const double above = (i >= 0 ? f[base + i] : 0) - middle[GROUP(k)];
#ifdef SPLIT
    other[k] = L[k] < 0 ? -1 : 1;
#else
    other[k] = (real)(above < 0 ? e : -e);
#endif
    F[k] = (real)(above + SHIFT(k));
    up[k] = UP(k);
    low[k] = LOW(k);
#ifndef ROWS
    diagonal[k] = Q[(size_t)k * W + k];
#endif
  }
  const long left = budget - counters[0];
  const int limit = left < most ? (int)max(left, 0L) : most;
  ivec lanes;
  for (int z = 0; z < DW; ++z) ((private INDEX_TYPE *)&lanes)[z] = z;
  int i = 0, j = 0, steps = 0;
  double t = 0;
  real stop = INFINITY;
#ifdef NO_BIAS
  for (;;) {
    ROW(i)
    global const real *restrict Qi = Q + (size_t)i * W;
    const rvec move = (rvec)(real)t;
    rvec M = 0, best = 0;
    ivec where = 0;
    for (int k = 0; k < W / DW; ++k) {
      const rvec now = fma(move, load(k, Qi), load(k, F));
      store(now, k, F);
      const rvec gap = max(max(now + load(k, low), -(now + load(k, up))), (rvec)(real)0);
      const rvec gain = gap * gap / max(load(k, diagonal), (rvec)(real)TAU);
      const ivec more = isgreater(gain, best);
      best = select(best, gain, more);
      where = select(where, (ivec)(k), more);
      M = max(M, gap);
    }
    real violation, largest;
    FOLD(REAL, max, M, violation)
    FOLD(REAL, max, best, largest)
    if (steps == 0) stop = fmax((real)tolerance, (real)shrink * violation);
    if (!(violation > stop) || !(largest > 0) || steps >= limit) break;
    i = first_index(best, largest, where, lanes);
    const double bottom = bottom_of(B[i], L[i]), top = top_of(B[i], H[i]), least = bottom - B[i], most_up = top - B[i];
    const double slope = F[i] + up[i] < 0 ? (double)F[i] + up[i] : (double)F[i] + low[i];
    t = fmin(fmax(-slope / fmax((double)diagonal[i], TAU), least), most_up);
    B[i] = t == least ? bottom : t == most_up ? top : B[i] + t;
    up[i] = UP(i), low[i] = LOW(i);
    ++steps;
  }
#elif defined(SPLIT)
  for (;;) {
    global const real *restrict Qi = Q + (size_t)i * W;
    global const real *restrict Qj = Q + (size_t)j * W;
    const rvec move = (rvec)(real)t;
    rvec m[2] = {INFINITY, INFINITY}, M[2] = {-INFINITY, -INFINITY};
    ivec at[2] = {0, 0};
    for (int k = 0; k < W / DW; ++k) {
      const rvec now = fma(move, load(k, Qi) - load(k, Qj), load(k, F));
      store(now, k, F);
      const ivec mine[2] = {isgreater(load(k, other), (rvec)(real)0), isless(load(k, other), (rvec)(real)0)};
      for (int g = 0; g < 2; ++g) {
        const rvec a = select((rvec)INFINITY, now + load(k, up), mine[g]);
        const ivec less = isless(a, m[g]);
        m[g] = select(m[g], a, less);
        at[g] = select(at[g], (ivec)(k), less);
        M[g] = max(M[g], select((rvec)-INFINITY, now + load(k, low), mine[g]));
      }
    }
    real least[2], most_low, violation = -INFINITY;
    int first[2];
    for (int g = 0; g < 2; ++g) {
      FOLD(REAL, min, m[g], least[g])
      FOLD(REAL, max, M[g], most_low)
      if (isfinite(least[g]) && isfinite(most_low)) violation = fmax(violation, most_low - least[g]);
      first[g] = isfinite(least[g]) ? first_index(m[g], least[g], at[g], lanes) : 0;
    }
    if (steps == 0) stop = fmax((real)tolerance, (real)shrink * violation);
    if (!(violation > stop) || steps >= limit) break;

    rvec best = 0;
    ivec where = 0;
    for (int k = 0; k < W / DW; ++k) {
      const ivec mine = isgreater(load(k, other), (rvec)(real)0);
      const rvec from = select((rvec)least[1], (rvec)least[0], mine);
      const rvec row = select(load(k, Q + (size_t)first[1] * W), load(k, Q + (size_t)first[0] * W), mine);
      const rvec of_first = select((rvec)diagonal[first[1]], (rvec)diagonal[first[0]], mine);
      const rvec gap = max(load(k, F) + load(k, low) - from, (rvec)(real)0);
      const rvec gain = gap * gap / max(of_first + load(k, diagonal) - (real)2 * row, (rvec)(real)TAU);
      const ivec more = isgreater(gain, best);
      best = select(best, gain, more);
      where = select(where, (ivec)(k), more);
    }
    real largest;
    FOLD(REAL, max, best, largest)
    if (!(largest > 0)) break;  // all gains underflow to 0
    j = first_index(best, largest, where, lanes), i = first[other[j] < 0];
    SMO_STEP
  }
#else
  for (;;) {
    ROW(j)
    global const real *restrict Qi = Q + (size_t)i * W;
    global const real *restrict Qj = Q + (size_t)j * W;
    const rvec move = (rvec)(real)t;
    rvec m = INFINITY, M = -INFINITY;
    ivec at = 0;
    for (int k = 0; k < W / DW; ++k) {
      const rvec now = fma(move, load(k, Qi) - load(k, Qj), load(k, F));
      store(now, k, F);
      const rvec a = now + load(k, up);
      const ivec less = isless(a, m);
      m = select(m, a, less);
      at = select(at, (ivec)(k), less);
      M = max(M, now + load(k, low));
    }
    real least, most_low;
    FOLD(REAL, min, m, least)
    FOLD(REAL, max, M, most_low)
    const real violation = most_low - least;
    if (steps == 0) stop = fmax((real)tolerance, (real)shrink * violation);
    if (!(violation > stop) || steps >= limit) break;
    i = first_index(m, least, at, lanes);
    ROW(i)
    Qi = Q + (size_t)i * W;

    const rvec Qii = (rvec)diagonal[i];
    rvec best = 0;
    ivec where = 0;
    for (int k = 0; k < W / DW; ++k) {
      const rvec gap = max(load(k, F) + load(k, low) - least, (rvec)(real)0);
      const rvec curve = max(Qii + load(k, diagonal) - (real)2 * load(k, Qi), (rvec)(real)TAU);
      const rvec gain = gap * gap / curve;
      const ivec more = isgreater(gain, best);
      best = select(best, gain, more);
      where = select(where, (ivec)(k), more);
    }
    real largest;
    FOLD(REAL, max, best, largest)
    if (!(largest > 0)) break;  // all gains underflow to 0
    j = first_index(best, largest, where, lanes);
    SMO_STEP
  }
#endif
  for (int k = 0; k < W; ++k) {
    delta[k] = B[k] - delta[k];
    if (ws[k] >= 0) b[base + ws[k]] = B[k];
  }
  counters[0] += steps;
}
