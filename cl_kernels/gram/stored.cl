// Copy, complete and multiply rows of the n x n kernel matrix K that are stored on the device.
// Row i of K is in slot slot_of[i], or in slot i if slot_of is null. A row without a slot has slot_of[i] = -1. A slot
// is a part of ``ld`` values of a buffer (slab) with slab_rows slots. STORED_ROW gives the address of a slot.
//   gather_tile  Q[u][v] = K[rows[u]][rows[v]] for v >= reused, or 0 if a row number is -1 or row rows[u] has no slot
//   mirror_rows  K[u][v] = K[v][u] for v >= ends[u]
//   add_between  c[u] += sum_k K[rows[u]][right[k]] * D[k] over k < count[0], for u with rows[u] >= 0
// gather_tile: Q is a tile of capacity x capacity values. Its first ``reused`` columns are left unchanged.
// With ``symmetric`` set, a row u >= reused gets only the columns v = reused .. u. The kernel ``mirror`` of carry.cl
// then fills in its other columns, since Q is symmetric.
// In work-group style, V work-items take a row u of Q (V is a constant of the device). Consecutive items write
// consecutive values. In SIMD style one work-item takes a whole row u.
// mirror_rows: only the first ends[u] columns of row u are stored before. ends[u] is n, or a multiple of SIDE = 16.
// Row v must have at least its columns 0 .. v. The last n % SIDE rows must have all columns.
// The kernel exists in SIMD style only, with one work-item for each SIDE rows u. The work-item copies blocks of K with
// SIDE x SIDE values, so that reads and writes take whole cache lines.
// add_between: right[k] are row numbers, and D[k] the factors of these rows. There is one work-item for each u.
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
