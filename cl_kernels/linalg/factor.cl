// Compute the Cholesky factor U of a diagonal block S (b, b) of a matrix C, with U^T U = S. U replaces S in C:
//   S[i][j] = C[at + i * ld + j],   j >= i,   where ``at`` is the offset of the block and ld the length of a row of C
// The rows k are taken one after another. Row k is divided by the square root of its pivot S[k][k]. Then the outer
// product of row k with itself is subtracted from the rows below it. At the end, the numbers below the diagonal have no
// meaning.
// Work-items: one work-group factors the block. Its items divide the entries that row k changes in the rows below it.
// Consecutive items write consecutive columns.
// SIMD style (on CPUs): one work-item factors the block, in vectors of V numbers. In each row the first vector is the
// one that contains the diagonal entry.
// The kernel stops at the first pivot S[i][i] that is not positive and finite, and sets failed[0] to 1 + first + i.
// ``first`` is the number of the block's first row in C. If failed[0] is not 0 at the start, because an earlier block
// failed, the kernel does nothing.
kernel OF_GROUP void factor(global real *C, const long at, const long ld, const int b, const int first,
                   global int *restrict failed) {
  global real *S = C + at;
  if (failed[0]) return;
#ifdef SIMD
  for (int k = 0; k < b; ++k) {
    global real *row = S + k * ld;
    const real pivot = row[k];
    if (!(pivot > 0) || isinf(pivot)) {
      failed[0] = 1 + first + k;
      return;
    }
    const real root = sqrt(pivot);
    for (int j = k; j < b; ++j) row[j] /= root;
    for (int i = k + 1; i < b; ++i) {
      const realv times = (realv)-row[i];
      for (int j = i / V * V; j < b; j += V) {
        global real *to = S + i * ld + j;
        storev(fma(times, loadv(0, row + j), loadv(0, to)), 0, to);
      }
    }
  }
#else
  const int lid = get_local_id(0);
  for (int k = 0; k < b; ++k) {
    const real pivot = S[k * ld + k];
    if (!(pivot > 0) || isinf(pivot)) {  // all items read the same pivot, so all return
      if (lid == 0) failed[0] = 1 + first + k;
      return;
    }
    const real root = sqrt(pivot);
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (int j = k + lid; j < b; j += WG) S[k * ld + j] /= root;
    barrier(CLK_GLOBAL_MEM_FENCE);
    const int left = b - k - 1;
    for (int e = lid; e < left * left; e += WG) {
      const int i = k + 1 + e / left, j = k + 1 + e % left;
      if (j >= i) S[i * ld + j] = fma(-S[k * ld + i], S[k * ld + j], S[i * ld + j]);
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
  }
#endif
}
