// Add multiples of stored rows of the kernel matrix K to the gradients of each problem p:
//   f[p][i] += sum_h D[p][h] * S[slot[h]][i],   over h < count[0], for all i < n
// in:      S       S[s] is the row of K that is stored in slot s (STORED_ROW, common.cl)
// in:      slot    slots of the rows of K that are added
// in:      count   count[0] is the number of rows of K that are added
// in:      D       (problems, stride). D[p][h] is the change of a coefficient of problem p. S[slot[h]] is the row of K
//                  that belongs to this coefficient.
// in, out: f       (problems, n), the gradients
// Work-items in SIMD style (on CPUs): an item computes BLOCK consecutive gradients of each problem. These gradients
// stay in the first-level cache.
// Work-group style: a work-group of WG items computes BLOCK consecutive gradients, and consecutive items read
// consecutive addresses. WG / BLOCK items share each gradient. Each of them sums over some of the stored rows, and the
// results are added in local memory.
#ifndef BLOCK
#define BLOCK 512  // numbers f[p][i] that a work-item (SIMD; a multiple of V) or a work-group computes
#endif
#define SLICES (WG / BLOCK)
#define HITS 4  // loads of a work-item that are under way at a time, to hide the latency of memory

kernel OF_GROUP void update(SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict slot, const int problems,
                   const long n, global wide *restrict f, global const wide *restrict D, const int stride,
                   global const int *restrict count) {
  const int hits = count[0];
#ifdef SIMD
  const size_t begin = (size_t)get_global_id(0) * BLOCK;
  if (begin >= n) return;
  const int pieces = (int)min((size_t)BLOCK, n - begin) / V;
  for (int p = 0; p < problems; ++p) {
    global wide *restrict to = f + (size_t)p * n + begin;
    global const wide *restrict Dp = D + (size_t)p * stride;
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
  const int lid = get_local_id(0), slice = lid / BLOCK;
  const size_t i = (size_t)get_group_id(0) * BLOCK + lid % BLOCK, mine = min(i, (size_t)n - 1);
  local wide sums[WG];
  for (int p = 0; p < problems; ++p) {
    wide sum = wide_of(0);
    for (int h0 = slice * HITS; h0 < hits; h0 += SLICES * HITS) {
      real k[HITS];
#pragma unroll
      for (int h = 0; h < HITS; ++h) {
        const int s = slot[min(h0 + h, hits - 1)];
        k[h] = STORED_ROW(s)[mine];
      }
#pragma unroll
      for (int h = 0; h < HITS; ++h)
        if (h0 + h < hits) sum = wide_fma(wide_of(k[h]), D[(size_t)p * stride + h0 + h], sum);
    }
    sums[lid] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice == 0 && i < n) {
      for (int other = 1; other < SLICES; ++other) sum = wide_add(sum, sums[other * BLOCK + lid]);
      f[(size_t)p * n + i] = wide_add(f[(size_t)p * n + i], sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#endif
}
