<%include file="kernel_function.mako"/>
<%namespace name="lanes" file="tiles_lanes_simd.mako"/>
${lanes.settings()}
// Compute K^T H K v for the kernel matrix K = K(X, U) and several outputs p, and read the rows X only once:
//   t[p][i] = sum_u K[u][i] * v[p][u]
//   r[p][i] = sum_q H[i][p][q] * t[q][i]
//   result[p][u] = sum_i K[u][i] * r[p][i]
// K[u][i] is the kernel value of row u of U and row i of X. v[p][u] is a coefficient. H[i] is a symmetric matrix for
// row i of X, with a row and a column for each output. H[i] is computed from weights w. If ``shares`` is not null, H[i]
// is computed from probabilities s too:
//   shares = null    H[i] is diagonal, with the weights w[p][i]
//   otherwise        H[i] = w[0][i] * (diag(s_i) - s_i s_i^T), with the vector s_i of the numbers s[p][i]
// In:
//   values, at, columns_at, columns    the rows X of d features. V consecutive rows are a lane group, and their values
//                                      are interleaved (tiles_lanes_simd.mako).
//   group0, groups  the launch takes ``groups`` lane groups of X, from the lane group with the number group0 on
//   panel, count    the rows U, in blocks of UB rows whose values are interleaved, and the number count[0] of rows U
//   capacity        the number of rows U for which ``panel`` has room, at least count[0]
//   xx, uu          squared norms of the rows of X and of U
//   problems        the number of outputs
//   weights         (outputs, capacity), the coefficients v. The entries from count[0] on must be finite: K is 0 there.
//   n               the number of rows X, with padding rows
//   w               (outputs, n) if per_output is 1, else one row (1, n) for all outputs
//   shares          (outputs, n), the probabilities s, or null
//   absent          absent[i] is 1 if row i is padding, where K may be infinite
// Out:
//   parts    (work-items, outputs, capacity). Each work-item writes the terms of its rows i. The result is the sum over
//            the work-items.
// Scratch memory:
//   tiles, sums_t, sums_r    for K, t and r
// Work-items: each work-item takes BLOCK lane groups of X, in steps of SUB lane groups. A step first stores the
// kernel values of SUB * V rows i and all rows u in ``tiles``. The values in ``tiles`` stay in the
// core's caches. Then the work-item computes r for these rows i. At last it adds K[u][i] * r[p][i] to its sums in
// ``parts``, for up to four outputs p at a time.
// Precision: K has the type ``real``. Terms of t are added in this type over RUN rows u, and terms of the result over
// the rows of SUB lane groups. Sums of this length are then added in a wider type, double or pairs of floats.
#define to_realv CAT(CAT(convert_, REAL), V)

// Return a vector whose lane i is the sum of all lanes of sums[i]. Neighbouring lanes are added in pairs.
#ifdef REAL64
#define LANES CAT(ulong, V)
#else
#define LANES CAT(uint, V)
#endif
#if V == 16
#define EVEN (LANES)(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#elif V == 8
#define EVEN (LANES)(0, 2, 4, 6, 8, 10, 12, 14)
#else
#define EVEN (LANES)(0, 2, 4, 6)
#endif
inline realv side_by_side(realv *sums) {
#pragma unroll
  for (int left = V / 2; left > 0; left /= 2)
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const realv a = sums[2 * i], b = sums[2 * i + 1];
      sums[i] = shuffle2(a, b, EVEN) + shuffle2(a, b, EVEN + 1);
    }
  return sums[0];
}

