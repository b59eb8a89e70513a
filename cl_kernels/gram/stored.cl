// Copy, complete and multiply stored rows of the kernel matrix K (n, n) of n rows. A slot is the place of one stored
// row of K. The macro STORED_ROW (common.cl) computes the address of a slot. Three OpenCL kernels:
//   gather_tile   copies the kernel values K[i][j] for all pairs i, j of some rows to a smaller matrix
//   mirror_rows   copies K[v][u] to K[u][v], where row v has the value and row u lacks it
//   add_between   adds sums of the form sum_j K[i][j] * D[j], with factors D[j], to the numbers of an array
#define SIDE 16

// Copy kernel values from the stored kernel matrix K to a smaller matrix Q (capacity, capacity):
//   Q[u][v] = K[rows[u]][rows[v]]
//   Q[u][v] = 0 instead if rows[u] is -1, if rows[v] is -1, or if row rows[u] of K is not stored
// in:  rows          rows[u] is the row number in K of row u of Q and of column u of Q. -1 stands for no row.
// in:  slot_of       A slot is the place of one stored row. Row i of K is stored in slot slot_of[i]. If slot_of[i] is
//                    -1, row i is not stored. If the pointer slot_of is null, row i is stored in slot i.
// in:  first, end    Only the columns first .. end - 1 of Q are written.
// in:  symmetric     If symmetric is 1, values Q[u][v] with first <= u < v are not written either, for u < end. The
//                    caller then launches the kernel ``mirror`` (mirror.cl), which completes the rows first .. end - 1.
// Dimension 2 of the launch is the number of matrices Q, each with its own ``rows``. They follow each other in memory.
// Work-items: the index in dimension 1 is the row u of Q. All work-items with the same index in dimension 1 copy this
// row together, and neighbouring work-items write consecutive values. A single work-item copies a row on CPUs.
kernel EXPLICIT void gather_tile(SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict slot_of,
                          global const int *restrict rows, const int capacity, const int first, const int end,
                          const int symmetric, global real *restrict Q) {
  rows += get_global_id(2) * capacity, Q += get_global_id(2) * capacity * capacity;
  const int u = get_global_id(1), row = rows[u], s = row >= 0 && slot_of ? slot_of[row] : row;
  const int stop = symmetric && u >= first && u < end ? u + 1 : end;
  global real *restrict to = Q + (size_t)u * capacity;
  global const real *restrict from = STORED_ROW(max(s, 0));
  for (int v = first + get_global_id(0); v < stop; v += get_global_size(0)) {
    const int column = rows[v];
    to[v] = s >= 0 && column >= 0 ? from[max(column, 0)] : (real)0;
  }
}

#ifdef SIMD
// Complete stored rows of the symmetric kernel matrix K (n, n). Row u has only its first ends[u] values. The values in
// later columns v are copied from the rows v:
//   K[u][v] = K[v][u] for v >= ends[u]
// in:  slot_of   row u of K is stored in slot slot_of[u]. A slot is the place of one stored row.
// in:  ends      ends[u] is n or a multiple of SIDE = 16, and greater than u. In the last n % SIDE rows it is n.
// Work-items: an item completes SIDE rows u. It copies blocks of SIDE x SIDE values, so that it reads and writes whole
// cache lines.
kernel EXPLICIT void mirror_rows(SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict slot_of,
                             global const int *restrict ends, const int n) {
  const int u0 = get_global_id(0) * SIDE;
  int first = n;
  for (int a = 0; a < SIDE; ++a) first = min(first, ends[u0 + a]);
  for (int v0 = first; v0 < n; v0 += SIDE) {
    const int wide = min(SIDE, n - v0);
    real square[SIDE][SIDE];
    for (int b = 0; b < wide; ++b) {
      const int s = slot_of[v0 + b];
      global const real *restrict from = STORED_ROW(max(s, 0)) + u0;
      for (int a = 0; a < SIDE; ++a) square[a][b] = s >= 0 ? from[a] : (real)0;
    }
    for (int a = 0; a < SIDE; ++a) {
      if (ends[u0 + a] > v0) continue;
      global real *restrict to = STORED_ROW(slot_of[u0 + a]) + v0;
      for (int b = 0; b < wide; ++b) to[b] = square[a][b];
    }
  }
}
#endif

// Add products of kernel values and factors D[k] to the sums c:
//   c[u] += sum_k K[rows[u]][right[k]] * D[k],   over k < count[0], for all u with rows[u] >= 0
// All rows of the kernel matrix K are stored: row i in slot i. c[u] belongs to row rows[u] of K. If rows[u] is
// negative, c[u] belongs to no row, and stays unchanged. D[k] belongs to column right[k] of K.
// Several such problems follow each other in memory. Each has as many sums c as dimension 0 has work-items, and
// ``capacity`` factors D. Its count[0] is MATRICES ints after that of the problem before.
// Work-items: one for each u in dimension 0, and one for each problem in dimension 1.
kernel EXPLICIT void add_between(SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict rows,
                            global const int *restrict right, const int capacity, global const int *restrict count,
                            global const wide *restrict D, global wide *restrict c) {
  const size_t p = get_global_id(1), u = p * get_global_size(0) + get_global_id(0);
  const int row = rows[u], total = count[p * MATRICES];
  if (row < 0) return;
  right += p * capacity, D += p * capacity;
  global const real *restrict from = STORED_ROW(row);
  wide sum = c[u];
  for (int k = 0; k < total; ++k) sum = wide_add(sum, wide_mul(wide_of(from[right[k]]), D[k]));
  c[u] = sum;
}
