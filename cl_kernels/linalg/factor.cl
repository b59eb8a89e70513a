// Compute the Cholesky factor U of a block S (b, b) on the diagonal of a symmetric matrix C, with U^T U = S.
// in, out: C        S[i][j] = C[at + i * ld + j] for j >= i. ``at`` is the index of S[0][0], and ld the length of a row
//                   of C. U replaces S. Afterwards the numbers of the block below its diagonal have no meaning.
// in, out: failed   failed[0] is 0, or the number, counted from 1, of the row of C at which a factorization failed
// For k = 0, 1, ..., b - 1, row k is divided by the square root of its diagonal entry S[k][k]. Then the outer product
// of row k with itself is subtracted from the rows below it.
// If S[k][k] is not positive and finite, the kernel sets failed[0] to 1 + first + k and stops. ``first`` is the number
// of the block's first row in C. If failed[0] is not 0 at the start, an earlier block has failed, and the kernel does
// nothing.
// Work-items: one work-group. Its items share the entries of the rows below row k, and consecutive items write
// consecutive columns.
// SIMD style (on CPUs): one work-item, which computes with vectors of V numbers. In each row the first vector is the
// one that contains the diagonal entry.
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