kernel EXPLICIT void forward_back(
    const int group0, const int groups, global const real *restrict values, global const long *restrict at,
    global const int *restrict columns_at, global const int *restrict columns, global const real *restrict xx,
    const int d, global const int *restrict count, global const real *restrict panel, global const real *restrict uu,
    const int problems, const int capacity, global const real *restrict weights, const long n,
    global const wide *restrict w, const int per_output, global const wide *restrict shares,
    global const uchar *restrict absent, global real *restrict tiles, global wide *restrict sums_t,
    global real *restrict sums_r, global wide *restrict parts KERNEL_PARAMETERS) {
  const int item = get_global_id(0), total = count[0], block_end = min((item + 1) * BLOCK, groups);
  global real *restrict K = tiles + (size_t)item * capacity * SUB * V, *restrict r = sums_r + (size_t)item * problems * SUB * V;
  global wide *restrict t = sums_t + (size_t)item * problems * SUB * V, *restrict part = parts + (size_t)item * problems * capacity;
  for (int i = 0; i < problems * capacity / V; ++i) storev((widev)0.0, i, part);
  for (int begin = item * BLOCK; begin < block_end; begin += SUB) {
    const int end = min(begin + SUB, block_end);
    for (int i = 0; i < problems * SUB; ++i) storev((widev)0.0, i, t), storev((realv)(real)0, i, r);
<%lanes:tiles>
          const int number = group - begin;
          for (int u = 0; u < valid; ++u) value[u] = kernel_value(value[u], x2, (realv)uu[u0 + u] KERNEL_ARGUMENTS);
          for (int u = valid; u < UB; ++u) value[u] = (realv)(real)0;
          for (int u = 0; u < UB; ++u) storev(value[u], (u0 + u) * SUB + number, K);
          const bool full = (u0 + UB) % RUN == 0 || u0 + UB >= total;
          int p = 0;
% for outputs in (4, 2, 1):
          for (; p + ${outputs} <= problems; p += ${outputs}) {
            realv sum[${outputs}];
#pragma unroll
            for (int q = 0; q < ${outputs}; ++q) sum[q] = loadv((p + q) * SUB + number, r);
#pragma unroll
            for (int u = 0; u < UB; ++u)
#pragma unroll
              for (int q = 0; q < ${outputs}; ++q)
                sum[q] = fma(value[u], (realv)weights[(size_t)(p + q) * capacity + u0 + u], sum[q]);
#pragma unroll
            for (int q = 0; q < ${outputs}; ++q) {
              const int index = (p + q) * SUB + number;
              if (full) storev(loadv(index, t) + to_widev(sum[q]), index, t);
              storev(full ? (realv)(real)0 : sum[q], index, r);
            }
          }
% endfor
</%lanes:tiles>
    // Set to 0 the kernel values of padding rows, which hold no data, and of lane groups past the last one.
    for (int i = 0; i < SUB * V; ++i)
      if (begin + i / V >= end || absent[(size_t)(group0 + begin) * V + i])
        for (int u = 0; u < (total + V - 1) / V * V; ++u) K[(size_t)u * SUB * V + i] = 0;
    for (int a = 0; a < end - begin; ++a) {
      const size_t row = (size_t)(group0 + begin + a) * V;
      widev mean = (widev)0.0;
      for (int p = 0; p < problems && shares; ++p) mean = fma(loadv(0, shares + p * n + row), loadv(p * SUB + a, t), mean);
      for (int p = 0; p < problems; ++p) {
        const widev weight = loadv(0, w + per_output * p * n + row);
        widev one = loadv(p * SUB + a, t);
        if (shares) one = loadv(0, shares + p * n + row) * (one - mean);
        // Rows of padding hold no data and have weight 0. t may be infinite there, and 0 * infinity would be NaN.
        storev(to_realv(select(one * weight, (widev)0.0, isequal(weight, (widev)0.0))), p * SUB + a, r);
      }
    }
    for (int u0 = 0; u0 < total; u0 += V) {
      int p = 0;
% for outputs in (4, 2, 1):
      for (; p + ${outputs} <= problems; p += ${outputs}) {
        realv sum[${outputs}][V], right[${outputs}][SUB];
#pragma unroll
        for (int q = 0; q < ${outputs}; ++q)
#pragma unroll
          for (int a = 0; a < SUB; ++a) right[q][a] = loadv((p + q) * SUB + a, r);
        for (int u = 0; u < V; ++u) {
#pragma unroll
          for (int q = 0; q < ${outputs}; ++q) sum[q][u] = (realv)(real)0;
#pragma unroll
          for (int a = 0; a < SUB; ++a) {
            const realv k = loadv((u0 + u) * SUB + a, K);
#pragma unroll
            for (int q = 0; q < ${outputs}; ++q) sum[q][u] = fma(k, right[q][a], sum[q][u]);
          }
        }
#pragma unroll
        for (int q = 0; q < ${outputs}; ++q) {
          global wide *restrict to = part + (size_t)(p + q) * capacity + u0;
          storev(loadv(0, to) + to_widev(side_by_side(sum[q])), 0, to);
        }
      }
% endfor
    }
  }
}
