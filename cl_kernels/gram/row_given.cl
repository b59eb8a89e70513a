// Rows of Q = K(ws, ws) picked when the subproblem first asks for them: of most coefficients, which never change, it asks
// for none. Vector shape: the work-item that solves the problem picks them, from K that is on the device whole,
//   Q[i][k] = K[number[i]][number[k]]
// with row i of K in slot i: gathers within one row, whose lines follow each other where the numbers ascend.
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
