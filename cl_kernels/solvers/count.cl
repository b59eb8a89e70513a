// Choose rows for a working set: on each of two sides, the ``quota`` rows that violate the optimality conditions most.
// The gradient of a row is the derivative of the dual objective by the row's coefficient. The objective is minimised.
// The function bin_of defines the violation of a row. A row without a violation is on no side.
//   side 0:  the rows whose violation shrinks if their coefficient rises
//   side 1:  the rows whose violation shrinks if their coefficient falls
// In problems without a bias (macro NO_BIAS), all rows with a violation are on side 0, and side 1 has no rows.
// Rows that are already in the working set (in_set[row] = 1) are on no side.
// The rows of each side are counted in a histogram with the bins 0 .. BINS - 1. Bin 0 is for two extreme rows, which
// are chosen first:
//   low row:   the row with the smallest gradient of all rows whose coefficient is below its upper bound
//   high row:  the row with the largest gradient of all rows whose coefficient is above its lower bound
// In epsilon-SVR, the gradient at a coefficient of 0 is one-sided: to the right in the search for the low row, and to
// the left in the search for the high row.
// The low row is in bin 0 of side 0. The high row is in bin 0 of side 1, or in bin 0 of side 0 in problems without a
// bias. An extreme row that is on no side is not counted. In nu-SVC and nu-SVR, the rows are divided into two groups,
// and the coefficients of each group have a fixed sum. Each group has a low row and a high row. The extreme rows are
// those of one group: the group in which the gradient of the high row minus the gradient of the low row is larger
// (function read_extremes).
// All other rows of a side are counted in the bins 1 .. BINS - 1. The rows with the largest violations are in bin 1.
// If a row's violation is halved, the number of its bin rises by 128. Bin BINS - 1 also counts all rows with still
// smaller violations.
// On each side, rows are chosen bin by bin, from bin 0 on, until ``quota`` rows of the side are chosen. The bin that
// completes the ``quota`` is called the side's last bin. If the last bin has more rows than are needed, the rows with
// the lowest row numbers are chosen from it. If a side has fewer than ``quota`` rows, all rows of the side are chosen,
// and BINS is stored as the number of the side's last bin.
// All rows are divided into chunks. Chunk c has the rows c * chunk .. (c + 1) * chunk - 1. The kernels use the arrays:
//   counts[c][side][bin]   number of rows of chunk c in a bin
//   totals[side][bin]      number of rows of all chunks in a bin
//   ends[side][0]          number of the side's last bin
//   ends[side][1]          number of rows to choose from the side's last bin
//   shares[side][0][c]     number of rows of chunk c in the bins before the side's last bin
//   shares[side][1][c]     number of rows of chunk c in the side's last bin
// Four kernels run in this order:
//   histogram   computes counts and totals
//   threshold   computes ends from totals
//   share       computes shares from counts and ends
//   collect     writes the chosen rows to the working set, in places that it computes from shares
// Work-items: threshold has one work-group. In the other kernels, work-group c takes chunk c, and consecutive items
// read consecutive rows. If a work-group has a single item (on CPUs), totals and the kernel ``share`` are not used:
// threshold computes ends and shares from counts.
#ifndef BINS
#define BINS 2048  // bins of a side, a multiple of WG
#endif

// Select the entry of array e for a row with the lower bound lo. Constant indices keep the array in registers.
// nu-SVC and nu-SVR have two groups of rows (GROUPS = 2). Entry 1 is for the rows with lo < 0, whose coefficients are
// at most 0, and entry 0 for the other rows. Other problems have only entry 0.
#define MINE(e, lo) (GROUPS == 2 && wide_less(lo, wide_of(0)) ? (e)[GROUPS - 1] : (e)[0])

