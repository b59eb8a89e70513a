// out[p][u] += sum_i K[u][i] w[first + i] t[p][i] over the rows i of a stored tile: the way back of K' (w * (K v)).
// Row u of the tile starts at K[u ld] and is read once, in order: by one work-item with explicit vectors (vector shape),
// or by a work-group with consecutive items on consecutive addresses and a tree in local memory (group shape).
// A range of (capacity, problems) work-items or work-groups. Sums are wide; their order does not depend on the device's.
kernel EXPLICIT void back(global const real *restrict K, const long ld, const int first, const int rows,
                          global const wide *restrict w, global const wide *restrict t, global const int *restrict count, const int capacity,
                          global wide *restrict out) {
  const int u = get_group_id(0), p = get_global_id(1);
  global const real *restrict k = K + (size_t)u * ld;
  global const wide *restrict tp = t + (size_t)p * ld;
  w += first;
#ifdef VECTOR
  if (u >= count[0]) return;
  widev sum = (widev)0;
  for (int v = 0; v < rows / V; ++v) sum = fma(to_widev(loadv(v, k)) * loadv(v, w), loadv(v, tp), sum);
  double total = 0;
  for (int z = 0; z < V; ++z) total += ((private double *)&sum)[z];
  out[(size_t)p * capacity + u] += total;
#else
  const int lid = get_local_id(0);
  local wide sums[WG];
  wide sum = wide_of(0);
  if (u < count[0])
    for (int i = lid; i < rows; i += WG) sum = wide_add(sum, wide_mul(wide_mul(wide_of(k[i]), w[i]), tp[i]));
  sums[lid] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = WG / 2; step > 0; step /= 2) {
    if (lid < step) sums[lid] = wide_add(sums[lid], sums[lid + step]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (lid == 0 && u < count[0]) out[(size_t)p * capacity + u] = wide_add(out[(size_t)p * capacity + u], sums[0]);
#endif
}
