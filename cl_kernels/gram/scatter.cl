// Write UB rows of U as a dense block, for a product K(X, U). The rows come from a CSR matrix: row u of U, called y_u,
// is CSR row rows[u], or zero if rows[u] < 0 or u >= count[0]. The block has the rows u = first .. first + UB - 1.
// The block is divided into lines of UB values. Each feature j that has an entry in one of the UB rows gets a line of
// its own, with the values y_u[j] of the UB rows. All other features share line 0, which is zero:
//   y_u[j] = block[line * UB + u - first],   line = max(line_of[j] - base, 0),   uu[u] = |y_u|^2
// If feature j has a line in this block, line_of[j] is ``base`` plus the number of the line. For any other feature,
// line_of[j] is 0 or was set for an earlier block. The host increases ``base`` from block to block, so that all numbers
// of earlier blocks are at most ``base``.
// The rows can also have dense_columns columns outside CSR, with their values in the buffer ``dense``. Column k of
// ``dense`` has line 1 + k. The lines of the CSR features follow.
// Launch (UB, S): work-item (l, s) takes the entries s, s + S, ... of right-hand row first + l.
// Three OpenCL kernels run one after another. The host sets by_entry to 0 or 1, whichever needs fewer lines:
//   mark    gives a line to each feature that has an entry in the block's rows, and sets the line to zero. If by_entry
//     is 0, feature j has line 1 + dense_columns + j. If by_entry is 1, all CSR entries of the block's rows are
//     numbered 1, 2, 3, ..., and feature j has line dense_columns + e. Here e is the number of an entry of feature j.
//   fill    writes the entries' values to the lines, and the squared norms uu
//   copy_dense  block[(1 + k) * UB + u - first] = dense[rows[u] * dense_columns + k],   for columns k of ``dense``
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
