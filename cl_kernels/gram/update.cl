// f[p][i] += sum_h D[p][h] K[slot[h]][i] over the rows of K that are in the row cache.
// A work-item owns BLOCK rows (vector shape: a piece of each stored row that is long enough for the prefetcher, its
// sums in the first-level cache) or one row (group shape: consecutive items on consecutive addresses).
#ifndef BLOCK
#define BLOCK 512  // a multiple of V in the vector shape, 1 in the group shape
#endif

kernel EXPLICIT void update(SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict slot, const int problems,
                   const long n, global wide *restrict f, global const wide *restrict D, const int room,
                   global const int *restrict count) {
  const size_t begin = (size_t)get_global_id(0) * BLOCK;
  const int hits = count[0];
  if (begin >= n) return;
#ifdef VECTOR
  const int pieces = (int)min((size_t)BLOCK, n - begin) / V;
  for (int p = 0; p < problems; ++p) {
    global wide *restrict to = f + (size_t)p * n + begin;
    global const wide *restrict Dp = D + (size_t)p * room;
    int h = 0;
    for (; h + 4 <= hits; h += 4) {
      const int s0 = slot[h], s1 = slot[h + 1], s2 = slot[h + 2], s3 = slot[h + 3];
      global const real *k0 = STORED_ROW(s0) + begin, *k1 = STORED_ROW(s1) + begin;
      global const real *k2 = STORED_ROW(s2) + begin, *k3 = STORED_ROW(s3) + begin;
      const widev d0 = Dp[h], d1 = Dp[h + 1], d2 = Dp[h + 2], d3 = Dp[h + 3];
      for (int v = 0; v < pieces; ++v) {
        widev sum = fma(to_widev(loadv(v, k0)), d0, loadv(v, to));
        sum = fma(to_widev(loadv(v, k1)), d1, sum);
        sum = fma(to_widev(loadv(v, k2)), d2, sum);
        storev(fma(to_widev(loadv(v, k3)), d3, sum), v, to);
      }
    }
    for (; h < hits; ++h) {
      const int s = slot[h];
      global const real *k = STORED_ROW(s) + begin;
      for (int v = 0; v < pieces; ++v) storev(fma(to_widev(loadv(v, k)), (widev)Dp[h], loadv(v, to)), v, to);
    }
  }
#else
  for (int p = 0; p < problems; ++p) {
    wide sum = f[(size_t)p * n + begin];
    for (int h = 0; h < hits; ++h) {
      const int s = slot[h];
      sum = wide_add(sum, wide_mul(wide_of(STORED_ROW(s)[begin]), D[(size_t)p * room + h]));
    }
    f[(size_t)p * n + begin] = sum;
  }
#endif
}