// Return side * BINS + bin for row i, or -1 if the row does not violate the optimality conditions.
// side is 0 if the violation shrinks when the row's coefficient rises, and 1 if it shrinks when the coefficient falls.
// Each side has a histogram of violations with BINS bins. bin is the row's bin. Bins with smaller numbers have larger
// violations.
// in: fi, bi      gradient and coefficient of row i
// in: up, low     whether the coefficient can rise, and whether it can fall
// in: e.m, e.im   smallest gradient of all rows whose coefficient can rise, and the row that has it
// in: e.M, e.iM   largest gradient of all rows whose coefficient can fall, and the row that has it
// in: scale       1 / (largest violation of any row)
// In problems with a bias, the violation v of row i is the larger of v0 and v1. side is 1 if v1 > v0, else 0.
//   v0 = e.M - fi if ``up`` is true, else -1
//   v1 = fi - e.m if ``low`` is true, else -1
// In problems without a bias (macro NO_BIAS), side is always 0. If ``up`` is true and fi < 0, v is -fi. Otherwise v is
// fi if ``low`` is true, else 0.
// If v is not positive, the row does not violate the conditions.
// epsilon-SVR: the dual objective has the term epsilon * |bi|, so its derivative jumps at bi = 0. The derivative to the
// right of bi replaces fi where ``up`` is tested, and the derivative to the left of bi where ``low`` is tested.
// bin is 0 for the rows e.im and e.iM. For all other rows,
//   bin = 1 + min(depth, BINS - 2),   depth = (bits(1) - bits(v * scale)) / 2^16   (integer division)
// bits(a) are the bits of the float a, read as an integer. If v is halved, depth increases by 128.
inline int bin_of(const int i, const wide fi, const wide bi, const wide epsilon, const bool up, const bool low,
                  const Extremes e, const float scale) {
  const wide right = right_of(fi, bi, epsilon), left = left_of(fi, bi, epsilon);
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
  return isfinite(violation) ? violation : 0.0f;  // 0 if no row can rise or none can fall: an extreme is infinite
}

// Find the extreme gradients of each group g of rows, and write them to e[g]. Return the float 1 / v, where v is the
// largest violation of all groups. Return 0 if no row violates the optimality conditions.
// nu-SVC and nu-SVR have two groups of rows, and the coefficients of each group have a fixed sum. In other problems all
// rows are one group.
// in:  pieces             number of chunks of rows
// in:  numbers, places    the extreme gradients of each chunk, and the numbers of their rows (extremes.cl)
// out: e[g].m, e[g].im    the smallest gradient of rows whose coefficient can rise, and the number of its row
// out: e[g].M, e[g].iM    the largest gradient of rows whose coefficient can fall, and the number of its row
// The violation of group g is e[g].M - e[g].m. In problems without a bias (macro NO_BIAS) the violation is the larger
// of e[g].M and -e[g].m.
// The rows im and iM are chosen first for the working set. An SMO iteration changes two rows of one group. So with two
// groups, only the rows im and iM of the group with the larger violation are kept. In the other group, im and iM are
// set to INT_MAX, which is not the number of any row.
INLINED float read_extremes(Extremes *e, const int pieces, global const wide *numbers, global const int *places,
                  local wide *values, local int *indices) {
  float violation = 0;
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) {
    combine(e + g, pieces, g, numbers, places, values, indices);
    violation = fmax(violation, violation_of(e[g]));
  }
#if GROUPS == 2
  const bool second = violation_of(e[0]) < violation_of(e[1]);  // constant indices keep e in registers
  e[0].im = second ? INT_MAX : e[0].im, e[0].iM = second ? INT_MAX : e[0].iM;
  e[1].im = second ? e[1].im : INT_MAX, e[1].iM = second ? e[1].iM : INT_MAX;
#endif
  return violation > 0 ? 1.0f / violation : 0.0f;
}

