<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef UB
#define UB V
#endif
#ifndef GROUPS
#define GROUPS 2  // lane groups of a block of K
#endif
#ifndef BLOCKS
#define BLOCKS 2  // blocks of U in a block of K
#endif
#ifndef DEPTH
#define DEPTH 16  // features that local memory holds at a time, a multiple of FRAGMENT_FEATURES
#endif
#ifndef WARP_ROWS
#define WARP_ROWS 32  // rows of X in a block of K that a warp owns; WARP_VECTORS counts its rows of U
#endif
#ifndef WARP_VECTORS
#define WARP_VECTORS 64
#endif
#ifndef TOGETHER
#define TOGETHER 1  // fragments of a warp's rows for which local memory holds the sums of an UPDATE at a time
#endif
#ifndef ITEMS
#define ITEMS (GROUPS * V / WARP_ROWS * (BLOCKS * UB / WARP_VECTORS) * WARP)
#endif
#define NX (V / 4)  // vectors of four values along a lane group, and along a block
#define NY (UB / 4)
#define COLUMNS (BLOCKS * UB)
#define ALONG (GROUPS * V / WARP_ROWS)  // warps along the rows of X in a block of K
#define X_FRAGMENTS (WARP_ROWS / FRAGMENT_ROWS)
#define U_FRAGMENTS (WARP_VECTORS / FRAGMENT_VECTORS)
// Each feature takes X_LINE vectors in local memory for the rows of X, and U_LINE vectors for the rows of U. A vector
// holds the values of the feature in four rows. X_LINE and U_LINE include two vectors of padding each. Local memory
// usually has 32 banks, each one float32 number wide. Without padding, a feature would fill a multiple of 32 banks, so
// all features would begin at the same bank. The padding of 8 numbers makes each feature begin 8 banks after the
// feature before it. The 32 values that a warp of an NVIDIA GPU reads at a time belong to 8 rows and 4 features. With
// the padding, these values lie in 32 different banks.
#define X_LINE (GROUPS * NX + 2)
#define U_LINE (BLOCKS * NY + 2)
typedef float4 four;
// Compute kernel values K[u][i] = f(<x_i, y_u>, |x_i|^2, |y_u|^2) of a kernel function f, for rows x_i of X and y_u of
// U. Matrix units (tensor cores, ${units}) compute the inner products.
// In:
//   values, at      the rows X of d features, in lane groups of V rows, whose values are interleaved
//   panel           the rows U, in blocks of UB rows
//   count           count[0] is the number of rows of U
//   xx, uu          squared norms by matrix_norms.cl: xx[i] = |x_i|^2, uu[u] = |y_u|^2
// Out:
//   K    stored (macro STORE) or added to weighted sums (macro UPDATE), see epilogue.mako
// The values of lane group g begin at values[at[g]]. With integer divisions, feature j is
//   x_i[j] = values[at[g] + j * V + i % V],   g = i / V
//   y_u[j] = panel[((u / UB) * d + j) * UB + u % UB]
// Work-groups: each takes GROUPS lane groups, which are GROUPS * V rows x_i. It takes BLOCKS * UB rows y_u at a time,
// and computes the kernel values between these rows. Each warp computes the values for WARP_ROWS of the rows x_i and
// WARP_VECTORS of the rows y_u.
// Dimension 0 of the launch divides the rows x_i among work-groups, and dimension 1 the rows y_u. With UPDATE,
// dimension 1 has size 1, so that only one work-group adds to a sum.
// Local memory is double-buffered: each of its two buffers holds DEPTH features of the rows x_i and y_u. While the
// values in one buffer are multiplied, the next DEPTH features are loaded to registers, and then stored in the other
// buffer. Values are read in vectors of four, and consecutive items read consecutive addresses.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void gram(
    const int group0, const int groups, const int base, global const float *restrict values,
    global const long *restrict at, global const int *restrict columns_at, global const int *restrict columns,
    global const float *restrict xx, const int d, global const int *restrict count, global const float *restrict panel,
    global const float *restrict uu STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  const int first = group0 + get_group_id(0) * GROUPS, present = min(GROUPS, group0 + groups - first);
  const size_t row = (size_t)first * V, out = row - base;
  const int total = count[0];
  const int lid = get_local_id(0), lane = lid % WARP, along = lid / WARP % ALONG, across = lid / WARP / ALONG;
  local four staged[2 * DEPTH * (X_LINE + U_LINE)];  // finish_matrix_workgroup.mako puts sums in the same memory
  local four *xs = staged, *us = staged + 2 * DEPTH * X_LINE;
  EXCHANGE
#ifdef STORE
  global real *local to[COLUMNS];  // address of the stored row of each right-hand row
#endif
  // An item copies values of one lane group of X and of one block of U. Past the last lane group or block, it copies
  // an existing one, whose sums are not used.
  const int loaded = first + min(lid % (GROUPS * NX) / NX, present - 1);
  global const four *restrict x = (global const four *)(values + at[loaded]) + lid % NX;
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
<%include file="chain_matrix_workgroup.mako"/>
<%include file="finish_matrix_workgroup.mako"/>
  }
}
