// The working set, chosen on the device by exact counting; nothing of length n is sorted or leaves the device.
//
// In signed coefficients b_i = y_i a_i with lo_i <= b_i <= hi_i and f = gradient of the dual in b:
//   up  = {i : b_i < hi_i},  low = {i : b_i > lo_i},  m = min_up f,  M = max_low f,  violation M - m
// A row's own violation is M - f_i (up) or f_i - m (low), of both the larger. The rows with the largest ones are taken,
// a quota from each side, in four passes over pieces (chunks) of the rows, problem by problem in dimension 1:
//   extremes   m, M and where they are; sums over the free rows for the offset
//   histogram  rows by side and by the logarithm of their violation (128 bins an octave)
//   threshold  for each side the bin at which its quota ends, and each chunk's place in the output
//   collect    rows of better bins, and in row order as many of the last bin as fit
// Rows with in_set set (kept from the step before) and inert rows (lo = hi) never qualify.
// NO_BIAS: the sum of b is free. A row's violation is -f_i (up) or f_i (low), the problem's is the largest of them, and
// all rows stand on one side.
#ifndef BINS
#define BINS 2048  // bins a side, a multiple of WG
#endif
#define NUMBERS 4  // wide numbers a chunk: m, M, sum of f over free rows, -
#define PLACES 4   // ints a chunk: where m is, where M is, how many free rows, -