kernel OF_GROUP void histogram(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                      global const wide *restrict lo, global const wide *restrict hi, global const wide *restrict epsilon,
                      global const uchar *restrict in_set, global const wide *restrict numbers,
                      global const int *restrict places, global int *restrict counts, global int *restrict totals) {
  const int piece = get_group_id(0), pieces = get_num_groups(0);
  local int bins[2 * BINS];
  for (int k = get_local_id(0); k < 2 * BINS; k += WG) bins[k] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  Extremes e[GROUPS];
  local wide values[2 * ENTRIES_EACH];
  local int indices[2 * ENTRIES_EACH];
  const float scale = read_extremes(e, pieces, numbers, places, values, indices);
  const int end = scale > 0 ? min(n, (piece + 1) * chunk) : 0;
  for (int i = piece * chunk + get_local_id(0); i < end; i += WG) {
    const wide bi = b[i];
    const bool fresh = !in_set[i];
    const bool up = fresh && wide_less(bi, hi[i]), low = fresh && wide_less(lo[i], bi);
    const int bin = bin_of(i, f[i], bi, epsilon[0], up, low, MINE(e, lo[i]), scale);
#if WG == 1
    if (bin >= 0) ++bins[bin];
#else
    if (bin >= 0) atomic_inc(&bins[bin]);
#endif
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  global int *to = counts + (size_t)piece * 2 * BINS;
  for (int k = get_local_id(0); k < 2 * BINS; k += WG) {
    to[k] = bins[k];
#if WG > 1
    if (bins[k]) atomic_add(totals + k, bins[k]);
#endif
  }
}

// Sum a histogram that counts rows by their violation of the optimality conditions. It has BINS bins, and bins[k] is
// the number of rows in bin k. Bins with lower numbers have rows with larger violations. Rows are chosen for the
// working set from bin 0, then from bin 1, and so on. Bin ``last`` is the last bin from which rows are chosen. ``last``
// is BINS if all rows are chosen because the histogram has too few rows.
// out: *better   number of rows in the bins before bin ``last``: bins[0] + ... + bins[last - 1]
// out: *ties     number of rows in bin ``last``: bins[last], or 0 if last = BINS
// Work-items: the items of a work-group read consecutive bins, and item 0 writes both results. ``scratch`` is local
// memory.
INLINED void share_of(const int last, global const int *bins, local int *scratch, global int *better, global int *ties) {
  const int lid = get_local_id(0);
  int mine = 0, total;
  for (int k = lid; k < last; k += WG) mine += bins[k];
  group_scan(mine, scratch, &total);
  if (lid == 0) *better = total, *ties = last < BINS ? bins[last] : 0;
}

kernel OF_GROUP void threshold(const int pieces, const int quota, global const int *restrict counts,
                               global int *restrict totals, global int *restrict ends, global int *restrict shares) {
  const int lid = get_local_id(0);
  local int scratch[SCAN], all[BINS];
  local int found[2];
  for (int side = 0; side < 2; ++side) {
    if (lid == 0) found[0] = BINS, found[1] = 0;
#if WG == 1
    global const int *bins = counts + (size_t)side * BINS;
    for (int k = 0; k < BINS; ++k) all[k] = bins[k];
    for (int c = 1; c < pieces; ++c)
      for (int k = 0; k < BINS; ++k) all[k] += bins[(size_t)c * 2 * BINS + k];
#else
    global int *from = totals + (size_t)side * BINS;
    for (int k = lid; k < BINS; k += WG) all[k] = from[k], from[k] = 0;  // clear totals for the next histogram
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    const int share = BINS / WG;
    int mine = 0;
    for (int k = lid * share; k < (lid + 1) * share; ++k) mine += all[k];
    int total;
    int before = group_scan(mine, scratch, &total) - mine;
    if (before < quota && before + mine >= quota)  // one of this item's bins is the last bin
      for (int k = lid * share; k < (lid + 1) * share; ++k) {
        if (before + all[k] >= quota) {
          found[0] = k, found[1] = quota - before;
          break;
        }
        before += all[k];
      }
    barrier(CLK_LOCAL_MEM_FENCE);
    global int *end = ends + side * 2;
    if (lid == 0) end[0] = found[0], end[1] = found[1];
#if WG == 1
    global int *to = shares + (size_t)side * 2 * pieces;
    for (int c = 0; c < pieces; ++c)
      share_of(found[0], counts + ((size_t)c * 2 + side) * BINS, scratch, to + c, to + pieces + c);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

#if WG > 1
// Count rows that can be chosen for the working set, for each chunk c of rows and each of two sides s.
// Side 0 has the rows whose violation of the optimality conditions shrinks if their coefficient rises. Side 1 has the
// rows whose violation shrinks if their coefficient falls. In problems without a bias, all rows are on side 0.
// The rows of each side are divided into BINS bins by their violation. Bin 0 has the rows with the largest violations.
// Each side has a bin ``last``. All rows of the bins before bin ``last`` are chosen, and some or all rows of bin
// ``last``. If all rows of the side are chosen because the side has too few rows, ``last`` is BINS.
// in:  counts   counts[c][s][k] is the number of rows of chunk c and side s in bin k
// in:  ends     ends[s][0] is the number ``last`` of side s
// out: shares   rows in the bins before bin ``last``:  shares[s][0][c] = counts[c][s][0] + ... + counts[c][s][last - 1]
//               rows in bin ``last``:                  shares[s][1][c] = counts[c][s][last], or 0 if last = BINS
// Work-items: one work-group takes one chunk c.
kernel OF_GROUP void share(const int n, const int chunk, global const int *restrict counts, global const int *restrict ends,
                           global int *restrict shares) {
  const int c = get_group_id(0), pieces = get_num_groups(0);
  local int scratch[SCAN];
  for (int side = 0; side < 2; ++side) {
    global int *to = shares + (size_t)side * 2 * pieces;
    const int last = ends[side * 2];
    share_of(last, counts + ((size_t)c * 2 + side) * BINS, scratch, to + c, to + pieces + c);
  }
}
#endif

// Write the numbers of the chosen rows to the working set ws. The first ``stay`` entries of ws are rows of the previous
// working set, and are left unchanged. The next ``quota`` entries are for side 0, and ``quota`` more for side 1.
// Side 0 has the rows whose violation shrinks if their coefficient rises, and side 1 the rows whose violation shrinks
// if it falls. A histogram divides the rows of each side into bins. Bins with smaller numbers have larger violations.
// ends[side][0] is the last bin from which rows are chosen. The rows of all earlier bins are written first, and then
// rows of the last bin, both in ascending order of their numbers.
kernel OF_GROUP void collect(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                    global const wide *restrict lo, global const wide *restrict hi,
                    global const wide *restrict epsilon, global uchar *restrict in_set,
                    global const wide *restrict numbers, global const int *restrict places,
                    global const int *restrict ends, global const int *restrict shares, const int quota,
                    const int stay, global int *restrict ws) {
  const int piece = get_group_id(0), pieces = get_num_groups(0), lid = get_local_id(0);
  local int scratch[SCAN];
  Extremes e[GROUPS];
  local wide values[2 * ENTRIES_EACH];
  local int indices[2 * ENTRIES_EACH];
  const float scale = read_extremes(e, pieces, numbers, places, values, indices);
  int better_at[2], tie_at[2], last[2], ties[2];
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    global const int *from = shares + (size_t)side * 2 * pieces;
    global const int *end = ends + side * 2;
    int better = 0, tie = 0;  // rows in the chunks before this one
    for (int c = lid; c < piece; c += WG) better += from[c], tie += from[pieces + c];
    group_scan(better, scratch, &better_at[side]);
    group_scan(tie, scratch, &tie_at[side]);
    last[side] = end[0], ties[side] = end[1];
  }
  const int begin = piece * chunk, end = scale > 0 ? min(n, begin + chunk) : 0;
  for (int i0 = begin; i0 < end; i0 += WG) {
    const int i = i0 + lid;
    int bin = -1;
    if (i < end && !in_set[i]) {
      const wide bi = b[i];
      const bool up = wide_less(bi, hi[i]), low = wide_less(lo[i], bi);
      bin = bin_of(i, f[i], bi, epsilon[0], up, low, MINE(e, lo[i]), scale);
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const bool mine = bin >= side * BINS && bin < (side + 1) * BINS;
      const bool better = mine && bin - side * BINS < last[side], tie = mine && bin - side * BINS == last[side];
      int both;  // two counts: rows in earlier bins in bits 0 to 15, and rows in the last bin from bit 16 on
      const int rank = group_scan(better + (tie << 16), scratch, &both);
      const int better_rank = better_at[side] + (rank & 0xffff) - 1, tie_rank = tie_at[side] + (rank >> 16) - 1;
      int to = -1;
      if (better) to = better_rank;
      if (tie && tie_rank < ties[side]) to = quota - ties[side] + tie_rank;
      if (to >= 0) {
        ws[stay + side * quota + to] = i;
        in_set[i] = 1;
      }
      better_at[side] += both & 0xffff, tie_at[side] += both >> 16;
    }
  }
}
