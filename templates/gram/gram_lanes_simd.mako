<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
<%namespace name="lanes" file="tiles_lanes_simd.mako"/>
${lanes.settings()}
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
// Work-items: each takes consecutive lane groups, with all rows y_u (tiles_lanes_simd.mako).
kernel EXPLICIT void gram(
    const int group0, int groups, const int base, global const real *restrict values,
    global const long *restrict at, global const int *restrict columns_at, global const int *restrict columns,
    global const real *restrict xx, const int d, global const int *restrict count, global const real *restrict panel,
    global const real *restrict uu STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  SECTION
  groups = GROUPS_END(group0 + groups) - group0;
  const int total = count[0], items = get_global_size(0), run = (groups + items * GROUPS - 1) / (items * GROUPS);
  const int begin = get_global_id(0) * run * GROUPS, end = min(begin + run * GROUPS, groups);
<%lanes:tiles>
          const size_t to = row - base;
<%include file="finish_simd.mako"/>
</%lanes:tiles>
  FENCED
}
