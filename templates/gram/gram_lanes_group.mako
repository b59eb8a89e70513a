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
#ifdef DENSE
#define COLUMN(j) (j)
#else
#define COLUMN(j) J[j]
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
<%include file="chain_lanes_group.mako"/>
<%include file="finish_lanes_group.mako"/>
  }
}
