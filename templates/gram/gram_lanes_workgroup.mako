<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef UB
#define UB V
#endif
#ifndef GROUPS
#define GROUPS 1  // lane groups of a block of K
#endif
#ifndef BLOCKS
#define BLOCKS 1  // blocks of U in a block of K
#endif
#ifndef DEPTH
#define DEPTH 8  // features that local memory holds at a time
#endif
#ifdef DENSE
#define COLUMN(j) (j)
#else
#define COLUMN(j) J[j]  // number of the lane group's stored column j; GROUPS is 1
#endif
#define NX (V / 4)  // work-items along the rows of a lane group, and along the right-hand rows of a block
#define NY (UB / 4)
#define ITEMS (NX * NY)
#define COLUMNS (BLOCKS * UB)
typedef CAT(REAL, 4) four;
#define ADDED(sum, x, u, s) ADD_TERM((sum).s, (x).s, u)
#define ADD_TERMS(sum, x, u) (four)(ADDED(sum, x, u, s0), ADDED(sum, x, u, s1), ADDED(sum, x, u, s2), ADDED(sum, x, u, s3))
#define VALUE(sum, x2, u2, s) kernel_value((sum).s, (x2).s, u2 KERNEL_ARGUMENTS)
#define VALUES(sum, x2, u2) \
  (four)(VALUE(sum, x2, u2, s0), VALUE(sum, x2, u2, s1), VALUE(sum, x2, u2, s2), VALUE(sum, x2, u2, s3))
// Compute kernel values K[u][i] = f(<x_i, y_u>, |x_i|^2, |y_u|^2) of a kernel function f, for rows x_i of X and y_u of
// U. For an element-wise kernel function, K[u][i] = f(sum_j e(x_i[j], y_u[j])), where e is a function of two values.
// In:
//   values, at             the rows X, in lane groups of V rows, whose values are interleaved (see below)
//   columns                the numbers of the stored features, for one lane group after another
//   columns_at             the index in ``columns`` at which each lane group begins. With the macro DENSE, columns and
//                          columns_at are not read.
//   d                      the number of features
//   panel                  the rows U, in blocks of UB rows
//   count                  count[0] is the number of rows of U
//   xx, uu                 squared norms: xx[i] = |x_i|^2, uu[u] = |y_u|^2
// Out:
//   K    stored (macro STORE) or added to weighted sums (macro UPDATE), see epilogue.mako
// A lane group is V rows of X whose values are interleaved. Lane group g has the rows i = g * V .. g * V + V - 1.
// A lane group may leave out features that are zero in all of its rows. The stored features are numbered s = 0, 1, ...
// Stored feature number s of lane group g is feature j = columns[columns_at[g] + s] of X. The macro DENSE says that
// each lane group stores all features: j = s. With integer divisions:
//   x_i[j] = values[at[g] + s * V + i % V],   g = i / V
//   y_u[j] = panel[((u / UB) * d + j) * UB + u % UB]
// V, UB, GROUPS, BLOCKS and DEPTH are macros. A work-group takes GROUPS lane groups, which are GROUPS * V rows x_i. It
// takes BLOCKS * UB rows y_u at a time, and computes the kernel values between these rows. A work-group has
// (V / 4) * (UB / 4) work-items. A work-item computes the kernel values of four consecutive rows x_i and four
// consecutive rows y_u, for each lane group and block of U.
// Dimension 0 of the launch divides the rows x_i among work-groups, and dimension 1 the rows y_u. With UPDATE,
// dimension 1 has size 1, so that only one work-group adds to a sum.
// Local memory is double-buffered: each of its two buffers holds DEPTH features of the rows x_i and y_u. While the
// values in one buffer are multiplied, the next DEPTH features are loaded to registers, and then stored in the other
// buffer. Values are read in vectors of four, and consecutive items read consecutive addresses.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void gram(
    const int group0, const int groups, const int base, global const real *restrict values,
    global const long *restrict at, global const int *restrict columns_at, global const int *restrict columns,
    global const real *restrict xx, const int d, global const int *restrict count, global const real *restrict panel,
    global const real *restrict uu STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  SECTION
  const int first = group0 + get_group_id(0) * GROUPS, present = min(GROUPS, GROUPS_END(group0 + groups) - first);
  if (present <= 0) return;
  const size_t row = (size_t)first * V, out = row - base;
  const int total = count[0];
  const int lid = get_local_id(0), tx = lid % NX, ty = lid / NX;
  local four xs[2 * DEPTH * GROUPS * NX], us[2 * DEPTH * BLOCKS * NY];
#ifdef STORE
  global real *local to[COLUMNS];  // address of the stored row of each right-hand row
#endif
#ifdef UPDATE
  local wide partial[NY * V];
#endif
  // An item copies values of one lane group of X and of one block of U. Past the last lane group or block, it copies
  // an existing one, whose sums are not used.
  const int loaded = first + min(lid % (GROUPS * NX) / NX, present - 1);
  global const four *restrict x = (global const four *)(values + at[loaded]) + tx;
#ifdef DENSE
  const int length = d;
#else
  global const int *restrict J = columns + columns_at[first];
  const int length = columns_at[first + 1] - columns_at[first];
#endif
  for (int u0 = get_group_id(1) * COLUMNS; u0 < total; u0 += get_num_groups(1) * COLUMNS) {
    const int block = u0 / UB + (u0 + lid % (BLOCKS * NY) / NY * UB < total ? lid % (BLOCKS * NY) / NY : 0);
    global const four *restrict y = (global const four *)(panel + (size_t)block * d * UB) + lid % NY;
    four k[GROUPS][4 * BLOCKS];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
#pragma unroll
      for (int q = 0; q < 4 * BLOCKS; ++q) k[g][q] = (four)(real)0;
<%include file="chain_lanes_workgroup.mako"/>
<%include file="finish_lanes_workgroup.mako"/>
  }
}