#if WG > 1
// (value, index) of the group's smallest value, of equal values the smallest index, in all items
inline void group_argmin(wide *value, int *index, local wide *values, local int *indices) {
  const int lid = get_local_id(0);
  values[lid] = *value, indices[lid] = *index;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = WG / 2; step > 0; step /= 2) {
    if (lid < step) {
      const wide a = values[lid], b = values[lid + step];
      const int i = indices[lid], j = indices[lid + step];
      const bool other = wide_less(b, a) || (!wide_less(a, b) && j < i);
      values[lid] = wide_pick(other, b, a), indices[lid] = other ? j : i;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  *value = values[0], *index = indices[0];
  barrier(CLK_LOCAL_MEM_FENCE);
}
inline wide group_sum(wide value, local wide *values) {
  const int lid = get_local_id(0);
  values[lid] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = WG / 2; step > 0; step /= 2) {
    if (lid < step) values[lid] = wide_add(values[lid], values[lid + step]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const wide sum = values[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  return sum;
}
#else
inline void group_argmin(wide *value, int *index, local wide *values, local int *indices) {}
inline wide group_sum(wide value, local wide *values) { return value; }
#endif

kernel EXPLICIT void extremes(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                     global const wide *restrict lo, global const wide *restrict hi, global wide *restrict numbers,
                     global int *restrict places) {
  const int p = get_global_id(1), piece = get_group_id(0), pieces = get_num_groups(0);
  const size_t base = (size_t)p * n;
  local wide values[WG];
  local int indices[WG];
  wide m = WIDE_MAX, M = WIDE_MAX, sum = wide_of(0);  // M holds the smallest -f
  int im = INT_MAX, iM = INT_MAX, free = 0;
  const int end = min(n, (piece + 1) * chunk);
  for (int i = piece * chunk + get_local_id(0); i < end; i += WG) {
    const wide fi = f[base + i], bi = b[base + i];
    const bool up = wide_less(bi, hi[base + i]), low = wide_less(lo[base + i], bi);
    const wide a = wide_pick(up, fi, WIDE_MAX), c = wide_pick(low, wide_neg(fi), WIDE_MAX);
    const bool first = wide_less(a, m), second = wide_less(c, M);
    m = wide_pick(first, a, m), im = first ? i : im;
    M = wide_pick(second, c, M), iM = second ? i : iM;
    if (up && low) sum = wide_add(sum, fi), ++free;
  }
  group_argmin(&m, &im, values, indices);
  group_argmin(&M, &iM, values, indices);
  sum = group_sum(sum, values);
  int total;
  group_scan(free, indices, &total);
  if (get_local_id(0) == 0) {
    global wide *to = numbers + ((size_t)p * pieces + piece) * NUMBERS;
    global int *at = places + ((size_t)p * pieces + piece) * PLACES;
    to[0] = m, to[1] = wide_neg(M), to[2] = sum;
    at[0] = im, at[1] = iM, at[2] = total;
  }
}

// m and M over all chunks (every item that needs them adds the few chunks up again)
typedef struct {
  wide m, M;
  int im, iM;
} Extremes;

inline Extremes combine(const int pieces, global const wide *numbers, global const int *places) {
  Extremes e = {WIDE_MAX, wide_neg(WIDE_MAX), INT_MAX, INT_MAX};
  for (int k = 0; k < pieces; ++k) {
    if (wide_less(numbers[k * NUMBERS], e.m)) e.m = numbers[k * NUMBERS], e.im = places[k * PLACES];
    if (wide_less(e.M, numbers[k * NUMBERS + 1])) e.M = numbers[k * NUMBERS + 1], e.iM = places[k * PLACES + 1];
  }
  return e;
}

// side * BINS + bin of row i, or -1: bin 0 for the two extremes themselves, then by falling violation
inline int bin_of(const int i, const wide fi, const bool up, const bool low, const Extremes e, const float scale) {
#ifdef NO_BIAS
  const int side = 0;
  const float v = (float)wide_real(up && wide_less(fi, wide_of(0)) ? wide_neg(fi) : low ? fi : wide_of(0));
#else
  const float vu = up ? (float)wide_real(wide_sub(e.M, fi)) : -1.0f;
  const float vl = low ? (float)wide_real(wide_sub(fi, e.m)) : -1.0f;
  const int side = vl > vu;
  const float v = side ? vl : vu;
#endif
  if (!(v > 0)) return -1;
  const uint depth = (as_uint(1.0f) - as_uint(fmin(v * scale, 1.0f))) >> 16;
  const int bin = i == e.im || i == e.iM ? 0 : 1 + (int)min(depth, (uint)(BINS - 2));
  return side * BINS + bin;
}

inline float scale_of(const Extremes e) {
#ifdef NO_BIAS
  const float violation = (float)wide_real(wide_max(e.M, wide_neg(e.m)));
#else
  const float violation = (float)wide_real(wide_sub(e.M, e.m));
#endif
  return violation > 0 ? 1.0f / violation : 0.0f;
}

kernel EXPLICIT void histogram(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                      global const wide *restrict lo, global const wide *restrict hi,
                      global const uchar *restrict in_set, global const wide *restrict numbers,
                      global const int *restrict places, global int *restrict counts) {
  const int p = get_global_id(1), piece = get_group_id(0), pieces = get_num_groups(0);
  const size_t base = (size_t)p * n;
  local int bins[2 * BINS];
  for (int k = get_local_id(0); k < 2 * BINS; k += WG) bins[k] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  const Extremes e = combine(pieces, numbers + (size_t)p * pieces * NUMBERS, places + (size_t)p * pieces * PLACES);
  const float scale = scale_of(e);
  const int end = scale > 0 ? min(n, (piece + 1) * chunk) : 0;
  for (int i = piece * chunk + get_local_id(0); i < end; i += WG) {
    const wide bi = b[base + i];
    const bool fresh = !in_set[base + i];
    const int bin = bin_of(i, f[base + i], fresh && wide_less(bi, hi[base + i]), fresh && wide_less(lo[base + i], bi),
                           e, scale);
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

// ws[p][keep + side quota ...] = the chosen rows; the last bin's ties come after the better rows
kernel EXPLICIT void collect(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                    global const wide *restrict lo, global const wide *restrict hi, global uchar *restrict in_set,
                    global const wide *restrict numbers, global const int *restrict places,
                    global const int *restrict ends, global const int *restrict offsets, const int quota,
                    const int keep, const int W, global int *restrict ws) {
  const int p = get_global_id(1), piece = get_group_id(0), pieces = get_num_groups(0), lid = get_local_id(0);
  const size_t base = (size_t)p * n;
  local int scratch[WG];
  const Extremes e = combine(pieces, numbers + (size_t)p * pieces * NUMBERS, places + (size_t)p * pieces * PLACES);
  const float scale = scale_of(e);
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
      bin = bin_of(i, f[base + i], wide_less(bi, hi[base + i]), wide_less(lo[base + i], bi), e, scale);
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
        ws[(size_t)p * W + keep + side * quota + to] = i;
        in_set[base + i] = 1;
      }
      better_at[side] += better_total, tie_at[side] += tie_total;
    }
  }
}

// Sums for the objective at offset rho (decision value f + ... - rho), chunk by chunk:
//   quadratic = sum b (f - q), linear = sum b q, loss = sum max(lo (rho - f), hi (rho - f))
// with q the linear term of the dual (f = K b + q), so that (GTSVM, equations 1 and 2)
//   dual = -(quadratic / 2 + linear), primal = quadratic / 2 + loss
kernel EXPLICIT void objective(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                      global const wide *restrict lo, global const wide *restrict hi, global const wide *restrict q,
                      global const wide *restrict rho, global wide *restrict sums) {
  const int p = get_global_id(1), piece = get_group_id(0), pieces = get_num_groups(0);
  const size_t base = (size_t)p * n;
  local wide values[WG];
  wide quadratic = wide_of(0), linear = wide_of(0), loss = wide_of(0);
  const int end = min(n, (piece + 1) * chunk);
  for (int i = piece * chunk + get_local_id(0); i < end; i += WG) {
    const wide bi = b[base + i], qi = q[base + i];
    const bool there = wide_less(lo[base + i], wide_of(0)) || wide_less(wide_of(0), hi[base + i]);
    const wide fi = wide_pick(there, f[base + i], wide_of(0));  // (f of padding rows may be any number)
    const wide slack = wide_sub(rho[p], fi);
    quadratic = wide_add(quadratic, wide_mul(bi, wide_sub(fi, qi)));
    linear = wide_add(linear, wide_mul(bi, qi));
    loss = wide_add(loss, wide_max(wide_mul(lo[base + i], slack), wide_mul(hi[base + i], slack)));
  }
  quadratic = group_sum(quadratic, values), linear = group_sum(linear, values);
  loss = group_sum(loss, values);
  if (get_local_id(0) == 0) {
    global wide *to = sums + ((size_t)p * pieces + piece) * 3;
    to[0] = quadratic, to[1] = linear, to[2] = loss;
  }
}
