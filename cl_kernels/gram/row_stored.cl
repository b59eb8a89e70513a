// Copy row i of Q from the stored kernel matrix K when an SMO solver first needs the row. Q = K(ws, ws) has the kernel
// values among the W rows of a working set ws:
//   Q[i][k] = K[number[i]][number[k]],   where number[k] is the row of K that belongs to row k of ws
// All rows of K are stored. Row r is at the address STORED_ROW(r) (common.cl).
// Most coefficients never change, so most rows of Q are never copied. made[i] says whether row i of Q has been copied.
// Only kernels in SIMD style (on CPUs) include this file. One work-item of such a kernel solves the problem of the
// working set, and copies rows of Q too.
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
