// Solve U^T x = c by forward substitution, for an upper triangular matrix U (b, b) and many right-hand sides c:
//   x_u = (c_u - sum_{l < u} U[l][u] * x_l) / U[u][u],   u = 0 .. b - 1
// in:      values   U[l][u] = values[at + l * down + u * right]
// in, out: C        a matrix in row-major order with ld numbers in each row. Each column i of C has one right-hand side
//                   c in its rows k0 .. k0 + b - 1, so c_u = C[(k0 + u) * ld + i]. The solution x_u replaces c_u.
// out:     X        a copy of the solutions in blocks of V columns. The numbers of the columns of a block are
//                   interleaved. A column has memory for ``length`` numbers. The solution x_u for column i of C is
//                   copied to X[((i / V) * length + k0 + u) * V + i % V], with the integer division i / V.
// Work-items: item g solves for column group0 * V + g of C. In SIMD style (on CPUs), item g solves for the V columns
// from column (group0 + g) * V on. An item computes ROWS unknowns of a column at a time, and reads only unknowns that
// the item wrote itself. All items read the same numbers of U.
#define ROWS 8
#ifdef SIMD
#define LANES V
#define COLUMN realv
#define GET(p) loadv(0, p)
#define PUT(x, p) storev(x, 0, p)
#else
#define LANES 1
#define COLUMN real
#define GET(p) (*(p))
#define PUT(x, p) *(p) = x
#endif

kernel OF_ITEMS(V) void solve(const int group0, const int b, const int k0, global const real *restrict values, const long at,
                  const long down, const long right, global real *restrict C, const long ld, const int length, global real *X) {
  const size_t column = (size_t)group0 * V + get_global_id(0) * LANES;
  global const real *restrict U = values + at;
  global real *restrict c = C + k0 * ld + column;
  global real *x = X + ((column / V) * length + k0) * V + column % V;
  int u = 0;
  for (; u + ROWS <= b; u += ROWS) {
    COLUMN sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) sum[r] = GET(c + (u + r) * ld);
    for (int l = 0; l < u; ++l) {
      const COLUMN xl = -GET(x + (size_t)l * V);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) sum[r] = fma((COLUMN)U[l * down + (u + r) * right], xl, sum[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int q = 0; q < r; ++q) sum[r] = fma((COLUMN)U[(u + q) * down + (u + r) * right], -sum[q], sum[r]);
      sum[r] /= U[(u + r) * (down + right)];
      PUT(sum[r], x + (size_t)(u + r) * V);
      PUT(sum[r], c + (u + r) * ld);
    }
  }
  for (; u < b; ++u) {
    COLUMN sum = GET(c + u * ld);
    for (int l = 0; l < u; ++l) sum = fma((COLUMN)U[l * down + u * right], -GET(x + (size_t)l * V), sum);
    sum /= U[u * (down + right)];
    PUT(sum, x + (size_t)u * V);
    PUT(sum, c + u * ld);
  }
}
