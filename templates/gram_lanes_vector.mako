<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
// K[u][i] = f(<x_i, u>, |x_i|^2, |u|^2) for the rows i of lane groups and the working vectors u of a panel.
// One work-item: one lane group (V rows) against all panel blocks of V working vectors, V x V accumulators.
//   x_i[columns[j]] = values[at[g] + j V + i % V]      contiguous loads of V, the tile stays in cache
//   u[j]            = panel[(block d + j) V + u % V]   one line a feature, broadcast lane by lane
// DENSE: every group holds all d features and columns is not read.
kernel EXPLICIT void gram(
    const int group0, global const real *restrict values, global const long *restrict at,
    global const int *restrict columns_at, global const int *restrict columns, global const real *restrict xx,
    const int d, global const int *restrict count, global const real *restrict panel, global const real *restrict uu
    STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  const int g = group0 + get_global_id(0);
  const size_t row = (size_t)g * V;
  const int total = count[0];
  const realv x2 = loadv(0, xx + row);
  global const real *restrict x = values + at[g];
#ifdef DENSE
  const int length = d;
#else
  global const int *restrict J = columns + columns_at[g];
  const int length = columns_at[g + 1] - columns_at[g];
#endif
  for (int u0 = 0; u0 < total; u0 += V) {
    global const real *restrict block = panel + (size_t)u0 * d;
    realv k[V];
#pragma unroll
    for (int u = 0; u < V; ++u) k[u] = (realv)(real)0;
    for (int j = 0; j < length; ++j) {
      const realv xj = loadv(j, x);
#ifdef DENSE
      global const real *restrict uj = block + (size_t)j * V;
#else
      global const real *restrict uj = block + (size_t)J[j] * V;
#endif
#pragma unroll
      for (int u = 0; u < V; ++u) k[u] = fma(xj, (realv)uj[u], k[u]);
    }
<%include file="finish_vector.mako"/>
  }
}
