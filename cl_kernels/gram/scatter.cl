// Working rows of a list, in CSR, as a block of UB = get_global_size(0) vectors with only the features that they have:
//   u[j] = block[line UB + u - first],  line = place[j] - base,  uu[u] = |u|^2,  u = first .. first + UB - 1
// A place of base or less is of an earlier block: line 0, which is zero, stands for features that none of them has. Two
// passes in turn, ranges (UB, S), item (u, s) on the entries s, s + S, ... of row rows[first + u]; u beyond count[0] and
// rows[u] < 0 stay zero:
//   mark   gives every feature a line and clears it: its own number, or that of one of its entries among all of theirs,
//          whichever needs fewer lines (by_entry)
//   fill   values and norms
// Columns that the rows store whole have the lines 1 .. dense_columns, and all others stand after them:
//   spread   block[(1 + j) UB + u - first] = dense[rows[u] dense_columns + j]
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
  long before = 1 - indptr[i];  // entries of the rows in front of this one, and the first of these lines
  for (int k = first; k < at; ++k)
    if (rows[k] >= 0) before += indptr[rows[k] + 1] - indptr[rows[k]];
  ENTRIES(e) {
    volatile global int *here = place + indices[e];
    const int line = dense_columns + (by_entry ? (int)(before + e) : 1 + indices[e]);
    if (atomic_max(here, base) > base || atomic_cmpxchg(here, base, base + line) != base) continue;  // another one's
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
