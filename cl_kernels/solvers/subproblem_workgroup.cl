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
// An SMO iteration changes up to PAIRS pairs of coefficients. For each pair a it adds a number t_a >= 0 to the
// coefficient of row i_a, and subtracts t_a from the coefficient of row j_a. No row is in two pairs. The first pair is
// chosen from the whole working set, by second-order information (Fan, Chen, Lin 2005, WSS 2). The rows are divided
// into PAIRS parts. Every part that does not have row i of the first pair adds a pair of rows of the part, chosen in the
// same way. A pair that shares a row with the first pair is left out. So is a pair whose gain is below LEAST_GAIN times
// the gain of the first pair.
// The numbers t_a minimise the objective approximately: item 0 first minimises it over the first pair alone, and then
// SWEEPS times over t_0, t_1, ... in turn. With one pair, t_0 is the exact minimum.
// The violation is the largest gradient of rows whose coefficient can fall, minus the smallest gradient of rows whose
// coefficient can rise. The solve ends when the violation is at most ``tolerance``, or at most ``shrink`` times its
// first value. It also ends after ``most`` iterations, or when counters[0] reaches ``budget``.
// Numbers of each row k of the solve, in the type of Q:
//   F      F = f + shift - (m + M) / 2. At the start of the solve, m is the smallest derivative of the objective by a
//          coefficient that can rise, and M the largest by one that can fall. shift is epsilon or -epsilon, whichever
//          makes F smaller. So F is near 0 for the rows that change, and has small rounding errors.
//   up     the derivative of the objective to the right of b_k is F + up + (m + M) / 2. If b_k cannot rise, up is
//          infinity.
//   low    the derivative of the objective to the left of b_k is F + low + (m + M) / 2. If b_k cannot fall, low is
//          -infinity.
// Work-items: one work-group of WG items solves one problem p. Item l takes the rows l, l + WG, ... of the working set,
// and keeps their coefficients, bounds and gradients in registers. Consecutive items read consecutive addresses of a
// row of Q. The rows of a part belong to items of whole sub-groups (least.cl). So the same reduction finds the choice of
// the working set and the choice of each part.
// SPLIT: rows with hi > 0 and rows with lo < 0 are two groups, and the sum of b over each group is fixed. Each group
// has its own candidate for row i, its own m and M, and its own violation. The larger violation counts. The group of the
// chosen row j gives row i. An iteration changes one pair.
// NO_BIAS: the sum of b is free, and F = f + shift. An iteration changes single coefficients, in place of pairs. The
// slope of row k is the absolute value of its gradient if the objective falls when b_k moves within its bounds, and
// otherwise 0. The violation is the largest slope. Each part chooses the row with the largest gain slope^2 / Q_kk. t_a
// may be negative.
#ifndef EACH
#define EACH 1  // rows of the working set that an item owns
#endif
#define SWEEPS (PAIRS > 1 ? 2 : 1)  // a third sweep saves few iterations
#define LEAST_GAIN NUMBER(0.01)
#define TAU 1e-12f  // smallest curvature of a pair (LIBSVM's)
#ifdef SPLIT
#define GROUPS 2
#define GROUP(lo) (int)wide_less(lo, wide_of(0))
#else
#define GROUPS 1
#define GROUP(lo) 0
#endif
#define OF(each, g) ((g) == 0 ? (each)[0] : (each)[GROUPS - 1])  // constant indices keep the array in registers
#define IN_SET(row) ((uint)(row) < (uint)W)  // false for -1 and INT_MAX, which stand for no row
#define UP(b, hi, shift) (wide_less(b, hi) ? wide_real(right_of(wide_of(-(shift)), b, epsilon_term)) : (real)INFINITY)
#define LOW(b, lo, shift) (wide_less(lo, b) ? wide_real(left_of(wide_of(-(shift)), b, epsilon_term)) : (real)-INFINITY)

