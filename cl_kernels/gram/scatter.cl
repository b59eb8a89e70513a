// Write UB rows of a matrix U as a dense block, for a product K(X, U). The rows are u = first .. first + UB - 1 of U.
// Each row of U is a copy of a row of a stored matrix. Some features of the stored matrix are in a dense array: the
// dense features k = 0 .. dense_columns - 1. The other features are in CSR: the CSR features j = 0, 1, 2, ...
// The block is divided into lines of UB values. A line has the values of one feature in the UB rows:
//   line 0                      zeros, for all CSR features that have no entry in the UB rows. The host sets line 0.
//   lines 1 .. dense_columns    the dense features: dense feature k has line 1 + k
//   all later lines             CSR features that have an entry in the UB rows: at most one CSR feature in each line
// in:      rows, count             row u of U is row rows[u] of the stored matrix. Row u of U is zero if rows[u] < 0 or
//                                  u >= count[0].
// in:      indptr, indices, data   the CSR features of the stored matrix
// in:      dense     the dense features: dense feature k of row i is dense[i * dense_columns + k]
// in:      xx        a number for each row of the stored matrix, such as its squared norm
// in, out: line_of   an integer for each CSR feature j. If line_of[j] > base, feature j has the line line_of[j] - base.
//                    Otherwise feature j has line 0.
// in:      base      an integer. At the start line_of[j] <= base for all j, so all CSR features have line 0.
// out:     block     block[line * UB + u - first] is the value, in row u of U, of the feature with this line
// out:     uu        uu[u] = xx[rows[u]], or 0 if row u of U is zero
// Before the next block, the host adds the number of lines of a block to ``base``. All CSR features then have line 0
// again, so line_of need not be cleared.
// Three kernels run one after another:
//   mark        gives a line to each CSR feature j that has an entry in the UB rows, and sets this line to zero.
//               If by_entry is 0, feature j gets the line 1 + dense_columns + j. If by_entry is 1, the CSR entries of
//               the UB rows are numbered e = 1, 2, 3, ... The entry of feature j that is processed first, with number
//               e, gives feature j the line dense_columns + e. Other entries of feature j give no line. The block then
//               needs at most one line for each CSR entry.
//   fill        writes the values of the CSR entries to their features' lines, and writes uu
//   copy_dense  writes the values of dense feature k to line 1 + k
// Work-items: each row of the block has S items s = 0 .. S - 1, where S is the launch's global size in dimension 1.
// Item (l, s) handles row u = first + l of U. It takes the row's CSR entries s, s + S, s + 2 * S, ..., counted
// from 0, in ``mark`` and ``fill``. It takes the row's dense features k = s, s + S, ... in ``copy_dense``.
#ifndef INDEX
#define INDEX int
#endif
#define UB get_global_size(0)
#define ROW const int at = first + get_global_id(0), i = at < count[0] ? rows[at] : -1;
#define ENTRIES(e) for (long e = indptr[i] + get_global_id(1); e < indptr[i + 1]; e += get_global_size(1))

kernel EXPLICIT void mark(global const long *restrict indptr, global const INDEX *restrict indices,
                 global const int *restrict count, global const int *restrict rows, const int first, const int base,
                 const int dense_columns, const int by_entry, volatile global int *line_of, global real *restrict block) {
  ROW
  if (i < 0) return;
  // before + e is the number of CSR entry e among the entries of all rows of the block, counted from 1.
  long before = 1 - indptr[i];
  for (int k = first; k < at; ++k)
    if (rows[k] >= 0) before += indptr[rows[k] + 1] - indptr[rows[k]];
  ENTRIES(e) {
    volatile global int *entry = line_of + indices[e];
    const int line = dense_columns + (by_entry ? (int)(before + e) : 1 + indices[e]);
    // Skip a feature to which another work-item has given a line.
    if (atomic_max(entry, base) > base || atomic_cmpxchg(entry, base, base + line) != base) continue;
    global real *to = block + (size_t)line * UB;
#ifdef SIMD
    for (size_t u = 0; u < UB; u += V) storev((realv)(real)0, 0, to + u);
#else
    for (size_t u = 0; u < UB; ++u) to[u] = 0;
#endif
  }
}

kernel EXPLICIT void fill(global const long *restrict indptr, global const INDEX *restrict indices,
                 global const real *restrict data, global const real *restrict xx, global const int *restrict count,
                 global const int *restrict rows, const int first, const int base, global const int *restrict line_of,
                 global real *restrict block, global real *restrict uu) {
  ROW
  uu[at] = i >= 0 ? xx[i] : (real)0;
  if (i < 0) return;
  ENTRIES(e) block[(size_t)(line_of[indices[e]] - base) * UB + get_global_id(0)] = data[e];
}

kernel EXPLICIT void copy_dense(global const real *restrict dense, const int dense_columns, global const int *restrict count,
                   global const int *restrict rows, const int first, global real *restrict block) {
  ROW
  global const real *restrict x = dense + (size_t)max(i, 0) * dense_columns;
  for (int j = get_global_id(1); j < dense_columns; j += get_global_size(1))
    block[(size_t)(1 + j) * UB + get_global_id(0)] = i >= 0 ? x[j] : (real)0;
}
