// Copy row i of a matrix Q from the stored kernel matrix K, when an SMO solver first needs the row.
// Q (W, W) has the kernel values among the rows of a working set. Row k of the working set is row number[k] of K:
//   Q[i][k] = K[number[i]][number[k]]
// All rows of K are stored. Row r of K is at the address STORED_ROW(r) (common.cl).
// made[i] is 1 if row i of Q has been copied. Most rows are never copied, because the solver changes few coefficients
// of a working set.
// Only kernels in SIMD style (on CPUs) include this file. One work-item of such a kernel solves the problem of a
// working set, and copies the rows of Q that it needs.
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
