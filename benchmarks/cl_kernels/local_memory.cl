// Compute K[w][i] = exp(-gamma |x_i - u_w|^2) for right-hand rows u_w = x_rows[w]. A work-item has LANES neighbouring
// rows as a vector. The work-group stages U right-hand rows in local memory, DEPTH features at a time.
//   x_i[j] = X[j ld + i]            one load of LANES floats a column
//   u_w[j0 + z] = staged[z U + u]   copied by the GROUP items together, which then read the same address
//   K[w ld + i]                     ld is a multiple of LANES; items beyond n repeat the last vector and store nothing
#ifndef LANES
#define LANES 4  // rows of a work-item (4, 8, 16)
#endif
#ifndef U
#define U 2  // right-hand rows that share one pass over the item's rows
#endif
#ifndef DEPTH
#define DEPTH 256  // features staged at a time
#endif
#ifndef GROUP
#define GROUP 64  // work-items of a work-group
#endif
#define floatl CAT(float, LANES)
#define loadl CAT(vload, LANES)
#define storel CAT(vstore, LANES)

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1), vec_type_hint(floatl))) void local_memory(
    const int n, const int d, const int W, global const int *restrict rows, const float gamma, const int ld,
    global const float *restrict X, global float *restrict K) {
  const size_t i = get_global_id(0) * LANES, from = min(i, (size_t)(ld - LANES));
  local float staged[DEPTH * U];
  for (int w0 = 0; w0 < W; w0 += U) {
    floatl sum[U];
#pragma unroll
    for (int u = 0; u < U; ++u) sum[u] = (floatl)0.0f;
    for (int j0 = 0; j0 < d; j0 += DEPTH) {
      const int depth = min(DEPTH, d - j0);
      barrier(CLK_LOCAL_MEM_FENCE);  // all items have read the previous features
      for (int e = get_local_id(0); e < depth * U; e += GROUP)
        staged[e] = X[(size_t)(j0 + e / U) * ld + rows[min(w0 + e % U, W - 1)]];
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int z = 0; z < depth; ++z) {
        const floatl x = loadl(0, X + (size_t)(j0 + z) * ld + from);
#pragma unroll
        for (int u = 0; u < U; ++u) {
          const floatl difference = x - staged[z * U + u];
          sum[u] = fma(difference, difference, sum[u]);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (w0 + u < W && i < n) storel(exp(-gamma * sum[u]), 0, K + (size_t)(w0 + u) * ld + i);
  }
}
