<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef R
#define R 8  // register tile side: a work-item owns R x R values (4, 8)
#endif
#ifndef DEPTH
#define DEPTH 16  // features staged in local memory at a time
#endif
#define SIDE (V / R)  // work-items along each side of the V x V tile
// K[u][i] = f(<x_i, u>, |x_i|^2, |u|^2) for the rows i of lane groups and the working vectors u of a panel.
// One work-group of SIDE x SIDE items: one lane group (V rows) against panel blocks of V working vectors; blocks are
// dealt over the second dimension of the range (which must be 1 wide for UPDATE).
//   staged in local memory, DEPTH features at a time, both sides read with consecutive items on consecutive lanes:
//   x_i[columns[j]] = values[at[g] + j V + i % V],   u[j] = panel[(block d + j) V + u % V]
kernel __attribute__((reqd_work_group_size(SIDE * SIDE, 1, 1))) void gram(
    const int group0, global const real *restrict values, global const long *restrict at,
    global const int *restrict columns_at, global const int *restrict columns, global const real *restrict xx,
    const int d, global const int *restrict count, global const real *restrict panel, global const real *restrict uu
    STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  const int g = group0 + get_group_id(0);
  const size_t row = (size_t)g * V;
  const int total = count[0];
  const uint lid = get_local_id(0), tx = lid % SIDE, ty = lid / SIDE;
  local real xs[DEPTH * V], us[DEPTH * V];
#ifdef UPDATE
  local wide partial[SIDE * V];
#endif
  global const real *restrict x = values + at[g];
#ifdef DENSE
  const int length = d;
#else
  global const int *restrict J = columns + columns_at[g];
  const int length = columns_at[g + 1] - columns_at[g];
#endif
  for (int u0 = get_group_id(1) * V; u0 < total; u0 += get_num_groups(1) * V) {
    global const real *restrict block = panel + (size_t)u0 * d;
    real k[R][R];
    for (int i = 0; i < R; ++i)
      for (int q = 0; q < R; ++q) k[i][q] = 0;
    for (int j0 = 0; j0 < length; j0 += DEPTH) {
      for (uint e = lid; e < DEPTH * V; e += SIDE * SIDE) {
        const int j = j0 + e / V;
        const bool there = j < length;
#ifdef DENSE
        const size_t column = j;
#else
        const size_t column = there ? J[j] : 0;
#endif
        xs[e] = there ? x[(size_t)j0 * V + e] : (real)0;
        us[e] = there ? block[column * V + e % V] : (real)0;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
      for (int z = 0; z < DEPTH; ++z) {
        real a[R], b[R];
#pragma unroll
        for (int i = 0; i < R; ++i) a[i] = xs[z * V + i * SIDE + tx], b[i] = us[z * V + i * SIDE + ty];
#pragma unroll
        for (int i = 0; i < R; ++i)
#pragma unroll
          for (int q = 0; q < R; ++q) k[i][q] = fma(a[i], b[q], k[i][q]);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const real x2 = xx[row + i * SIDE + tx];
#pragma unroll
      for (int q = 0; q < R; ++q)
        k[i][q] = kernel_value(k[i][q], x2, uu[u0 + q * SIDE + ty] KERNEL_ARGUMENTS);
    }
#ifdef STORE
#pragma unroll
    for (int q = 0; q < R; ++q) {
      const int u = u0 + q * SIDE + ty;
      if (u < total) {
        const int s = slot[u];
        global real *to = STORED_ROW(s) + row;
#pragma unroll
        for (int i = 0; i < R; ++i) to[i * SIDE + tx] = k[i][q];
      }
    }
#endif
#ifdef UPDATE
    for (int p = 0; p < problems; ++p) {
      global const wide *restrict Dp = D + (size_t)p * capacity + u0;
#pragma unroll
      for (int i = 0; i < R; ++i) {
        wide sum = wide_of(0);
#pragma unroll
        for (int q = 0; q < R; ++q) sum = wide_add(sum, wide_mul(wide_of(k[i][q]), Dp[q * SIDE + ty]));
        partial[ty * V + i * SIDE + tx] = sum;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (uint lane = lid; lane < V; lane += SIDE * SIDE) {
        wide sum = c[(size_t)p * n + row + lane];
        for (int y = 0; y < SIDE; ++y) sum = wide_add(sum, partial[y * V + lane]);
        c[(size_t)p * n + row + lane] = sum;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
  }
}
