// Pick rows of a subproblem's tile Q = K(ws, ws), each when the subproblem first needs it. Most coefficients never
// change, and their rows are never picked.
//   Q[i][k] = K[number[i]][number[k]]
// K is on the device whole, with row i in slot i. SIMD only: the work-item that solves the problem gathers values
// within one row of K, whose cache lines follow one another if the numbers ascend. made[i] marks the rows of Q that
// exist.
#define ROWS_PARAMETERS , global uchar *restrict made, SLABS_GIVEN, const int slab_rows, const long ld, \
    global const int *restrict number
#define ROWS_BEGIN made += (size_t)p * W, number += (size_t)p * W;
#define ROW(i) \
  if (!made[i]) { \
    global const real *restrict from = STORED_ROW(number[i]); \
    global real *restrict to = Q + (size_t)(i) * W; \
    made[i] = 1; \
    for (int k = 0; k < rows; ++k) to[k] = from[number[k]]; \
    for (int k = rows; k < W; ++k) to[k] = 0; \
  }
#define ROWS_DIAGONAL \
  for (int k = 0; k < rows; ++k) diagonal[k] = STORED_ROW(number[k])[number[k]]; \
  for (int k = rows; k < W; ++k) diagonal[k] = 0;
