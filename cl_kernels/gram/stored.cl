// Copy, complete and multiply stored rows of the kernel matrix K (n, n), with three OpenCL kernels.
// Row i of K is stored in slot slot_of[i], or in slot i if slot_of is null. slot_of[i] = -1 means that row i is not
// stored. The macro STORED_ROW (common.cl) computes the address of a slot.
// gather_tile copies the kernel values among the rows of K listed in ``rows`` to a matrix Q (capacity, capacity):
//   Q[u][v] = K[rows[u]][rows[v]],   or 0 if rows[u] or rows[v] is -1 or row rows[u] is not stored
// Columns v < reused of Q are not changed. Of the other columns, gather_tile writes
//   all values, if ``symmetric`` is 0
//   all values of the rows u < reused, and the values with v <= u of the other rows, if ``symmetric`` is 1. The kernel
//     ``mirror`` (carry.cl) then completes the rows u >= reused by Q[u][v] = Q[v][u].
// Work-items: V items copy one row of Q, and write consecutive values. In SIMD style one item copies a row.
// mirror_rows completes rows of K by symmetry. Row u has only its first ends[u] columns stored:
//   K[u][v] = K[v][u] for v >= ends[u]
// ends[u] is n or a multiple of SIDE = 16. Every row v must have at least its columns 0 .. v stored. The last n % SIDE
// rows must have all columns stored.
// Work-items (only in SIMD style): an item completes SIDE rows u. It copies blocks of SIDE x SIDE values, so that it
// reads and writes whole cache lines.
// add_between adds products of kernel values and factors D[k] to sums c. Column right[k] of K belongs to D[k]:
//   c[u] += sum_k K[rows[u]][right[k]] * D[k],   over k < count[0], for all u with rows[u] >= 0
// Row i of K must be stored in slot i. Work-items: one for each u.
#define SIDE 16

kernel EXPLICIT void gather_tile(SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict slot_of,
                          global const int *restrict rows, const int capacity, const int reused,
                          const int symmetric, global real *restrict Q) {
  const int u = get_global_id(1), row = rows[u], s = row >= 0 && slot_of ? slot_of[row] : row;
  const int end = symmetric && u >= reused ? u + 1 : capacity;
  global real *restrict to = Q + (size_t)u * capacity;
  global const real *restrict from = STORED_ROW(max(s, 0));
  for (int v = reused + get_global_id(0); v < end; v += get_global_size(0)) {
    const int column = rows[v];
    to[v] = s >= 0 && column >= 0 ? from[max(column, 0)] : (real)0;
  }
}

#ifdef SIMD
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

kernel EXPLICIT void add_between(SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict rows,
                            global const int *restrict right, global const int *restrict count,
                            global const wide *restrict D, global wide *restrict c) {
  const int u = get_global_id(0), row = rows[u];
  if (row < 0) return;
  global const real *restrict from = STORED_ROW(row);
  wide sum = c[u];
  for (int k = 0; k < count[0]; ++k) sum = wide_add(sum, wide_mul(wide_of(from[right[k]]), D[k]));
  c[u] = sum;
}
