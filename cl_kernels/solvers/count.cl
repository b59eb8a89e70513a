// Choose the rows of a working set: on each of two sides, the ``quota`` rows that violate the optimality conditions
// most.
// The gradient of a row is the derivative of the dual objective by the row's coefficient. The objective is minimised.
// The function bin_of computes the violation of a row, and the side of the row:
//   side 0:  the rows whose violation shrinks if their coefficient rises
//   side 1:  the rows whose violation shrinks if their coefficient falls
// A row without a violation is on no side. A row that is already in the working set (in_set[row] = 1) is on no side.
// Two kernels run in this order:
//   histogram   counts the rows of each side and each chunk of rows in bins by their violation
//   collect     finds the last bin of each side from which rows are chosen, and writes the chosen rows to the working set
// Each side has the bins 0 .. BINS - 1. The rows with the largest violations are in bin 0 and bin 1. From bin 1 on, the
// number of a row's bin is higher by 128 if the violation of the row is half as large. Bin BINS - 1 also has all rows
// with still smaller violations.
// Rows are chosen bin by bin, from bin 0 on, until ``quota`` rows of the side are chosen. The bin in which the choice
// ends is the side's last bin. If the last bin has more rows than are needed, the rows with the lowest row numbers are
// chosen from it. If a side has fewer than ``quota`` rows, all rows of the side are chosen. The number of the last bin is
// then BINS.
// Bin 0 is reserved for two extreme rows, so that they are chosen first:
//   low row, in bin 0 of side 0:   the row with the smallest gradient of all rows whose coefficient can rise (the
//                                  coefficient is below its upper bound)
//   high row, in bin 0 of side 1:  the row with the largest gradient of all rows whose coefficient can fall (the
//                                  coefficient is above its lower bound)
// An extreme row that is on no side is not counted in any bin. Some problems differ:
//   problems without a bias (macro NO_BIAS):  Side 1 has no rows. Both extreme rows are in bin 0 of side 0.
//   epsilon-SVR:  The dual objective has two one-sided derivatives by a coefficient of 0. The low row has the smallest
//     derivative to the right, and the high row has the largest derivative to the left.
//   nu-SVC and nu-SVR:  The rows are divided into two groups, and the coefficients of each group have a fixed sum. Each
//     group has a low row and a high row. For each group, subtract the gradient of the low row from the gradient of the
//     high row. Only the extreme rows of the group with the larger difference are in bin 0.
// All rows are divided into chunks. Chunk c has the rows c * chunk .. (c + 1) * chunk - 1. The kernels use the array:
//   counts[c][side][bin]   number of rows of chunk c and this side in the bins 0 .. bin, from histogram
//   found[group]           the extreme gradients of all chunks, from histogram
// Work-items: work-group c takes chunk c. Consecutive work-items read consecutive rows. Each work-group of collect finds
// the last bins by itself.
#ifndef BINS
#define BINS 2048  // bins of a side, a multiple of WG and of RUN_OF_BINS, at most RUN_OF_BINS^2
#endif

// Select the entry of array e for the group of a row with the lower bound lo. The array has one entry for each group.
// nu-SVC and nu-SVR have two groups of rows (GROUPS = 2). Group 1 has the rows with lo < 0, whose coefficients are at
// most 0. Group 0 has all other rows. In other problems all rows are in group 0.
// The indices in the macro are constants, so that the compiler can keep the array in registers.
#define MINE(e, lo) (GROUPS == 2 && wide_less(lo, wide_of(0)) ? (e)[GROUPS - 1] : (e)[0])

