<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef COLUMNS
#define COLUMNS UB  // working vectors of a tile, a divisor of UB
#endif
#ifndef RX
#define RX 4  // rows of a tile that a work-item owns (1, 2, 4, 8)
#endif
#ifndef RY
#define RY 4  // working vectors of a tile that it owns (1, 2, 4, 8)
#endif
#ifndef DEPTH
#define DEPTH 8  // features staged in local memory at a time
#endif
#define NX (V / RX)  // work-items along the rows and along the working vectors
#define NY (COLUMNS / RY)
// K[u][i] = f(<x_i, u>, |x_i|^2, |u|^2), or f(s), for the rows i of lane groups and the working vectors u of a panel.
// One work-group of NX x NY items: one lane group (V rows) against tiles of COLUMNS working vectors; tiles are dealt over
// the second dimension of the range (which must be 1 wide for UPDATE). An item owns RX rows and RY vectors side by side,
// so that it loads them from local memory as vectors.
//   staged in local memory, DEPTH features at a time, both sides read with consecutive items on consecutive lanes:
//   x_i[columns[j]] = values[at[g] + j V + i % V],   u[j] = panel[(block d + j) UB + u % UB]
kernel __attribute__((reqd_work_group_size(NX * NY, 1, 1))) void gram(
    const int group0, const int groups, const int base, global const real *restrict values,
    global const long *restrict at, global const int *restrict columns_at, global const int *restrict columns,
    global const real *restrict xx, const int d, global const int *restrict count, global const real *restrict panel,
    global const real *restrict uu STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  const int g = group0 + get_group_id(0);
  const size_t row = (size_t)g * V, out = row - base;
  const int total = count[0];
  const uint lid = get_local_id(0), tx = lid % NX, ty = lid / NX;
  local real xs[DEPTH * V] __attribute__((aligned(16))), us[DEPTH * COLUMNS] __attribute__((aligned(16)));
#ifdef UPDATE
  local wide partial[NY * V];
#endif
  global const real *restrict x = values + at[g];
#ifdef DENSE
  const int length = d;
#else
  global const int *restrict J = columns + columns_at[g];
  const int length = columns_at[g + 1] - columns_at[g];
#endif
  for (int u0 = get_group_id(1) * COLUMNS; u0 < total; u0 += get_num_groups(1) * COLUMNS) {
    global const real *restrict block = panel + (size_t)(u0 - u0 % UB) * d + u0 % UB;
    real k[RX][RY];
    for (int i = 0; i < RX; ++i)
      for (int q = 0; q < RY; ++q) k[i][q] = 0;
    for (int j0 = 0; j0 < length; j0 += DEPTH) {
      for (uint e = lid; e < DEPTH * V; e += NX * NY)
        xs[e] = j0 + (int)(e / V) < length ? x[(size_t)j0 * V + e] : (real)0;
      for (uint e = lid; e < DEPTH * COLUMNS; e += NX * NY) {
        const int j = j0 + e / COLUMNS;
        const bool there = j < length;
#ifdef DENSE
        const size_t column = j;
#else
        const size_t column = there ? J[j] : 0;
#endif
        us[e] = there ? block[column * UB + e % COLUMNS] : (real)0;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
#ifdef ELEMENTWISE  // e(0, 0) of staged padding may be any number
      const int depth = min(DEPTH, length - j0);
#else
#define depth DEPTH
#endif
#pragma unroll
      for (int z = 0; z < depth; ++z) {
        real a[RX], b[RY];
#pragma unroll
        for (int i = 0; i < RX; ++i) a[i] = xs[z * V + tx * RX + i];
#pragma unroll
        for (int q = 0; q < RY; ++q) b[q] = us[z * COLUMNS + ty * RY + q];
#pragma unroll
        for (int i = 0; i < RX; ++i)
#pragma unroll
          for (int q = 0; q < RY; ++q) k[i][q] = ADD_TERM(k[i][q], a[i], b[q]);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
    for (int i = 0; i < RX; ++i) {
      const real x2 = xx[row + tx * RX + i];
#pragma unroll
      for (int q = 0; q < RY; ++q) {  // (beyond the last working vector f may be no number)
        const int u = u0 + ty * RY + q;
        k[i][q] = u < total ? kernel_value(k[i][q], x2, uu[u] KERNEL_ARGUMENTS) : (real)0;
      }
    }
#ifdef STORE
#pragma unroll
    for (int q = 0; q < RY; ++q) {
      const int u = u0 + ty * RY + q;
      if (u < total) {
        const int s = slot[u];
        global real *to = STORED_ROW(s) + out;
#pragma unroll
        for (int i = 0; i < RX; ++i) to[tx * RX + i] = k[i][q];
      }
    }
#endif
#ifdef UPDATE
    for (int p = 0; p < problems; ++p) {
      global const wide *restrict Dp = D + (size_t)p * capacity + u0;
#pragma unroll
      for (int i = 0; i < RX; ++i) {
        wide sum = wide_of(0);
#pragma unroll
        for (int q = 0; q < RY; ++q) sum = wide_add(sum, wide_mul(wide_of(k[i][q]), Dp[ty * RY + q]));
        partial[ty * V + tx * RX + i] = sum;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (uint lane = lid; lane < V; lane += NX * NY) {
        wide sum = c[(size_t)p * n + out + lane];
        for (int y = 0; y < NY; ++y) sum = wide_add(sum, partial[y * V + lane]);
        c[(size_t)p * n + out + lane] = sum;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
  }
}
