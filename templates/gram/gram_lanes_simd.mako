<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
<%namespace name="lanes" file="tiles_lanes_simd.mako"/>
${lanes.settings()}
// Compute kernel values K[u][i] = f(<x_i, y_u>, |x_i|^2, |y_u|^2), or f(s) for an element-wise sum s.
// x_i are rows in lane groups of V rows, and y_u the right-hand rows of a panel.
// A work-item takes run * GROUPS consecutive lane groups, with ``run`` such that all work-items together take all.
// tiles_lanes_simd.mako describes how rows and right-hand rows are read.
kernel EXPLICIT void gram(
    const int group0, const int groups, const int base, global const real *restrict values,
    global const long *restrict at, global const int *restrict columns_at, global const int *restrict columns,
    global const real *restrict xx, const int d, global const int *restrict count, global const real *restrict panel,
    global const real *restrict uu STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  SECTION
  const int total = count[0], items = get_global_size(0), run = (groups + items * GROUPS - 1) / (items * GROUPS);
  const int begin = get_global_id(0) * run * GROUPS, end = min(begin + run * GROUPS, groups);
<%lanes:tiles>
          const size_t to = row - base;
<%include file="finish_simd.mako"/>
</%lanes:tiles>
  FENCED
}
