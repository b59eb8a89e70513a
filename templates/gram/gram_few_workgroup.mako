<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef UB
#define UB V
#endif
#ifndef COLUMNS
#define COLUMNS 16  // right-hand rows in registers at a time, a divisor of UB
#endif
#ifndef RX
#define RX 2  // rows side by side that a work-item owns (1, 2, 4)
#endif
#ifndef GROUPS
#define GROUPS 1  // lane groups of a work-group
#endif
#ifndef DEPTH
#define DEPTH 16  // features of right-hand rows that local memory holds at a time
#endif
#ifdef DENSE
#define COLUMN(j) (j)
#else
#define COLUMN(j) J[j]  // number of the lane group's stored column j; GROUPS is 1
#endif
#define NX (V / RX)  // work-items along the rows of a lane group
#define ITEMS (NX * GROUPS)
// Compute kernel values K[u][i] = f(<x_i, y_u>, |x_i|^2, |y_u|^2) of a kernel function f, for rows x_i of X and y_u of
// U. For an element-wise kernel function, K[u][i] = f(sum_j e(x_i[j], y_u[j])), where e is a function of two values.
// In:
//   values, at             the rows X in lane groups (see below). Lane group g begins at values[at[g]].
//   columns, columns_at    the indices of the features that each lane group stores; not read with the macro DENSE
//   d                      the number of features
//   panel, count           the rows U, in blocks of UB rows. count[0] is the number of rows U.
//   xx, uu                 squared norms: xx[i] = |x_i|^2, uu[u] = |y_u|^2
// Out:
//   K    With the macro STORE, K is stored. With the macro UPDATE, weighted sums of K over u are added to a result.
//        The file epilogue.mako describes these outputs.
// A lane group is V rows of X whose values are interleaved. Lane group g has the rows i = g * V .. g * V + V - 1.
// A lane group may leave out features that are zero in all of its rows. The stored features are numbered s = 0, 1, ...
// Stored feature number s of lane group g is feature j = columns[columns_at[g] + s] of X. The macro DENSE says that
// each lane group stores all features: j = s. A stored feature j of x_i and any feature j of y_u have the values
//   x_i[j] = values[at[g] + s * V + i % V],   g = i / V                  (integer divisions)
//   y_u[j] = panel[((u / UB) * d + j) * UB + u % UB]
// This kernel is for few rows y_u, when reading X is most of the work. It takes COLUMNS rows y_u at a time. A value of
// X is read into a register once, and multiplied by the values of all COLUMNS rows y_u.
// Work-groups: each takes GROUPS lane groups. A work-item takes RX neighbouring rows x_i of a lane group, so a
// work-group has (V / RX) * GROUPS work-items. Consecutive work-items read consecutive addresses. Dimension 0 of the
// launch divides the rows x_i among work-groups, and dimension 1 divides the rows y_u.
// Local memory is double-buffered: it holds the current DEPTH features of COLUMNS rows y_u, and the previous DEPTH
// features, which slower work-items may still read. All work-items read the same value of y_u at the same time.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void gram(
    const int group0, const int groups, const int base, global const real *restrict values,
    global const long *restrict at, global const int *restrict columns_at, global const int *restrict columns,
    global const real *restrict xx, const int d, global const int *restrict count, global const real *restrict panel,
    global const real *restrict uu STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  SECTION
  const int first = group0 + get_group_id(0) * GROUPS, end = GROUPS_END(group0 + groups);
  if (first >= end) return;
  const int lid = get_local_id(0), mine = first + lid / NX;
  const int g = min(mine, end - 1);  // an index past the end repeats the last lane group; its values are dropped
  const size_t row = (size_t)g * V + lid % NX * RX, out = row - base;
  const int total = count[0];
  local real us[2 * DEPTH * COLUMNS];
  global const real *restrict x = values + at[g] + lid % NX * RX;
#ifdef DENSE
  const int length = d;
#else
  global const int *restrict J = columns + columns_at[g];
  const int length = columns_at[g + 1] - columns_at[g];
#endif
#define ADD_FEATURE(z)                                                                          \
  {                                                                                             \
    real a[RX];                                                                                 \
    for (int i = 0; i < RX; ++i) a[i] = xj[(z) * V + i];                                          \
    for (int q = 0; q < COLUMNS; ++q)                                                           \
      for (int i = 0; i < RX; ++i) k[q][i] = ADD_TERM(k[q][i], a[i], staged[(z) * COLUMNS + q]); \
  }
  int now = 0;
  for (int u0 = get_group_id(1) * COLUMNS; u0 < total; u0 += get_num_groups(1) * COLUMNS) {
    global const real *restrict block = panel + (size_t)(u0 - u0 % UB) * d + u0 % UB;
    real k[COLUMNS][RX];
#pragma unroll
    for (int q = 0; q < COLUMNS; ++q)
#pragma unroll
      for (int i = 0; i < RX; ++i) k[q][i] = 0;
    for (int j0 = 0; j0 < length; j0 += DEPTH, now ^= 1) {
      local real *staged = us + now * (DEPTH * COLUMNS);
      global const real *restrict xj = x + (size_t)j0 * V;
      for (int e = lid; e < DEPTH * COLUMNS; e += ITEMS) {
        const int j = j0 + e / COLUMNS;
        staged[e] = j < length ? block[(size_t)COLUMN(j) * UB + e % COLUMNS] : (real)0;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      if (j0 + DEPTH <= length) {
#pragma unroll
        for (int z = 0; z < DEPTH; ++z) ADD_FEATURE(z)
      } else {
#pragma unroll 1
        for (int z = 0; z < length - j0; ++z) ADD_FEATURE(z)
      }
    }
#pragma unroll
    for (int i = 0; i < RX; ++i) {
      const real x2 = xx[row + i];
#pragma unroll
      for (int q = 0; q < COLUMNS; ++q)  // 0 past the last right-hand row, where the kernel function may be infinite
        k[q][i] = u0 + q < total ? kernel_value(k[q][i], x2, uu[u0 + q] KERNEL_ARGUMENTS) : (real)0;
    }
    if (mine < end) {
#ifdef STORE
#pragma unroll
      for (int q = 0; q < COLUMNS; ++q)
        if (u0 + q < total) {
          const int s = slot[u0 + q];
          global real *to = STORED_ROW(s) + out;
#pragma unroll
          for (int i = 0; i < RX; ++i) to[i] = COMBINED(to[i], k[q][i]);
        }
#endif
#ifdef UPDATE
      for (int p = 0; p < problems; ++p) {
        wide sum[RX];
#pragma unroll
        for (int i = 0; i < RX; ++i) sum[i] = c[(size_t)p * n + out + i];
#pragma unroll
        for (int q = 0; q < COLUMNS; ++q) {
          const wide weight = u0 + q < total ? D[(size_t)p * capacity + u0 + q] : wide_of(0);
#pragma unroll
          for (int i = 0; i < RX; ++i) sum[i] = wide_fma(wide_of(k[q][i]), weight, sum[i]);
        }
#pragma unroll
        for (int i = 0; i < RX; ++i) c[(size_t)p * n + out + i] = sum[i];
      }
#endif
    }
  }
}
