<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef UB
#define UB V
#endif
#ifndef GROUPS
#define GROUPS 2  // lane groups of a tile
#endif
#ifndef BLOCKS
#define BLOCKS 2  // panel blocks of a tile
#endif
#ifndef DEPTH
#define DEPTH 16  // features staged in local memory at a time: a multiple of a fragment's
#endif
#ifndef WARP_ROWS
#define WARP_ROWS 32  // of a tile, rows and working vectors of a warp
#endif
#ifndef WARP_VECTORS
#define WARP_VECTORS 64
#endif
#ifndef TOGETHER
#define TOGETHER 1  // a warp's fragments of rows whose sums for an update are in local memory at a time
#endif
#ifndef ITEMS
#define ITEMS (GROUPS * V / WARP_ROWS * (BLOCKS * UB / WARP_VECTORS) * WARP)
#endif
#define NX (V / 4)  // fours of a lane group, and of a block
#define NY (UB / 4)
#define COLUMNS (BLOCKS * UB)
#define ALONG (GROUPS * V / WARP_ROWS)  // warps of a tile along the rows
#define X_FRAGMENTS (WARP_ROWS / FRAGMENT_ROWS)
#define U_FRAGMENTS (WARP_VECTORS / FRAGMENT_VECTORS)
#define X_LINE (GROUPS * NX + 2)  // fours of a staged feature: eight more banks each, so that four features of eight rows
#define U_LINE (BLOCKS * NY + 2)  // stand in different ones
typedef float4 four;
// K[u][i] = f(<x_i, u>, |x_i|^2, |u|^2) for the rows i of dense lane groups and the working vectors u of a panel, inner
// products by matrix units (${units}), and squared norms by the same (matrix_norms.cl).
// One work-group: GROUPS lane groups of V rows against tiles of BLOCKS blocks of UB working vectors, which are dealt over
// the second dimension of the range (1 wide for UPDATE). A warp owns WARP_ROWS x WARP_VECTORS values of a tile.
//   staged in local memory, DEPTH features at a time, in two buffers: the next ones are on their way to registers while
//   these are multiplied. Both sides are read in fours, consecutive items on consecutive addresses:
//   x_i[j] = values[at[g] + j V + i % V],   u[j] = panel[(block d + j) UB + u % UB]
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void gram(
    const int group0, const int groups, const int base, global const float *restrict values,
    global const long *restrict at, global const int *restrict columns_at, global const int *restrict columns,
    global const float *restrict xx, const int d, global const int *restrict count, global const float *restrict panel,
    global const float *restrict uu STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  const int first = group0 + get_group_id(0) * GROUPS, there = min(GROUPS, group0 + groups - first);
  const size_t row = (size_t)first * V, out = row - base;
  const int total = count[0];
  const int lid = get_local_id(0), lane = lid % WARP, along = lid / WARP % ALONG, across = lid / WARP / ALONG;
  local four staged[2 * DEPTH * (X_LINE + U_LINE)];  // (also the sums of an update, which are fewer)
  local four *xs = staged, *us = staged + 2 * DEPTH * X_LINE;
  EXCHANGE
#ifdef STORE
  global real *local to[COLUMNS];  // where a working vector's row of K goes on
#endif
  // what an item stages: always of one lane group, and of one block (the last ones again where there are no more)
  const int own = first + min(lid % (GROUPS * NX) / NX, there - 1);
  global const four *restrict x = (global const four *)(values + at[own]) + lid % NX;
  for (int u0 = get_group_id(1) * COLUMNS; u0 < total; u0 += get_num_groups(1) * COLUMNS) {
    const int block = u0 / UB + (u0 + lid % (BLOCKS * NY) / NY * UB < total ? lid % (BLOCKS * NY) / NY : 0);
    global const four *restrict y = (global const four *)(panel + (size_t)block * d * UB) + lid % NY;
    float k[X_FRAGMENTS][U_FRAGMENTS][SUMS];
${unroll}
    for (int g = 0; g < X_FRAGMENTS; ++g)
${unroll}
      for (int m = 0; m < U_FRAGMENTS; ++m)
${unroll}
        for (int s = 0; s < SUMS; ++s) k[g][m][s] = 0;
<%include file="chain_matrix_group.mako"/>
<%include file="finish_matrix_group.mako"/>
  }
}
