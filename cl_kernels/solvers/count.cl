// The working set by exact counting; nothing of length n is sorted or leaves the device. After extremes.cl:
//   histogram  rows by side and by the logarithm of their violation (128 bins an octave)
//   threshold  for each side the bin at which its quota ends, and each chunk's place in the output
//   collect    rows of better bins, and in row order as many of the last bin as fit
// A quota of rows with the largest violations is taken from each side. Rows with in_set set (kept from the step before)
// and inert rows (lo = hi) never qualify. NO_BIAS: all rows stand on one side.
#ifndef BINS
#define BINS 2048  // bins a side, a multiple of WG
#endif

// Of what there is for each group, what holds for a row with this lower bound. (An index would need memory.)
#define MINE(e, lo) (GROUPS == 2 && wide_less(lo, wide_of(0)) ? (e)[GROUPS - 1] : (e)[0])

// side * BINS + bin of row i, or -1: bin 0 for the two extremes themselves, then by falling violation
inline int bin_of(const int i, const wide fi, const wide bi, const wide kink, const bool up, const bool low,
                  const Extremes e, const float scale) {
  const wide right = right_of(fi, bi, kink), left = left_of(fi, bi, kink);
#ifdef NO_BIAS
  const int side = 0;
  const float v = (float)wide_real(up && wide_less(right, wide_of(0)) ? wide_neg(right) : low ? left : wide_of(0));
#else
  const float vu = up ? (float)wide_real(wide_sub(e.M, right)) : -1.0f;
  const float vl = low ? (float)wide_real(wide_sub(left, e.m)) : -1.0f;
  const int side = vl > vu;
  const float v = side ? vl : vu;
#endif
  if (!(v > 0)) return -1;
  const uint depth = (as_uint(1.0f) - as_uint(fmin(v * scale, 1.0f))) >> 16;
  const int bin = i == e.im || i == e.iM ? 0 : 1 + (int)min(depth, (uint)(BINS - 2));
  return side * BINS + bin;
}

inline float violation_of(const Extremes e) {
#ifdef NO_BIAS
  const float violation = (float)wide_real(wide_max(e.M, wide_neg(e.m)));
#else
  const float violation = (float)wide_real(wide_sub(e.M, e.m));
#endif
  return isfinite(violation) ? violation : 0.0f;  // (no row on one of the sides)
}

// The extremes of problem p's groups; returns 1 / the largest violation, 0 where there is none.
inline float look(Extremes *e, const int p, const int pieces, global const wide *numbers, global const int *places) {
  const size_t from = (size_t)p * pieces * GROUPS;
  float violation = 0;
  for (int g = 0; g < GROUPS; ++g) {
    e[g] = combine(pieces, g, numbers + from * NUMBERS, places + from * PLACES);
    violation = fmax(violation, violation_of(e[g]));
  }
  return violation > 0 ? 1.0f / violation : 0.0f;
}

