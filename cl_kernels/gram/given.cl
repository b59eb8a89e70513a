// Products with a kernel matrix that is on the device whole, row by row as the row cache keeps rows (slot = row).
//   pick    Q[offset + u][v] = K[rows[u]][rows[v]] for all u and v >= known, 0 where either row is -1
//   answer  c[u] += sum_k K[rows[u]][right[k]] D[k] over the ``count`` first k, for rows[u] >= 0
// pick: ranges (V lanes, capacity), item (l, u) on every V-th column from l on (group shape: consecutive items write
// consecutive values), or (1, capacity) in the vector shape. answer: an item for each u.
kernel EXPLICIT void pick(SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict rows,
                          const int capacity, const int known, const int offset,
                          global real *restrict Q) {
  const int u = get_global_id(1), row = rows[u];
  global real *restrict to = Q + (size_t)(offset + u) * capacity;
  global const real *restrict from = STORED_ROW(max(row, 0));
  for (int v = known + get_global_id(0); v < capacity; v += get_global_size(0)) {
    const int column = rows[v];
    to[v] = row >= 0 && column >= 0 ? from[max(column, 0)] : (real)0;
  }
}

kernel EXPLICIT void answer(SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict rows,
                            global const int *restrict right, global const int *restrict count,
                            global const wide *restrict D, global wide *restrict c) {
  const int u = get_global_id(0), row = rows[u];
  if (row < 0) return;
  global const real *restrict from = STORED_ROW(row);
  wide sum = c[u];
  for (int k = 0; k < count[0]; ++k) sum = wide_add(sum, wide_mul(wide_of(from[right[k]]), D[k]));
  c[u] = sum;
}
