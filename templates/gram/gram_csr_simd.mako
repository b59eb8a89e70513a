<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef UB
#define UB 64  // right-hand rows of a block, a multiple of V
#endif
#define RUN 256  // entries of a row that chain_csr_simd.mako takes at a time
#ifndef INDEX
#define INDEX int  // type of a column number (ushort, int)
#endif
// Compute kernel values K[u][i] = f(<x_i, y_u>, |x_i|^2, |y_u|^2) of a kernel function f, for CSR rows x_i of X and for
// a block of UB rows y_u of U, with u = first .. first + UB - 1.
// In:
//   indptr, indices, data    the rows x_i in CSR
//   xx, uu                   squared norms: xx[i] = |x_i|^2, uu[u] = |y_u|^2
//   block, line_of, mark     the rows y_u, as the kernels in scatter.cl have written them (see below)
//   count                    count[0] is the number of rows of U
//   dense, dense_columns     only with DENSE_COLUMNS: the densely stored columns of X, and their number
//   rows                     only with LISTED: row r of the launch is row rows[r] of X. Otherwise it is row r of X.
// Out:
//   K    stored (macro STORE) or added to weighted sums (macro UPDATE), see epilogue.mako
// ``block`` consists of lines of UB values, one value for each row y_u. All values of line 0 are zero. A feature j that
// has an entry in any of the rows y_u has its own line. All other features have line 0:
//   y_u[j] = block[line * UB + u - first],   line = max(line_of[j] - mark, 0)
// If feature j has its own line, line_of[j] is ``mark`` plus the number of this line. For any other feature,
// line_of[j] may still have a number from an earlier block. ``mark`` is at least as large as every number from earlier
// blocks. The formula then gives line 0, so line_of need not be cleared between blocks.
// ELEMENTWISE: an element-wise kernel function is f(s) with s = sum_j e(x_i[j], y_u[j]), where e is a function of two
// values. With zero(y) = sum_j e(0, y[j]), only the features j that have an entry in x_i have to be read:
//   s = zero(y_u) + sum_j (e(x_i[j], y_u[j]) - e(0, y_u[j])),   over the features j with an entry in x_i
// For element-wise functions, uu[u] = zero(y_u) in place of the squared norm (zero_sums.mako).
// DENSE_COLUMNS: further columns of X and U are stored densely, zeros included. The sums start with the terms of these
// columns (dense_columns_simd.mako).
// SYMMETRIC: X and U are the same rows. Blocks of values that follow by symmetry are left out, and mirror.cl fills them
// in.
// Work-items: each takes V rows x_i, one after another, where V is the length of a SIMD vector. A work-item multiplies
// each entry of a row by the UB values of a line. At the end it transposes V x V blocks of sums, so that a vector has
// the values of one row y_u and V consecutive rows x_i.
kernel EXPLICIT void gram(
    const int group0, const int groups, const int base, global const long *restrict indptr,
    global const INDEX *restrict indices, global const real *restrict data, global const real *restrict dense,
    const int dense_columns, global const int *restrict rows,
    global const real *restrict xx, const int first, const int mark, global const int *restrict count, global const int *restrict line_of,
    global const real *restrict block, global const real *restrict uu
    STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  const size_t row = (size_t)(group0 + get_global_id(0)) * V, to = row - base;
  const int total = count[0];
  if (first >= total) return;
#ifdef SYMMETRIC
  if (first >= group0 * V && first + UB <= row) return;
#endif
  real norms[V];
  for (int r = 0; r < V; ++r) {
#ifdef LISTED
    const int i = rows[row + r];
    norms[r] = i >= 0 ? xx[i] : (real)0;
#else
    norms[r] = xx[row + r];
#endif
  }
  const realv x2 = loadv(0, norms);
  real tile[UB * V] __attribute__((aligned(128)));
<%include file="dense_columns_simd.mako"/>
  bool thin = true;
  for (int r = 0; r < V; ++r) {
    realv sum[UB / V];
#pragma unroll
    for (int v = 0; v < UB / V; ++v) {
#ifdef DENSE_COLUMNS
      sum[v] = loadv(0, tile + (v * V + r) * V);
#else
      sum[v] = (realv)(real)0;
#endif
    }
#ifdef ELEMENTWISE
    realv zero_terms[UB / V];
#pragma unroll
    for (int v = 0; v < UB / V; ++v) zero_terms[v] = (realv)(real)0;
#endif
#ifdef LISTED
    const int i = rows[row + r];
    const long begin = i >= 0 ? indptr[i] : 0, end = i >= 0 ? indptr[i + 1] : 0;
#else
    const long begin = indptr[row + r], end = indptr[row + r + 1];
#endif
<%include file="chain_csr_simd.mako"/>
#ifdef ELEMENTWISE
#pragma unroll
    for (int v = 0; v < UB / V; ++v) sum[v] += loadv(v, uu + first) - zero_terms[v];
#endif
#pragma unroll
    for (int v = 0; v < UB / V; ++v) storev(sum[v], 0, tile + (v * V + r) * V);
  }
  for (int v = 0; v < UB / V; ++v) {
    const int u0 = first + v * V;
    if (u0 >= total) break;
    realv k[V];
#pragma unroll
    for (int r = 0; r < V; ++r) k[r] = loadv(v * V + r, tile);
    transpose(k);
    const int valid = min(V, total - u0);
    realv *value = k;
<%include file="finish_simd.mako"/>
  }
  FENCED
}