// Hold the pairs of an iteration in local memory.
//   first      number of the pair that was chosen from the whole working set
//   i, j       rows of pair a: i[a] is -1 if there is no pair a, and j[a] is -1 without a bias
//   at_i, at_j derivatives of the objective by b_i when it moves as chosen, and by b_j when it falls
//   rise       largest number that can be added to b_i
//   fall       largest number that can be subtracted from b_j, or without a bias from b_i
//   t          number to add to b_i, and to subtract from b_j
//   step       t in the type of Q
//   b, lo, hi, shift, up, low   numbers of row i of pair a at index 2 a, and of row j at index 2 a + 1. In the end, b,
//              up and low are those after the iteration. Index 2 * PAIRS is for rows that are in no pair.
//   curve      curve[a * PAIRS + c] is the second derivative of the objective by t_a and t_c
//   inverse    1 / curve[a * PAIRS + a]
typedef struct {
  int first, i[PAIRS], j[PAIRS];
  wide rise[PAIRS], fall[PAIRS], t[PAIRS], b[2 * PAIRS + 1], lo[2 * PAIRS], hi[2 * PAIRS];
  real shift[2 * PAIRS], up[2 * PAIRS + 1], low[2 * PAIRS + 1], at_i[PAIRS], at_j[PAIRS], step[PAIRS], curve[PAIRS * PAIRS], inverse[PAIRS];
} Pairs;

// Return minus the gain of the pair (i, k), whose derivatives differ by ``gap``. The result is 0 if gap <= 0.
inline real gain_of(const real gap, global const real *Q, const int W, const int i, const int k, const real diagonal) {
  const real curve = fmax(Q[(size_t)i * W + i] + diagonal - 2 * Q[(size_t)i * W + k], (real)TAU);
  return gap > 0 ? -gap * gap / curve : (real)0;
}

// Compute ``curve`` and ``inverse`` of all pairs. Differences of values of Q are taken first. They are exact if rows i and
// j of pair a are nearly equal, so that small curvatures have small errors.
INLINED void find_curves(local Pairs *pairs, global const real *Q, const int W) {
  for (int at = get_local_id(0); at < PAIRS * PAIRS; at += WG) {
    const int a = at / PAIRS, c = at % PAIRS, i = pairs->i[a], j = pairs->j[a], u = pairs->i[c], v = pairs->j[c];
    real curve = i < 0 || u < 0 ? 0 : Q[(size_t)i * W + u];
    if (i >= 0 && u >= 0 && j >= 0)
      curve = (curve - Q[(size_t)j * W + u]) + (Q[(size_t)j * W + v] - Q[(size_t)i * W + v]);
    pairs->curve[at] = curve;
    if (a == c) pairs->inverse[a] = 1 / fmax(curve, (real)TAU);
  }
}

#ifdef NO_BIAS
#define LOWEST(pairs, a) wide_neg((pairs)->fall[a])
#define HIGHEST(pairs, a) (pairs)->rise[a]
#define SLOPE(pairs, a) -(pairs)->at_i[a]
#else
#define LOWEST(pairs, a) wide_of(0)
#define HIGHEST(pairs, a) wide_min((pairs)->rise[a], (pairs)->fall[a])
#define SLOPE(pairs, a) ((pairs)->at_j[a] - (pairs)->at_i[a])
#endif

// Find numbers t_a that minimise the objective approximately: first t_a of the first pair alone, then by SWEEPS sweeps
// over all pairs. So the objective falls at least as much as by the first pair alone. One work-item calls the function.
// A number that reaches its limit becomes exactly this limit. ``volatile`` keeps the compiler from loading all curves into
// registers in advance.
INLINED void sweep(local volatile Pairs *pairs) {
  real t[PAIRS], slope[PAIRS];
#pragma unroll
  for (int a = 0; a < PAIRS; ++a) t[a] = 0, slope[a] = SLOPE(pairs, a);
#if PAIRS > 1
  const int first = pairs->first;
  const real alone = fmin(fmax(SLOPE(pairs, first) * pairs->inverse[first], wide_real(LOWEST(pairs, first))),
                          wide_real(HIGHEST(pairs, first)));
#pragma unroll
  for (int c = 0; c < PAIRS; ++c) {
    t[c] = c == first ? alone : (real)0;
    slope[c] = fma(-alone, pairs->curve[first * PAIRS + c], slope[c]);
  }
#endif
#pragma unroll 1
  for (int count = 0; count < SWEEPS; ++count) {
#pragma unroll
    for (int a = 0; a < PAIRS; ++a) {
      if (pairs->i[a] < 0) continue;
      const real lowest = wide_real(LOWEST(pairs, a)), highest = wide_real(HIGHEST(pairs, a));
      const real moved = fmin(fmax(fma(slope[a], pairs->inverse[a], t[a]), lowest), highest) - t[a];
      t[a] += moved;
#pragma unroll
      for (int c = 0; c < PAIRS; ++c) slope[c] = fma(-moved, pairs->curve[a * PAIRS + c], slope[c]);
    }
  }
#pragma unroll
  for (int a = 0; a < PAIRS; ++a) {
    const wide lowest = LOWEST(pairs, a), highest = HIGHEST(pairs, a);
    const bool least = !(t[a] > wide_real(lowest)), most = !(t[a] < wide_real(highest));
    const wide inside = wide_min(wide_max(wide_of(t[a]), lowest), highest);
    // Limits that are equal as ``real`` may differ as ``wide``: the slope then says which one is reached.
    const wide found = wide_pick(most && (slope[a] > 0 || !least), highest, wide_pick(least, lowest, inside));
    pairs->t[a] = found, pairs->step[a] = wide_real(found);
  }
}

kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void subproblem(
    const int n, const int W, global const int *restrict ws, global const real *restrict Q,
    global const wide *restrict f, global wide *restrict b, global const wide *restrict lo,
    global const wide *restrict hi, global const wide *restrict epsilon, global wide *restrict delta, global long *restrict counters,
    const float tolerance, const float shrink, const int most, const long budget, local wide *restrict unused) {
  const int p = get_group_id(0), lid = get_local_id(0);
  const size_t base = (size_t)p * n;
  ws += (size_t)p * W, Q += (size_t)p * W * W, delta += (size_t)p * W, counters += (size_t)p * COUNTERS;
  local real gains[2 * ENTRIES_EACH];
  local int indices[2 * ENTRIES_EACH];
#ifndef NO_BIAS
  local real values[2 * ENTRIES_EACH];
#endif
#if GROUPS == 2
  local int group_of_j;
#endif
  local Pairs pairs;
  const wide epsilon_term = epsilon[0];
  wide B[EACH], L[EACH], H[EACH];
  real F[EACH], shift[EACH], up[EACH], low[EACH], diagonal[EACH];
  wide middle[GROUPS];
  for (int e = 0; e < EACH; ++e) {
    const int k = e * WG + lid, i = k < W ? ws[k] : -1;
    B[e] = L[e] = H[e] = wide_of(0), F[e] = 0;
    if (i >= 0) F[e] = wide_real(f[base + i]), B[e] = b[base + i], L[e] = lo[base + i], H[e] = hi[base + i];
    up[e] = UP(B[e], H[e], 0), low[e] = LOW(B[e], L[e], 0);
    diagonal[e] = k < W ? Q[(size_t)k * W + k] : (real)0;
  }
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) {
#ifdef NO_BIAS
    middle[g] = wide_of(0);
#else
    real m = INFINITY, M = INFINITY;  // M is the smallest -f of rows that can fall
    int ignored = INT_MAX, unused_too = INT_MAX;
    for (int e = 0; e < EACH; ++e)
      if (GROUP(L[e]) == g) m = fmin(m, F[e] + up[e]), M = fmin(M, -(F[e] + low[e]));
    real_least_2(&m, &ignored, &M, &unused_too, values, indices);
    middle[g] = wide_of(isfinite(m) && isfinite(M) ? (m - M) / 2 : (real)0);
    barrier(CLK_LOCAL_MEM_FENCE);  // the next reduction writes to the memory that this one read
#endif
  }
  const real term = wide_real(epsilon_term);
  for (int e = 0; e < EACH; ++e) {
    const int k = e * WG + lid, i = k < W ? ws[k] : -1;
    const wide above = wide_sub(i >= 0 ? f[base + i] : wide_of(0), OF(middle, GROUP(L[e])));
    shift[e] = wide_real(above) < 0 ? term : -term;
    F[e] = i >= 0 ? wide_real(wide_add(above, wide_of(shift[e]))) : (real)0;
    up[e] = UP(B[e], H[e], shift[e]), low[e] = LOW(B[e], L[e], shift[e]);
  }
  if (lid == 0) pairs.b[2 * PAIRS] = wide_of(0), pairs.up[2 * PAIRS] = pairs.low[2 * PAIRS] = 0;
  const long left = budget - counters[0];
  const int limit = left < most ? (int)max(left, 0L) : most;
  barrier(CLK_GLOBAL_MEM_FENCE);
  int steps = 0;
  float stop = INFINITY;
  for (;; ++steps) {
    if (steps > 0)
      for (int e = 0; e < EACH; ++e)
#pragma unroll
        for (int a = 0; a < PAIRS; ++a) {
          const int k = e * WG + lid, i = pairs.i[a], j = pairs.j[a];
          if (k < W && i >= 0) {
            const real q = Q[(size_t)i * W + k];
            F[e] = fma(pairs.step[a], j < 0 ? q : q - Q[(size_t)j * W + k], F[e]);
          }
        }
#ifdef NO_BIAS
    real most_gap = 0, best = 0;  // minus the largest violation, and minus the largest gain
    int ignored = INT_MAX, chosen = INT_MAX;
    for (int e = 0; e < EACH; ++e) {
      const int k = e * WG + lid;
      if (k < W) {
        const real right = F[e] + up[e], left = F[e] + low[e], gap = right < 0 ? -right : fmax(left, (real)0);
        const real gain = -gap * gap / fmax(diagonal[e], (real)TAU);
        if (-gap < most_gap) most_gap = -gap, ignored = k;
        if (gain < best) best = gain, chosen = k;
      }
    }
    real_least_2(&most_gap, &ignored, &best, &chosen, gains, indices);
    const float violation = -(float)most_gap;
    if (steps == 0) stop = fmax(tolerance, shrink * violation);
    if (!(violation > stop) || chosen == INT_MAX || steps >= limit) break;
    real gain;
    int i;
    real_least_in(lid % PAIRS, 1, &gain, &i, gains, indices);
    if (lid < PAIRS) {
      pairs.at_i[lid] = pairs.at_j[lid] = 0, pairs.rise[lid] = pairs.fall[lid] = wide_of(0);
      pairs.i[lid] = IN_SET(i) && !(gain > LEAST_GAIN * best) ? i : -1, pairs.j[lid] = -1;
      if (i == chosen) pairs.first = lid;
    }
#else
    real m[GROUPS], M[GROUPS];  // smallest F of rows that can rise, smallest -F of rows that can fall
    int first[GROUPS];
    float violation = -INFINITY;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      m[g] = M[g] = INFINITY;
      int ignored = first[g] = INT_MAX;
      for (int e = 0; e < EACH; ++e) {
        const int k = e * WG + lid;
        const bool mine = k < W && GROUP(L[e]) == g;
        if (mine && F[e] + up[e] < m[g]) m[g] = F[e] + up[e], first[g] = k;
        if (mine && -(F[e] + low[e]) < M[g]) M[g] = -(F[e] + low[e]), ignored = k;
      }
      real_least_2(&m[g], &first[g], &M[g], &ignored, values, indices);
#if GROUPS == 2
      barrier(CLK_LOCAL_MEM_FENCE);  // the next group's reduction writes to the memory that this one read
#endif
      if (first[g] < INT_MAX && ignored < INT_MAX) violation = fmax(violation, -(float)(M[g] + m[g]));
    }
    if (steps == 0) stop = fmax(tolerance, shrink * violation);
    if (!(violation > stop) || steps >= limit) break;

    real best = 0;  // minus the largest gain
    int partner = INT_MAX;
