// The way back of K' (w * (K v - z)) from a stored tile of K, for several outputs p:
//   residual  r[p][i] = w[first + i] (t[p][i] - z[p][first + i]), wide to real
//   back      out[p][u] += sum_i K[u][i] r[p][i] over the rows i of the tile
// Row u of the tile starts at K[u ld]. A work-item with explicit vectors (vector shape), or a work-group with consecutive
// items on consecutive addresses and a tree in local memory (group shape), takes OWN rows u against OUT outputs at a time:
// each value read meets OUT outputs, each r OWN rows. Sums of RUN vectors (of an item's numbers) are real, then wide;
// their order does not depend on the device's. z may be null: 0.
// Ranges: residual (rows, problems), back (capacity / OWN work-items or work-groups). OWN divides capacity.
#ifndef OWN
#define OWN 4
#endif
#define OUT 4
#define RUN 64
#define ROWS_OF_OWN            \
  global const real *restrict k[OWN]; /* (beyond the last one it stands in: what comes of that is not kept) */ \
  for (int a = 0; a < OWN; ++a) k[a] = K + (size_t)min(u + a, count[0] - 1) * ld;

kernel EXPLICIT void residual(global const wide *restrict t, const long ld, const int first, global const wide *restrict w,
                              global const wide *restrict z, const long n, global real *restrict r) {
  const size_t i = get_global_id(0), p = get_global_id(1);
  wide one = t[p * ld + i];
  if (z) one = wide_sub(one, z[p * n + first + i]);
  r[p * ld + i] = wide_real(wide_mul(one, w[first + i]));
}

#ifdef VECTOR
inline double added(const realv sum) {
  const widev wide_sum = to_widev(sum);
  double total = 0;
  for (int lane = 0; lane < V; ++lane) total += ((private const double *)&wide_sum)[lane];
  return total;
}

#define BACK(outputs)                                                                                     \
  {                                                                                                       \
    double total[OWN][outputs];                                                                           \
    for (int a = 0; a < OWN; ++a)                                                                         \
      for (int q = 0; q < outputs; ++q) total[a][q] = 0;                                                  \
    for (int v0 = 0; v0 < rows / V; v0 += RUN) {                                                          \
      realv sum[OWN][outputs];                                                                            \
      _Pragma("unroll") for (int a = 0; a < OWN; ++a)                                                     \
        _Pragma("unroll") for (int q = 0; q < outputs; ++q) sum[a][q] = (realv)(real)0;                   \
      for (int v = v0; v < min(rows / V, v0 + RUN); ++v)                                                  \
        _Pragma("unroll") for (int q = 0; q < outputs; ++q) {                                             \
          const realv rv = loadv(v, r + (size_t)(p + q) * ld);                                            \
          _Pragma("unroll") for (int a = 0; a < OWN; ++a)                                                 \
            sum[a][q] = fma(loadv(v, k[a]), rv, sum[a][q]);                                               \
        }                                                                                                 \
      for (int a = 0; a < OWN; ++a)                                                                       \
        for (int q = 0; q < outputs; ++q) total[a][q] += added(sum[a][q]);                                \
    }                                                                                                     \
    for (int a = 0; a < OWN; ++a)                                                                         \
      for (int q = 0; q < outputs; ++q)                                                                   \
        if (u + a < count[0]) out[(size_t)(p + q) * capacity + u + a] += total[a][q];                     \
  }

kernel EXPLICIT void back(global const real *restrict K, const long ld, const int rows, global const real *restrict r,
                          global const int *restrict count, const int problems, const int capacity,
                          global wide *restrict out) {
  const int u = get_group_id(0) * OWN;
  if (u >= count[0]) return;
  ROWS_OF_OWN
  int p = 0;
  for (; p + OUT <= problems; p += OUT) BACK(OUT)
  for (; p < problems; ++p) BACK(1)
}
#else
kernel void back(global const real *restrict K, const long ld, const int rows, global const real *restrict r,
                 global const int *restrict count, const int problems, const int capacity, global wide *restrict out) {
  const int u = get_group_id(0) * OWN, lid = get_local_id(0);
  if (u >= count[0]) return;  // (the whole group)
  ROWS_OF_OWN
  local wide sums[WG];
  for (int p = 0; p < problems; p += OUT) {
    wide total[OWN][OUT];
    for (int a = 0; a < OWN; ++a)
      for (int q = 0; q < OUT; ++q) total[a][q] = wide_of(0);
    for (int i0 = lid; i0 < rows; i0 += WG * RUN) {
      real sum[OWN][OUT];
#pragma unroll
      for (int a = 0; a < OWN; ++a)
#pragma unroll
        for (int q = 0; q < OUT; ++q) sum[a][q] = 0;
      for (int i = i0; i < min(rows, i0 + WG * RUN); i += WG)
#pragma unroll
        for (int q = 0; q < OUT; ++q) {
          const real ri = p + q < problems ? r[(size_t)(p + q) * ld + i] : (real)0;
#pragma unroll
          for (int a = 0; a < OWN; ++a) sum[a][q] = fma(k[a][i], ri, sum[a][q]);
        }
#pragma unroll
      for (int a = 0; a < OWN; ++a)
#pragma unroll
        for (int q = 0; q < OUT; ++q) total[a][q] = wide_add(total[a][q], wide_of(sum[a][q]));
    }
#pragma unroll
    for (int a = 0; a < OWN; ++a)
#pragma unroll
      for (int q = 0; q < OUT; ++q) {
        sums[lid] = total[a][q];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int step = WG / 2; step > 0; step /= 2) {
          if (lid < step) sums[lid] = wide_add(sums[lid], sums[lid + step]);
          barrier(CLK_LOCAL_MEM_FENCE);
        }
        global wide *restrict to = out + (size_t)(p + q) * capacity + u + a;
        if (lid == 0 && p + q < problems && u + a < count[0]) *to = wide_add(*to, sums[0]);
        barrier(CLK_LOCAL_MEM_FENCE);
      }
  }
}
#endif
