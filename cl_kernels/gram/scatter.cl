// Write UB rows of U as a dense block, for a product K(X, U). Row u of U, called y_u, is a row of a CSR matrix. The
// block has the rows u = first .. first + UB - 1.
// The block is divided into lines of UB values. A line has the values y_u[j] of one feature j for the UB rows. Features
// without an entry in the UB rows share line 0, whose values are zero.
// in:      rows, count             y_u is row rows[u] of the CSR matrix, or zero if rows[u] < 0 or u >= count[0]
// in:      indptr, indices, data   the CSR matrix
// in:      xx        a number for each row of the CSR matrix, such as its squared norm
// in:      dense     dense_columns further features k of each row i, dense[i * dense_columns + k]. They are not in CSR.
// in:      base      a number. At the start, no number in line_of is larger.
// in, out: line_of   feature j has the line line_of[j] - base, or line 0 if line_of[j] <= base
// out:     block     y_u[j] = block[line * UB + u - first],   where ``line`` is the line of feature j
// out:     uu        uu[u] = xx[rows[u]], or 0 if y_u is zero
// Before the next block, the host adds the number of lines to ``base``. This gives line 0 to all features again, so
// line_of need not be cleared.
// Three kernels run one after another:
//   mark        gives a line to each CSR feature j that has an entry in the UB rows, and sets the line to zero. If
//               by_entry is 0, it is line 1 + dense_columns + j. Otherwise the entries of the UB rows are numbered
//               e = 1, 2, 3, ..., and the feature gets the line dense_columns + e of one of its entries. The block then
//               needs at most one line for each entry.
//   fill        writes the values of the CSR entries to their lines, and writes uu
//   copy_dense  writes column k of ``dense`` to line 1 + k
// Work-items: S for each row of the block. Item (l, s) takes the entries s, s + S, ... of row u = first + l of U.
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
