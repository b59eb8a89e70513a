// Complete the matrix Q (W, W) of kernel values among the rows of a working set, by copies within Q.
// When the working set changes, its last ``reused`` = W / 2 rows stay, and become its first rows. Three steps then
// compute the new Q:
//   1. carry copies the kernel values among the rows that stay, from the lower right quarter of Q to the upper left:
//        Q[k][v] = Q[reused + k][reused + v] for k < reused and v < reused
//   2. Another kernel computes Q[k][v] for v >= reused and (k < reused or v <= k).
//   3. mirror copies all other values, by symmetry:
//        Q[k][v] = Q[v][k] for k >= reused and (v < reused or v > k)
// If no rows stay, ``reused`` is 0, and step 1 is left out.
// Dimension 2 of a launch of mirror is the number of matrices Q, which follow each other in memory.
// Work-items in SIMD style (on CPUs): an item of carry copies SIDE rows. An item of mirror reads a block of SIDE x SIDE
// values, and then writes them. If reads and writes alternated, rows of Q could evict each other from the cache.
// Work-group style: each work-group copies a block of SIDE x SIDE values. mirror transposes the block in local memory,
// so that consecutive items read and write consecutive addresses.
#define SIDE 16

#ifdef SIMD
kernel EXPLICIT void carry(const int W, const int reused, global real *restrict Q) {
  const int k0 = get_global_id(1) * SIDE;
  for (int k = k0; k < k0 + SIDE; ++k) {
    global const real *restrict from = Q + (size_t)(reused + k) * W + reused;
    global real *restrict to = Q + (size_t)k * W;
    for (int v = 0; v < reused / V; ++v) storev(loadv(v, from), v, to);
  }
}

kernel EXPLICIT void mirror(const int W, const int reused, global real *restrict Q) {
  Q += get_global_id(2) * W * W;
  const int k0 = reused + get_global_id(1) * SIDE, v0 = get_global_id(0) * SIDE;
  if (v0 >= reused && v0 < k0) return;
  real square[SIDE][SIDE];
  for (int a = 0; a < SIDE; ++a)
    for (int b = 0; b < SIDE; ++b) square[a][b] = Q[(size_t)(v0 + a) * W + k0 + b];
  for (int b = 0; b < SIDE; ++b)
    for (int a = v0 == k0 ? b + 1 : 0; a < SIDE; ++a) Q[(size_t)(k0 + b) * W + v0 + a] = square[a][b];
}
#else
#define OF_SQUARE __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
kernel OF_SQUARE void carry(const int W, const int reused, global real *restrict Q) {
  const size_t k = get_global_id(1), v = get_global_id(0);
  Q[k * W + v] = Q[(reused + k) * W + reused + v];
}

kernel OF_SQUARE void mirror(const int W, const int reused, global real *restrict Q) {
  Q += get_global_id(2) * W * W;
  const int k0 = reused + get_group_id(1) * SIDE, v0 = get_group_id(0) * SIDE, x = get_local_id(0), y = get_local_id(1);
  local real square[SIDE][SIDE + 1];
  if (v0 >= reused && v0 < k0) return;
  square[y][x] = Q[(size_t)(v0 + y) * W + k0 + x];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (v0 != k0 || x > y) Q[(size_t)(k0 + y) * W + v0 + x] = square[x][y];
}
#endif
