<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef UB
#define UB 64  // right-hand rows of a block, a power of two
#endif
#ifndef INDEX
#define INDEX int  // type of a column number (ushort, int)
#endif
#ifndef WEIGHED
#define WEIGHED 512  // rows of a work-item of add_weighted, a multiple of V
#endif
#define AHEAD 4  // prefetches run this many entries ahead, since columns of the index are short and scattered
#define LINES 16  // cache lines of a column that are prefetched at most
// Compute kernel values K[u][i] = f(<x_i, y_u>, |x_i|^2, |y_u|^2) of a kernel function f. The rows x_i of X are given
// as an inverted index. One launch takes a block of UB rows y_u of U, with the numbers u = first .. first + UB - 1.
// V is the number of rows x_i that a vector instruction computes side by side.
// In:
//   first                          the number u of the launch's first row of U
//   group0, groups                 the launch takes the rows i of X from group0 * V to (group0 + groups) * V - 1
//   base                           row i of X has the index i - base in S and in c
//   size, starts_of, ends, rows_of, values    the inverted index of X (see below)
//   columns                        the number of columns of the inverted index
//   rows, indptr, indices, data    the rows y_u: y_u is row rows[u] of a CSR matrix
//   xx, norms                      squared norms: xx[i] = |x_i|^2, norms[rows[u]] = |y_u|^2
//   dense                          the densely stored columns of X
//   dense_columns                  the number of densely stored columns
//   block                          the densely stored columns of the launch's rows of U (dense_columns_simd.mako)
//   count                          count[0] is the number of rows of U
//   slot                           slot[u] is the row of S for the kernel values of y_u
//   D                              only with the macro UPDATE: D[p][u] is the weight of row y_u in problem p
// Out:
//   S    S[slot[u]][i - base] = K[u][i]
//   c    only with the macro UPDATE: the kernel adds sum_u D[p][u] * K[u][i] to c[p][i - base]
// The inverted index has blocks of ``size`` rows of X. The entries of each block b are sorted by column, and within a
// column by row. Entry e has the value values[e], and belongs to row b * size + rows_of[e] of X (invert.cl). The block
// begins with entry number start = starts_of[b * size]. ends[b][k] is the number of the block's entries in the columns
// before k. So column k has the entries
//   start + ends[b][k] <= e < start + ends[b][k + 1]
// Three kernels run one after another:
//   gram            sets S[slot[u]][i - base] to the sum of x_i[j] * y_u[j] over the densely stored columns j
//                   (dense_columns_simd.mako). A work-item takes V rows x_i. Without densely stored columns, gram does
//                   not run, and match begins with S = 0.
//   match           adds x_i[k] * y_u[k] to S[slot[u]][i - base] for each column k in which both rows have a sparse
//                   entry. Then match replaces each sum by the kernel value. A work-item takes one row y_u and one
//                   block of rows x_i, so that the sums of the work-item stay in the core's cache.
//   add_weighted    adds the weighted sums of kernel values to c. It runs only with UPDATE. A work-item takes WEIGHED
//                   rows i.
<%def name="parameters()">\
const int group0, const int groups, const int base, global const long *restrict indptr,
    global const INDEX *restrict indices, global const real *restrict data, global const real *restrict dense,
    const int dense_columns, global const int *restrict rows, global const real *restrict xx,
    global const real *restrict norms, const int first, global const int *restrict count,
    global const real *restrict block, const int n_pad, const int size, const int columns,
    global const long *restrict starts_of, global const int *restrict ends, global const ushort *restrict rows_of,
    global const real *restrict values
    STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS\
</%def>\
kernel EXPLICIT void gram(
    ${parameters()}) {
  const size_t row = (size_t)(group0 + get_global_id(0)) * V, to = row - base;
  const int total = count[0];
  if (first >= total) return;
  real tile[UB * V] __attribute__((aligned(128)));
<%include file="dense_columns_simd.mako"/>
  for (int v = 0; v < UB / V; ++v) {
    realv k[V];
#pragma unroll
    for (int r = 0; r < V; ++r) k[r] = loadv(v * V + r, tile);
    transpose(k);
    for (int u = 0; u < min(V, total - first - v * V); ++u) {
      const int s = slot[first + v * V + u];
      storev(k[u], 0, STORED_ROW(s) + to);
    }
  }
}

