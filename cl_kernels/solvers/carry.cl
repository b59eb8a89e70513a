// The W x W tile Q = K(ws, ws) from one working set to the next, whose first half is the last one's second half.
//   carry   Q[k][v] = Q[kept + k][kept + v] for k, v < kept
//   mirror  Q[k][v] = Q[v][k] for k >= kept and v < kept or v > k, once the other side is there
// A work-item takes a square of SIDE x SIDE values: whole lines of the cache both ways.
#define SIDE 16

kernel EXPLICIT void carry(const int W, const int kept, global real *restrict Q) {
  const int k0 = get_global_id(1) * SIDE, v0 = get_global_id(0) * SIDE;
  for (int k = k0; k < k0 + SIDE; ++k)
    for (int v = v0; v < v0 + SIDE; ++v) Q[(size_t)k * W + v] = Q[(size_t)(kept + k) * W + kept + v];
}

kernel EXPLICIT void mirror(const int W, const int kept, global real *restrict Q) {
  const int k0 = kept + get_global_id(1) * SIDE, v0 = get_global_id(0) * SIDE;
  if (v0 >= kept && v0 < k0) return;
  for (int k = k0; k < k0 + SIDE; ++k)
    for (int v = v0 == k0 ? k + 1 : v0; v < v0 + SIDE; ++v) Q[(size_t)k * W + v] = Q[(size_t)v * W + k];
}
