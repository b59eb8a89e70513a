// Transpose a block of h x w numbers of a matrix:  to[c * ld + r] = from[r * ld + c],   r < h,  c < w
// A row has ld numbers in both matrices.
// Work-items: a work-group of SIDE x SIDE / 4 items transposes SIDE x SIDE numbers through local memory, so that
// consecutive items read and write consecutive addresses.
// SIMD style (on CPUs): the global size is (w / V, h / V), rounded up. An item transposes V x V numbers in registers.
#define SIDE 16
#ifdef SIMD
kernel EXPLICIT void transpose_tile(const int h, const int w, const long ld, global const real *restrict from,
                          global real *restrict to) {
  const int c0 = get_global_id(0) * V, r0 = get_global_id(1) * V;
  if (c0 + V <= w && r0 + V <= h) {
    realv x[V];
#pragma unroll
    for (int r = 0; r < V; ++r) x[r] = loadv(0, from + (r0 + r) * ld + c0);
    transpose(x);
#pragma unroll
    for (int c = 0; c < V; ++c) storev(x[c], 0, to + (c0 + c) * ld + r0);
    return;
  }
  for (int c = c0; c < min(c0 + V, w); ++c)
    for (int r = r0; r < min(r0 + V, h); ++r) to[c * ld + r] = from[r * ld + c];
}
#else
kernel __attribute__((reqd_work_group_size(SIDE, SIDE / 4, 1))) void transpose_tile(
    const int h, const int w, const long ld, global const real *restrict from, global real *restrict to) {
  local real x[SIDE][SIDE + 1];
  const int c0 = get_group_id(0) * SIDE, r0 = get_group_id(1) * SIDE, i = get_local_id(0);
  for (int r = get_local_id(1); r < SIDE; r += SIDE / 4)
    if (r0 + r < h && c0 + i < w) x[r][i] = from[(r0 + r) * ld + c0 + i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int c = get_local_id(1); c < SIDE; c += SIDE / 4)
    if (c0 + c < w && r0 + i < h) to[(c0 + c) * ld + r0 + i] = x[i][c];
}
#endif