// Return the first index k in h .. stop - 1 whose row number at[k] is at least ``row``, or ``stop`` if there is none.
// The row numbers at[h], at[h + 1], ... ascend, so the search is by bisection.
inline int from_row(global const ushort *restrict at, int h, int stop, const int row) {
  while (h < stop) {
    const int middle = h + (stop - h) / 2;
    if (at[middle] < row)
      h = middle + 1;
    else
      stop = middle;
  }
  return h;
}

kernel EXPLICIT void match(
    ${parameters()}) {
  int which = 0;  // the item's number with its bits in reverse order, so that right-hand rows are spread over the cores
  for (int bit = 1; bit < UB; bit <<= 1) which = 2 * which + ((get_global_id(0) & bit) != 0);
  const int u = first + which;
  if (u >= count[0]) return;
  // This item takes the rows low .. high - 1 of X, the part of block b that belongs to the launch.
  const int b = (int)((long)group0 * V / size + get_global_id(0) / UB), begin = b * size;
  const int low = max(begin, group0 * V), high = min(begin + size, (group0 + groups) * V), valid = high - low;
  const int shift = low - begin;
  const int end_row = shift + valid;
  const int s = slot[u], i = rows[u];
  global real *restrict sum = STORED_ROW(s) + (low - base);
  if (!dense_columns)
    for (int r = 0; r < valid; r += V) storev((realv)(real)0, 0, sum + r);
  global const int *restrict end = ends + (size_t)b * (columns + 2);
  global const ushort *restrict at = rows_of + starts_of[begin];
  global const real *restrict x = values + starts_of[begin];
  const long last = i >= 0 ? indptr[i + 1] : 0;
  for (long e = i >= 0 ? indptr[i] : 0; e < last; ++e) {
    FETCH(end + indices[min(e + 2 * AHEAD, last - 1)]);
    const int next = e + AHEAD < last ? indices[e + AHEAD] : columns;
    if (next < columns) {
      const int from = end[next], lines = min(end[next + 1] - from, LINES * 64 / (int)sizeof(real));
      for (int h = 0; h < lines; h += 64 / sizeof(real)) FETCH(x + from + h);
      for (int h = 0; h < lines; h += 64 / sizeof(ushort)) FETCH(at + from + h);
    }
    const int k = indices[e];
    if (k >= columns) continue;  // no row has this column
    const real y = data[e];
    const int stop = end[k + 1];
    int h = end[k];
    if (shift) h = from_row(at, h, stop, shift);
    for (; h + 4 <= stop && at[h + 3] < end_row; h += 4) {
      const int r0 = at[h] - shift, r1 = at[h + 1] - shift, r2 = at[h + 2] - shift, r3 = at[h + 3] - shift;
      const real s0 = fma(x[h], y, sum[r0]), s1 = fma(x[h + 1], y, sum[r1]);
      const real s2 = fma(x[h + 2], y, sum[r2]), s3 = fma(x[h + 3], y, sum[r3]);
      sum[r0] = s0, sum[r1] = s1, sum[r2] = s2, sum[r3] = s3;
    }
    for (; h < stop && at[h] < end_row; ++h) sum[at[h] - shift] = fma(x[h], y, sum[at[h] - shift]);
  }
  const realv y2 = (realv)(i >= 0 ? norms[i] : (real)0);
  for (int r = 0; r < valid; r += V)
    storev(kernel_value(loadv(0, sum + r), loadv(0, xx + low + r), y2 KERNEL_ARGUMENTS), 0, sum + r);
}

#ifdef UPDATE
kernel EXPLICIT void add_weighted(
    ${parameters()}) {
  const int total = count[0], valid = min(UB, total - first), low = get_global_id(0) * WEIGHED;
  const int pieces = min(WEIGHED, groups * V - low) / V;
  const size_t to = (size_t)group0 * V + low - base;
  for (int p = 0; p < problems; ++p) {
    global wide *restrict cp = c + (size_t)p * n + to;
    global const wide *restrict Dp = D + (size_t)p * capacity + first;
    for (int u = 0; u < valid; ++u) {
      const int s = slot[first + u];
      global const real *restrict k = STORED_ROW(s) + to;
      for (int v = 0; v < pieces; ++v) storev(fma(to_widev(loadv(v, k)), (widev)Dp[u], loadv(v, cp)), v, cp);
    }
  }
}
#endif
