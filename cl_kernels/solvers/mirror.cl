// Complete the symmetric matrix Q (W, W) of kernel values among the rows of a working set, by copies within Q.
// When half of the working set is replaced, the kernel values among the rows that stay remain in Q. ``first`` is the index
// of the first new row, and the launch decides how many rows are new. Another kernel has computed Q[k][v] for all new
// rows v, except for some new rows k < v. Then mirror sets for all new rows k:
//   Q[k][v] = Q[v][k]   for the rows v that are not new, and for new rows v > k
// Dimension 2 of a launch is the number of matrices Q, which follow each other in memory.
// Work-items in SIMD style (on CPUs): an item reads a block of SIDE x SIDE values, and then writes them. If reads and
// writes alternated, rows of Q could evict each other from the cache.
// Work-group style: each work-group transposes a block of SIDE x SIDE values in local memory, so that consecutive items
// read and write consecutive addresses.
#define SIDE 16

#ifdef SIMD
kernel EXPLICIT void mirror(const int W, const int first, global real *restrict Q) {
  Q += get_global_id(2) * W * W;
  const int k0 = first + get_global_id(1) * SIDE, v0 = get_global_id(0) * SIDE;
  if (v0 >= first && v0 < k0) return;
  real square[SIDE][SIDE];
  for (int a = 0; a < SIDE; ++a)
    for (int b = 0; b < SIDE; ++b) square[a][b] = Q[(size_t)(v0 + a) * W + k0 + b];
  for (int b = 0; b < SIDE; ++b)
    for (int a = v0 == k0 ? b + 1 : 0; a < SIDE; ++a) Q[(size_t)(k0 + b) * W + v0 + a] = square[a][b];
}
#else
kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void mirror(const int W, const int first,
                                                                        global real *restrict Q) {
  Q += get_global_id(2) * W * W;
  const int k0 = first + get_group_id(1) * SIDE, v0 = get_group_id(0) * SIDE, x = get_local_id(0), y = get_local_id(1);
  local real square[SIDE][SIDE + 1];
  if (v0 >= first && v0 < k0) return;
  square[y][x] = Q[(size_t)(v0 + y) * W + k0 + x];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (v0 != k0 || x > y) Q[(size_t)(k0 + y) * W + v0 + x] = square[x][y];
}
#endif
