// Write UB rows of U as a dense block, for a product K(X, U). Row u of U, called y_u, is a row of a CSR matrix. The
// block has the rows u = first .. first + UB - 1.
// The block is divided into lines of UB values. A line has the values y_u[j] of one feature j for the UB rows. Features
// without an entry in the UB rows share line 0, whose values are zero.
// in:      rows      y_u is CSR row rows[u]. It is zero if rows[u] < 0 or u >= count[0].
// in:      indptr, indices, data, xx   the CSR matrix, and the squared norms of its rows
// in:      dense     values of dense_columns further columns, which are stored for every row and are not in CSR
// in:      base      a number that is not less than any line_of[j] from earlier blocks
// in, out: line_of   line_of[j] = base + (line of feature j). Without a line, line_of[j] is at most ``base``.
// out:     block     y_u[j] = block[line * UB + u - first],   with line = max(line_of[j] - base, 0)
// out:     uu        uu[u] = |y_u|^2
// Column k of ``dense`` has line 1 + k. The lines of the CSR features follow.
// Three kernels run one after another:
//   mark    gives a line to each CSR feature j that has an entry in the UB rows, and sets the line to zero:
//             by_entry = 0: line 1 + dense_columns + j
//             by_entry = 1: line dense_columns + e. The entries of the UB rows are numbered 1, 2, 3, ..., and e is the
//               number of one entry of feature j. The host sets by_entry = 1 if ``block`` has memory for fewer lines
//               than features.
//   fill    writes the entries' values to their lines, and the squared norms to uu
//   copy_dense  block[(1 + k) * UB + u - first] = dense[rows[u] * dense_columns + k],   for columns k of ``dense``
// Launch (UB, S): work-item (l, s) takes the entries s, s + S, ... of row u = first + l of U.
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
