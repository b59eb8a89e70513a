// The Cholesky factor of a block of b x b, U' U = S, in its place:  S[i][j] = C[at + i ld + j],  j >= i
// by one work-group, a row at a time: the row over the root of its pivot, then its outer product off all rows below. In
// the vector shape one item does it, V numbers at a time from the one on that holds the diagonal: what it changes below
// the diagonal means nothing. failed[0] becomes 1 + first + i at the first pivot that is not above 0, and all later
// blocks are left alone.
kernel OF_GROUP void factor(global real *C, const long at, const long ld, const int b, const int first,
                   global int *restrict failed) {
  global real *S = C + at;
  if (failed[0]) return;
#ifdef VECTOR
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
    if (!(pivot > 0) || isinf(pivot)) {  // (the same for all items)
      if (lid == 0) failed[0] = 1 + first + k;
      return;
    }
    const real root = sqrt(pivot);
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (int j = k + lid; j < b; j += WG) S[k * ld + j] /= root;
    barrier(CLK_GLOBAL_MEM_FENCE);
    const int rest = b - k - 1;
    for (int e = lid; e < rest * rest; e += WG) {
      const int i = k + 1 + e / rest, j = k + 1 + e % rest;
      if (j >= i) S[i * ld + j] = fma(-S[k * ld + i], S[k * ld + j], S[i * ld + j]);
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
  }
#endif
}
