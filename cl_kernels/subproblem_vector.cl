// Solves the dual over the working set alone, with the rest fixed: sequential minimal optimisation with second-order
// choice of the pair (Fan, Chen, Lin 2005, WSS 2). Vector shape: one work-item solves one problem.
//   minimise 1/2 b'Qb + ..., lo <= b <= hi, sum b unchanged; f_k the gradient; Q = K(ws, ws), W x W, row-major
// A step is two passes over W in vectors of DW doubles: f += t (Q_i - Q_j) with the choice of i and the largest
// violation, then the choice of j by the gain (f_k - f_i)^2 / (Q_ii + Q_kk - 2 Q_ik). Rows of Q are read in order.
#define DW 8
typedef CAT(double, DW) dvec;
typedef CAT(REAL, DW) rvec;
typedef CAT(long, DW) lvec;
#ifdef REAL64
typedef lvec ivec;
#define to_ivec CAT(convert_long, DW)
#else
typedef CAT(int, DW) ivec;
#define to_ivec CAT(convert_int, DW)
#endif
#define load8 CAT(vload, DW)
#define store8 CAT(vstore, DW)
#define to_dvec CAT(convert_double, DW)
#ifdef REAL64
#define to_rvec CAT(convert_double, DW)
#else
#define to_rvec CAT(convert_float, DW)
#endif
#define to_lvec CAT(convert_long, DW)
#define TAU 1e-12  // smallest curvature of a pair (LIBSVM's)

kernel EXPLICIT void subproblem(const int n, const int W, global const int *restrict ws, global const real *restrict Q,
                       global const wide *restrict f, global wide *restrict b, global const wide *restrict lo,
                       global const wide *restrict hi, global wide *restrict delta, global long *restrict counters,
                       const float tolerance, const float shrink, const int most, const long budget,
                       local wide *restrict memory) {
  const int p = get_global_id(0);
  const size_t base = (size_t)p * n;
  ws += (size_t)p * W, Q += (size_t)p * W * W, delta += (size_t)p * W, counters += (size_t)p * COUNTERS;
  local double *F = memory, *up = F + W, *low = up + W, *B = low + W, *L = B + W, *H = L + W, *diagonal = H + W;
  for (int k = 0; k < W; ++k) {
    const int i = ws[k];
    F[k] = i >= 0 ? f[base + i] : 0;
    B[k] = i >= 0 ? b[base + i] : 0, L[k] = i >= 0 ? lo[base + i] : 0, H[k] = i >= 0 ? hi[base + i] : 0;
    delta[k] = B[k];
    up[k] = B[k] < H[k] ? 0 : INFINITY;
    low[k] = B[k] > L[k] ? 0 : -INFINITY;
    diagonal[k] = Q[(size_t)k * W + k];
  }
  const long left = budget - counters[0];
  const int limit = left < most ? (int)max(left, 0L) : most;
  lvec lanes;
  for (int z = 0; z < DW; ++z) ((private long *)&lanes)[z] = z;
  int i = 0, j = 0, steps = 0;
  double t = 0, stop = INFINITY;
  for (;;) {
    global const real *restrict Qi = Q + (size_t)i * W;
    global const real *restrict Qj = Q + (size_t)j * W;
    dvec m = INFINITY, M = -INFINITY;
    lvec at = 0;
    for (int k = 0; k < W / DW; ++k) {
      const dvec now = fma((dvec)t, to_dvec(load8(k, Qi)) - to_dvec(load8(k, Qj)), load8(k, F));
      store8(now, k, F);
      const dvec a = now + load8(k, up);
      const lvec less = isless(a, m);
      m = select(m, a, less);
      at = select(at, (lvec)(k), less);
      M = fmax(M, now + load8(k, low));
    }
    double least = INFINITY, most_low = -INFINITY;
    int chosen = 0;
    at = at * DW + lanes;
    for (int z = 0; z < DW; ++z) {
      const double mz = ((private double *)&m)[z], Mz = ((private double *)&M)[z];
      const int az = (int)((private long *)&at)[z];
      if (mz < least || (mz == least && az < chosen)) least = mz, chosen = az;
      most_low = fmax(most_low, Mz);
    }
    const double violation = most_low - least;
    if (steps == 0) stop = fmax((double)tolerance, (double)shrink * violation);
    if (!(violation > stop) || steps >= limit) break;
    i = chosen;
    Qi = Q + (size_t)i * W;

    const rvec Qii = (rvec)(real)diagonal[i];
    rvec best = 0;
    ivec where = 0;
    for (int k = 0; k < W / DW; ++k) {
      const rvec gap = to_rvec(load8(k, F) + load8(k, low) - least);
      const rvec curve = fmax(Qii + to_rvec(load8(k, diagonal)) - (real)2 * load8(k, Qi), (rvec)(real)TAU);
      const rvec positive = fmax(gap, (rvec)(real)0);
      const rvec gain = positive * positive / curve;
      const ivec more = isgreater(gain, best);
      best = select(best, gain, more);
      where = select(where, (ivec)(k), more);
    }
    real largest = 0;
    int partner = -1;
    const lvec places = to_lvec(where) * DW + lanes;
    for (int z = 0; z < DW; ++z) {
      const real bz = ((private real *)&best)[z];
      const int pz = (int)((private long *)&places)[z];
      if (bz > largest || (bz == largest && bz > 0 && pz < partner)) largest = bz, partner = pz;
    }
    if (partner < 0) break;  // gains below the smallest number
    j = partner;
    const double curve = fmax(diagonal[i] + diagonal[j] - 2 * (double)Qi[j], TAU);
    const double room_i = H[i] - B[i], room_j = B[j] - L[j];
    t = fmin((F[j] - F[i]) / curve, fmin(room_i, room_j));
    B[i] = t == room_i ? H[i] : B[i] + t;
    B[j] = t == room_j ? L[j] : B[j] - t;
    up[i] = B[i] < H[i] ? 0 : INFINITY, low[i] = B[i] > L[i] ? 0 : -INFINITY;
    up[j] = B[j] < H[j] ? 0 : INFINITY, low[j] = B[j] > L[j] ? 0 : -INFINITY;
    ++steps;
  }
  for (int k = 0; k < W; ++k) {
    delta[k] = B[k] - delta[k];
    if (ws[k] >= 0) b[base + ws[k]] = B[k];
  }
  counters[0] += steps;
}