kernel EXPLICIT void histogram(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                      global const wide *restrict lo, global const wide *restrict hi, global const wide *restrict kink,
                      global const uchar *restrict in_set, global const wide *restrict numbers,
                      global const int *restrict places, global int *restrict counts) {
  const int p = get_global_id(1), piece = get_group_id(0), pieces = get_num_groups(0);
  const size_t base = (size_t)p * n;
  local int bins[2 * BINS];
  for (int k = get_local_id(0); k < 2 * BINS; k += WG) bins[k] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  Extremes e[GROUPS];
  const float scale = look(e, p, pieces, numbers, places);
  const int end = scale > 0 ? min(n, (piece + 1) * chunk) : 0;
  for (int i = piece * chunk + get_local_id(0); i < end; i += WG) {
    const wide bi = b[base + i];
    const bool fresh = !in_set[base + i];
    const bool up = fresh && wide_less(bi, hi[base + i]), low = fresh && wide_less(lo[base + i], bi);
    const int bin = bin_of(i, f[base + i], bi, kink[0], up, low, MINE(e, lo[base + i]), scale);
#if WG == 1
    if (bin >= 0) ++bins[bin];
#else
    if (bin >= 0) atomic_inc(&bins[bin]);
#endif
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  global int *to = counts + ((size_t)p * pieces + piece) * 2 * BINS;
  for (int k = get_local_id(0); k < 2 * BINS; k += WG) to[k] = bins[k];
}

// One work-group a problem. ends[p][side] = (last bin, how many of it); offsets[p][side][chunk] = where the chunk's
// better rows start within the side's share of the output, then where its rows of the last bin start (ties).
kernel EXPLICIT void threshold(const int pieces, const int quota, global const int *restrict counts, global int *restrict ends,
                      global int *restrict offsets) {
  const int p = get_group_id(0), lid = get_local_id(0);
  local int scratch[WG];
  local int found[2];
  global const int *all = counts + (size_t)p * pieces * 2 * BINS;
  for (int side = 0; side < 2; ++side) {
    if (lid == 0) found[0] = BINS, found[1] = 0;
    const int share = BINS / WG;
    int mine = 0;
    for (int k = lid * share; k < (lid + 1) * share; ++k)
      for (int c = 0; c < pieces; ++c) mine += all[(size_t)c * 2 * BINS + side * BINS + k];
    int total;
    int before = group_scan(mine, scratch, &total) - mine;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (before < quota && before + mine >= quota)  // the quota ends among this item's bins
      for (int k = lid * share; k < (lid + 1) * share; ++k) {
        int here = 0;
        for (int c = 0; c < pieces; ++c) here += all[(size_t)c * 2 * BINS + side * BINS + k];
        if (before + here >= quota) {
          found[0] = k, found[1] = quota - before;
          break;
        }
        before += here;
      }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int last = found[0], ties = found[1];
    global int *to = offsets + ((size_t)p * 2 + side) * 2 * pieces;
    int better_sum = 0, tie_sum = 0;
    for (int c0 = 0; c0 < pieces; c0 += WG) {
      const int c = c0 + lid;
      int better = 0, tie = 0;
      if (c < pieces) {
        global const int *bins = all + (size_t)c * 2 * BINS + side * BINS;
        for (int k = 0; k < last; ++k) better += bins[k];
        tie = last < BINS ? bins[last] : 0;
      }
      int better_total, tie_total;
      const int better_before = group_scan(better, scratch, &better_total) - better;
      const int tie_before = group_scan(tie, scratch, &tie_total) - tie;
      if (c < pieces) to[c] = better_sum + better_before, to[pieces + c] = tie_sum + tie_before;
      better_sum += better_total, tie_sum += tie_total;
    }
    if (lid == 0) {
      global int *end = ends + ((size_t)p * 2 + side) * 2;
      end[0] = last, end[1] = ties;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

// ws[p][stay + side quota ...] = the chosen rows; the last bin's ties come after the better rows
kernel EXPLICIT void collect(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                    global const wide *restrict lo, global const wide *restrict hi,
                    global const wide *restrict kink, global uchar *restrict in_set,
                    global const wide *restrict numbers, global const int *restrict places,
                    global const int *restrict ends, global const int *restrict offsets, const int quota,
                    const int stay, const int W, global int *restrict ws) {
  const int p = get_global_id(1), piece = get_group_id(0), pieces = get_num_groups(0), lid = get_local_id(0);
  const size_t base = (size_t)p * n;
  local int scratch[WG];
  Extremes e[GROUPS];
  const float scale = look(e, p, pieces, numbers, places);
  int better_at[2], tie_at[2], last[2], ties[2];
  for (int side = 0; side < 2; ++side) {
    global const int *from = offsets + ((size_t)p * 2 + side) * 2 * pieces;
    global const int *end = ends + ((size_t)p * 2 + side) * 2;
    better_at[side] = from[piece], tie_at[side] = from[pieces + piece];
    last[side] = end[0], ties[side] = end[1];
  }
  const int begin = piece * chunk, end = scale > 0 ? min(n, begin + chunk) : 0;
  for (int i0 = begin; i0 < end; i0 += WG) {
    const int i = i0 + lid;
    int bin = -1;
    if (i < end && !in_set[base + i]) {
      const wide bi = b[base + i];
      const bool up = wide_less(bi, hi[base + i]), low = wide_less(lo[base + i], bi);
      bin = bin_of(i, f[base + i], bi, kink[0], up, low, MINE(e, lo[base + i]), scale);
    }
    for (int side = 0; side < 2; ++side) {
      const bool mine = bin >= side * BINS && bin < (side + 1) * BINS;
      const bool better = mine && bin - side * BINS < last[side], tie = mine && bin - side * BINS == last[side];
      int better_total, tie_total;
      const int better_rank = better_at[side] + group_scan(better, scratch, &better_total) - 1;
      const int tie_rank = tie_at[side] + group_scan(tie, scratch, &tie_total) - 1;
      int to = -1;
      if (better) to = better_rank;
      if (tie && tie_rank < ties[side]) to = quota - ties[side] + tie_rank;
      if (to >= 0) {
        ws[(size_t)p * W + stay + side * quota + to] = i;
        in_set[base + i] = 1;
      }
      better_at[side] += better_total, tie_at[side] += tie_total;
    }
  }
}