#if PAIRS > 1
    real own_m, least, own_best = 0;
    int own_first, own_partner = INT_MAX, i;
    real_least_in(MY_PART, 0, &own_m, &own_first, values, indices);
    real_least_in(lid % PAIRS, 0, &least, &i, values, indices);  // before the next reduction writes to ``indices``
#endif
    for (int e = 0; e < EACH; ++e) {
      const int k = e * WG + lid, g = GROUP(L[e]), other = OF(first, g);
      if (k < W && low[e] > -INFINITY) {
        const real at_k = F[e] + low[e];
        if (other < INT_MAX) {
          const real gain = gain_of(at_k - OF(m, g), Q, W, other, k, diagonal[e]);
          if (gain < best) best = gain, partner = k;
        }
#if PAIRS > 1
        if (IN_SET(own_first)) {
          const real gain = gain_of(at_k - own_m, Q, W, own_first, k, diagonal[e]);
          if (gain < own_best) own_best = gain, own_partner = k;
        }
#endif
      }
    }
#if PAIRS > 1
    real_least_2(&best, &partner, &own_best, &own_partner, gains, indices);
#else
    real_least(&best, &partner, gains, indices);
#endif
    if (partner == INT_MAX) break;  // no row has a gain above 0, since all gains underflow
#if GROUPS == 2
    for (int e = 0; e < EACH; ++e)
      if (e * WG + lid == partner) group_of_j = GROUP(L[e]);
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
#if PAIRS > 1
    real gain;
    int j;  // every item finds a pair, since PoCL 3.1 miscompiles calls in a branch
    real_least_in(lid % PAIRS, 1, &gain, &j, gains, indices);
    const bool apart = IN_SET(i) && IN_SET(j) && i != partner && j != partner && !(gain > LEAST_GAIN * best);