// Compute how much row i violates the optimality conditions (v), the row's side, and the row's bin. Return
// side * BINS + bin, or -1 if v is not positive.
// In problems with a bias, the side is 0 if v shrinks when the coefficient of row i rises, and 1 if v shrinks when the
// coefficient falls. The rows of each side are counted in BINS bins by their v. Bins with lower numbers have rows with
// larger v.
// in: fi, bi      gradient of row i, without the term epsilon * |bi| of epsilon-SVR, and coefficient of row i
// in: epsilon     epsilon of epsilon-SVR, and 0 in other problems
// in: up, low     whether the coefficient can rise, and whether it can fall. Both are false if row i is already in the
//                 working set.
// in: e.m, e.im   smallest ``right`` of all rows whose coefficient can rise, and the number of the row that has it
// in: e.M, e.iM   largest ``left`` of all rows whose coefficient can fall, and the number of the row that has it
// in: scale       1 / (largest v of any row)
// ``right`` and ``left`` are the derivatives of the dual objective to the right and to the left of bi. ``right`` and
// ``left`` differ only if epsilon > 0 and bi = 0, because the objective has the term epsilon * |bi|.
// nu-SVC and nu-SVR have two groups of rows. In these problems, e.m and e.M are extremes of the group of row i.
// Problems with a bias: v is the larger of v0 and v1. The side is 1 if v1 > v0, else 0.
//   v0 = e.M - right if ``up`` is true, else -1
//   v1 = left - e.m if ``low`` is true, else -1
// Problems without a bias (macro NO_BIAS): the side is 0, and v is the first number whose condition is true:
//   -right if ``up`` is true and right < 0;   left if ``low`` is true;   0 in all other cases
// The bin is 0 for the rows e.im and e.iM. For all other rows,
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

// Return the float 1 / v, where v is the largest violation of all groups. Return 0 if no row violates the optimality
// conditions.
inline float scale_of(const Extremes *e) {
  float violation = violation_of(e[0]);
#if GROUPS == 2
  violation = fmax(violation, violation_of(e[1]));
#endif
  return violation > 0 ? 1.0f / violation : 0.0f;
}

// Find the smallest and the largest gradient of each group g of rows, and write them to e[g].
// nu-SVC and nu-SVR have two groups of rows, and the coefficients of each group have a fixed sum. In other problems all
// rows are one group.
// in:  pieces             number of chunks of rows
// in:  numbers            for each chunk and group, the smallest and the largest gradient, from the kernel ``extremes``
// in:  places             for each chunk and group, the indices of the rows that have these two gradients
// in:  values, indices    local memory
// out: e[g].m, e[g].im    the smallest gradient of rows whose coefficient can rise, and the index of that row
// out: e[g].M, e[g].iM    the largest gradient of rows whose coefficient can fall, and the index of that row
// The violation of group g is e[g].M - e[g].m. In problems without a bias (macro NO_BIAS) the violation is the larger
// of e[g].M and -e[g].m.
// The caller chooses the rows im and iM first for the working set. An SMO iteration changes two rows of one group. So
// if there are two groups, only the group with the larger violation keeps its indices im and iM. In the group with the
// smaller violation, im and iM are set to INT_MAX, which is not the index of any row.
INLINED void read_extremes(Extremes *e, const int pieces, global const wide *numbers, global const int *places,
                  local wide *values, local int *indices) {
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) combine(e + g, pieces, g, numbers, places, values, indices);
#if GROUPS == 2
  const bool second = violation_of(e[0]) < violation_of(e[1]);  // constant indices keep e in registers
  e[0].im = second ? INT_MAX : e[0].im, e[0].iM = second ? INT_MAX : e[0].iM;
  e[1].im = second ? e[1].im : INT_MAX, e[1].iM = second ? e[1].iM : INT_MAX;
#endif
}

kernel OF_GROUP void histogram(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                      global const wide *restrict lo, global const wide *restrict hi, global const wide *restrict epsilon,
                      global const uchar *restrict in_set, global const wide *restrict numbers,
                      global const int *restrict places, global int *restrict counts, global Extremes *restrict found) {
  const int piece = get_group_id(0), pieces = get_num_groups(0);
  local int bins[2 * BINS], scratch[SCAN];
  for (int k = get_local_id(0); k < 2 * BINS; k += WG) bins[k] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  Extremes e[GROUPS];
  local wide values[2 * ENTRIES_EACH];
  local int indices[2 * ENTRIES_EACH];
  read_extremes(e, pieces, numbers, places, values, indices);
  if (piece == 0 && get_local_id(0) == 0)
    for (int g = 0; g < GROUPS; ++g) found[g] = e[g];
  const float scale = scale_of(e);
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
  const int each = BINS / WG, first = get_local_id(0) * each;
  for (int side = 0; side < 2; ++side) {
    int mine = 0, total;
    for (int k = first; k < first + each; ++k) mine += bins[side * BINS + k];
    int sum = group_scan(mine, scratch, &total) - mine;
    global int *to = counts + ((size_t)piece * 2 + side) * BINS;
    for (int k = first; k < first + each; ++k) to[k] = sum += bins[side * BINS + k];
  }
}

