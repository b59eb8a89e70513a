// Subtract the vector ``centre`` from rows of X, and store the differences in lane groups. A lane group has V rows, and
// stores the V values of a feature one after another. The place of a row in its lane group is called its lane.
// in:  row0, rows, d         X holds the rows with the numbers row0 .. row0 + rows - 1, of d features each
// in:  X, begin              feature j of row number r is X[begin + (r - row0) * d + j]
// in:  group0                the number of the first lane group that this launch writes
// in:  order                 order[g * V + lane] is the number of the row in lane ``lane`` of lane group g. It is
//                            negative if the lane has no row.
// in:  centre                the d numbers to subtract, one for each feature
// in:  at                    at[g] is the index in ``values`` of the first value of lane group g
// in:  columns, columns_at   the features J[0], J[1], ... that lane group g stores. J[k] is columns[columns_at[g] + k].
//                            The last feature is columns[columns_at[g + 1] - 1].
// in:  dense                 1 if every lane group stores all d features. Then J[k] = k, and ``columns`` is not read.
// out: values                with the row x in lane ``lane`` of lane group g,
//                              values[at[g] + k * V + lane] = x[J[k]] - centre[J[k]]
// Lanes without a row, and lanes whose row is not in X, get zeros.
// Work-items: each lane group has S work-items, numbered from 0. S is 1 in SIMD style (on CPUs), else 64. Work-item s
// computes the features J[s], J[s + S], J[s + 2 * S], ... of all V rows of the lane group.
#ifndef INPUT
#define INPUT float  // type of the caller's values
#endif
#ifndef INDEX
#define INDEX int
#endif

#define FIRST get_global_id(0)
#define STEP get_global_size(0)

kernel OF_ITEMS(64) void pack(const int row0, const int rows, const int d, global const INPUT *restrict X, const int begin,
                    const int group0,
                 global const int *restrict order, global const finest *restrict centre,
                 global const long *restrict at, global const int *restrict columns_at,
                 global const int *restrict columns, const int dense, global real *restrict values) {
  const int g = group0 + get_global_id(1);
  const int length = dense ? d : columns_at[g + 1] - columns_at[g];
  global const int *restrict J = columns + (dense ? 0 : columns_at[g]);
  for (int lane = 0; lane < V; ++lane) {
    const int i = order[(size_t)g * V + lane] - row0;
    const bool valid = i >= 0 && i < rows;
    global const INPUT *restrict x = X + begin + (valid ? (size_t)i * d : 0);
    global real *restrict to = values + at[g] + lane;
    if (!valid) {
      for (int j = FIRST; j < length; j += STEP) to[(size_t)j * V] = 0;
    } else if (dense) {
      for (int j = FIRST; j < length; j += STEP) to[(size_t)j * V] = (real)((finest)x[j] - centre[j]);
    } else {
      for (int j = FIRST; j < length; j += STEP) to[(size_t)j * V] = (real)((finest)x[J[j]] - centre[J[j]]);
    }
  }
}

// Compute the squared norms xx[i] = <x_i, x_i> of rows in lane groups. A lane group has V rows, whose values are
// interleaved.
// The terms are added in the order of the columns. The kernels that compute inner products use the same order, so that
// the squared distance |x|^2 + |x|^2 - 2 <x, x> of a row x from itself is exactly 0.
// A work-item takes one row i, or in SIMD style the V rows of a lane group.
kernel EXPLICIT void norms_lanes(const int group0, const int d, global const real *restrict values,
                        global const long *restrict at, global const int *restrict columns_at, const int dense,
                        global real *restrict xx) {
#ifdef SIMD
#define LANES V
#define ROWS realv
#define LOAD(p) loadv(0, p)
#define STORE(x, p) storev(x, 0, p)
#else
#define LANES 1
#define ROWS real
#define LOAD(p) (*(p))
#define STORE(x, p) *(p) = x
#endif
  const size_t i = get_global_id(0) * LANES, g = group0 + i / V, lane = i % V;
  const int length = dense ? d : columns_at[g + 1] - columns_at[g];
  global const real *restrict x = values + at[g] + lane;
  ROWS sum = (ROWS)(real)0;
  for (int j = 0; j < length; ++j) sum = fma(LOAD(x + (size_t)j * V), LOAD(x + (size_t)j * V), sum);
  STORE(sum, xx + g * V + lane);
}

kernel EXPLICIT void norms_csr(global const long *restrict indptr, global const real *restrict data,
                      global const real *restrict dense, const int dense_columns, global real *restrict xx) {
  const size_t i = get_global_id(0);
  real sum = 0;
  for (int j = 0; j < dense_columns; ++j) sum = fma(dense[i * dense_columns + j], dense[i * dense_columns + j], sum);
  for (long e = indptr[i]; e < indptr[i + 1]; ++e) sum = fma(data[e], data[e], sum);
  xx[i] = sum;
}