#endif
    if (lid < PAIRS) {
      pairs.at_i[lid] = pairs.at_j[lid] = 0, pairs.rise[lid] = pairs.fall[lid] = wide_of(0);
#if PAIRS > 1
      pairs.i[lid] = i == first[0] || apart ? i : -1, pairs.j[lid] = i == first[0] ? partner : j;
      if (i == first[0]) pairs.first = lid;
#elif GROUPS == 2
      pairs.i[0] = OF(first, group_of_j), pairs.j[0] = partner;
#else
      pairs.i[0] = first[0], pairs.j[0] = partner;
#endif
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    int side[EACH];  // 2 a if the item's row is row i of pair a, 2 a + 1 if it is row j, -1 if it is in no pair
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      side[e] = -1;
      for (int a = 0; a < PAIRS; ++a) {
        const int k = e * WG + lid;
        side[e] = k == pairs.i[a] ? 2 * a : pairs.i[a] >= 0 && k == pairs.j[a] ? 2 * a + 1 : side[e];
      }
      const int to = side[e], a = to / 2;
      if (to >= 0) {
        pairs.b[to] = B[e], pairs.lo[to] = L[e], pairs.hi[to] = H[e], pairs.shift[to] = shift[e];
        if (to % 2 == 0) {
          pairs.rise[a] = wide_sub(top_of(B[e], H[e]), B[e]), pairs.at_i[a] = F[e] + up[e];
#ifdef NO_BIAS
          // Where the derivative jumps, the coefficient moves only in the direction of its derivative.
          const bool rises = F[e] + up[e] < 0, jumps = low[e] < up[e];
          pairs.fall[a] = wide_pick(jumps && rises, wide_of(0), wide_sub(B[e], bottom_of(B[e], L[e])));
          if (!rises) pairs.at_i[a] = F[e] + low[e];
          if (jumps && !rises) pairs.rise[a] = wide_of(0);
#endif
        } else {
          pairs.fall[a] = wide_sub(B[e], bottom_of(B[e], L[e])), pairs.at_j[a] = F[e] + low[e];
        }
      }
    }
    find_curves(&pairs, Q, W);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lid == 0) sweep(&pairs);
    barrier(CLK_LOCAL_MEM_FENCE);
    // Few items compute in ``wide``, since GPUs may have few units for doubles. They take the numbers from local memory,
    // and all items select. Otherwise PoCL and Intel's compiler for CPUs lose private variables in the branch.
    if (lid < 2 * PAIRS && pairs.i[lid / 2] >= 0 && (lid % 2 == 0 || pairs.j[lid / 2] >= 0)) {
      const wide t = pairs.t[lid / 2], change = lid % 2 ? wide_neg(t) : t, old = pairs.b[lid];
      const wide lo = pairs.lo[lid], hi = pairs.hi[lid], top = top_of(old, hi), bottom = bottom_of(old, lo);
      const bool full = !wide_less(change, wide_sub(top, old)), empty = !wide_less(wide_sub(bottom, old), change);
      const wide moved = wide_pick(full, top, wide_pick(empty, bottom, wide_add(old, change)));
      pairs.b[lid] = moved;
      pairs.up[lid] = UP(moved, hi, pairs.shift[lid]), pairs.low[lid] = LOW(moved, lo, pairs.shift[lid]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const bool paired = side[e] >= 0;
      const int from = paired ? side[e] : 2 * PAIRS;
      B[e] = wide_pick(paired, pairs.b[from], B[e]);
      up[e] = paired ? pairs.up[from] : up[e], low[e] = paired ? pairs.low[from] : low[e];
    }
  }
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