// Count the rows of one side in the bins 0 .. k, over all chunks, for ``probes`` bins k = first + step - 1,
// first + 2 * step - 1, ... Return how many of these counts are below ``quota``. Counts rise with k.
// in:  counts   counts[c][k] is the number of rows of chunk c in the bins 0 .. k; counts[1] begins 2 * BINS after counts[0]
// out: sums     local memory for the counts
CALLED int below_quota(const int quota, const int first, const int step, const int probes, const int pieces,
                        global const int *counts, local int *sums) {
  const int lid = get_local_id(0);
  for (int k = lid; k < probes; k += WG) sums[k] = 0;
  SYNC
  for (int at = lid; at < probes * pieces; at += WG) {
    const int count = counts[(size_t)(at / probes) * 2 * BINS + first + (at % probes + 1) * step - 1];
#if WG == 1
    sums[at % probes] += count;
#else
    atomic_add(sums + at % probes, count);
#endif
  }
  SYNC
  int below = 0;
  for (int k = 0; k < probes; ++k) below += sums[k] < quota;
  return below;
}

// Find the last bin of a side from which rows are chosen. Return BINS if all rows of the side are chosen.
// out: ties     number of rows to choose from the last bin
// The bins are searched in runs of RUN_OF_BINS: first for the run with the last bin, then for the bin.
#define RUN_OF_BINS 64
INLINED int last_bin(const int quota, const int pieces, global const int *counts, local int *sums, int *ties) {
  const int runs = BINS / RUN_OF_BINS, run = below_quota(quota, 0, RUN_OF_BINS, runs, pieces, counts, sums);
  const int before = run ? sums[run - 1] : 0;  // rows in earlier runs
  SYNC
  if (run == runs) {
    *ties = 0;
    return BINS;
  }
  const int bin = below_quota(quota, run * RUN_OF_BINS, 1, RUN_OF_BINS, pieces, counts, sums);
  *ties = quota - (bin ? sums[bin - 1] : before);
  SYNC
  return run * RUN_OF_BINS + bin;
}

// Write the indices of the chosen rows to the working set ws, and set in_set[i] = 1 for each chosen row i.
// From index ``first`` on, ``quota`` entries of ws are for the rows of side 0, and the ``quota`` entries after them are
// for the rows of side 1. In problems without a bias, side 1 has no rows, and ws has no entries for side 1. All other
// entries of ws are rows of the previous working set, and are left unchanged.
// Side 0 has the rows whose violation of the optimality conditions shrinks if their coefficient rises. Side 1 has the
// rows whose violation shrinks if their coefficient falls.
// The kernel ``histogram`` counted the rows of each side in bins by their violation. Bins with lower numbers have rows
// with larger violations. All rows in the bins before a side's last bin are chosen, and the first rows in the last bin.
// Each side's rows in the bins before the last bin are written first, in ascending order of their indices. Then the
// rows in the last bin are written, in ascending order of their indices.
kernel OF_GROUP void collect(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                    global const wide *restrict lo, global const wide *restrict hi,
                    global const wide *restrict epsilon, global uchar *restrict in_set,
                    global const int *restrict counts, global const Extremes *restrict found, const int quota, const int first, global int *restrict ws) {
  const int piece = get_group_id(0), pieces = get_num_groups(0), lid = get_local_id(0);
  local int scratch[SCAN], sums[RUN_OF_BINS];
  Extremes e[GROUPS];
  for (int g = 0; g < GROUPS; ++g) e[g] = found[g];
  const float scale = scale_of(e);
  int better_at[2], tie_at[2], last[2], ties[2];
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    global const int *from = counts + side * BINS;
    last[side] = last_bin(quota, pieces, from, sums, &ties[side]);
    int better = 0, tie = 0;  // rows in the chunks before this one
    for (int c = lid; c < piece; c += WG) {
      const int k = last[side], sum = k ? from[(size_t)c * 2 * BINS + k - 1] : 0;
      better += sum, tie += k < BINS ? from[(size_t)c * 2 * BINS + k] - sum : 0;
    }
    group_scan(better, scratch, &better_at[side]);
    group_scan(tie, scratch, &tie_at[side]);
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
        ws[first + side * quota + to] = i;
        in_set[i] = 1;
      }
      better_at[side] += both & 0xffff, tie_at[side] += both >> 16;
    }
  }
}
