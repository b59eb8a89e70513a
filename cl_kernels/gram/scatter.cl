// Fill a panel's block with UB = get_global_size(0) right-hand rows from CSR, storing only the features that they have:
//   u[j] = block[line UB + u - first],   line = place[j] - base,   uu[u] = |u|^2,   u = first .. first + UB - 1
// Line 0 is zero. A place of at most base comes from an earlier block and means line 0: no right-hand row has the
// feature.
// Launch (UB, S): work-item (u, s) takes the entries s, s + S, ... of row rows[first + u]. Columns of the block stay
// zero for rows[u] < 0 and for u from count[0] on. Kernels run in turn:
//   mark    gives each feature a line and zeroes it. The line is the feature's number, or with by_entry the number of
//     its first-come entry among all entries of the block; the host chooses whichever needs fewer lines.
//   fill    writes values and norms
//   spread  block[(1 + j) UB + u - first] = dense[rows[u] dense_columns + j], for columns that are stored whole
// Whole columns have the lines 1 .. dense_columns, and all other features stand after them.
#ifndef INDEX
#define INDEX int
#endif
#define UB get_global_size(0)
#define ROW const int at = first + get_global_id(0), i = at < count[0] ? rows[at] : -1;
#define ENTRIES(e) for (long e = indptr[i] + get_global_id(1); e < indptr[i + 1]; e += get_global_size(1))

kernel EXPLICIT void mark(global const long *restrict indptr, global const INDEX *restrict indices,
                 global const int *restrict count, global const int *restrict rows, const int first, const int base,
                 const int dense_columns, const int by_entry, volatile global int *place, global real *restrict block) {
  ROW
  if (i < 0) return;
  // index that makes before + e the line of entry e among the entries of all rows up to this one
  long before = 1 - indptr[i];
  for (int k = first; k < at; ++k)
    if (rows[k] >= 0) before += indptr[rows[k] + 1] - indptr[rows[k]];
  ENTRIES(e) {
    volatile global int *here = place + indices[e];
    const int line = dense_columns + (by_entry ? (int)(before + e) : 1 + indices[e]);
    // another item has given this feature a line
    if (atomic_max(here, base) > base || atomic_cmpxchg(here, base, base + line) != base) continue;
    global real *to = block + (size_t)line * UB;
#ifdef VECTOR
    for (size_t u = 0; u < UB; u += V) storev((realv)(real)0, 0, to + u);
#else
    for (size_t u = 0; u < UB; ++u) to[u] = 0;
#endif
  }
}

kernel EXPLICIT void fill(global const long *restrict indptr, global const INDEX *restrict indices,
                 global const real *restrict data, global const real *restrict xx, global const int *restrict count,
                 global const int *restrict rows, const int first, const int base, global const int *restrict place,
                 global real *restrict block, global real *restrict uu) {
  ROW
  uu[at] = i >= 0 ? xx[i] : (real)0;
  if (i < 0) return;
  ENTRIES(e) block[(size_t)(place[indices[e]] - base) * UB + get_global_id(0)] = data[e];
}

kernel EXPLICIT void spread(global const real *restrict dense, const int dense_columns, global const int *restrict count,
                   global const int *restrict rows, const int first, global real *restrict block) {
  ROW
  global const real *restrict x = dense + (size_t)max(i, 0) * dense_columns;
  for (int j = get_global_id(1); j < dense_columns; j += get_global_size(1))
    block[(size_t)(1 + j) * UB + get_global_id(0)] = i >= 0 ? x[j] : (real)0;
}
