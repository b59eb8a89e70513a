// Copy n vectors m_i of d numbers each into blocks of V vectors. A block interleaves the numbers of its V vectors.
// Kernels that multiply matrices read these blocks.
// in:  M    a matrix whose rows or columns are the vectors:   m_i[k] = M[from + i * stride + k * step]
//           If the vectors are rows of M, step is 1. If they are columns of M, stride is 1.
// out: to   the blocks. A block has places for V vectors of ``length`` numbers. The vector m_i is vector i % V of block
//           i / V (integer division). Number k of m_i is written to place to0 + k of this vector:
//             to[((i / V) * length + to0 + k) * V + i % V] = m_i[k]
// If n is not a multiple of V, the missing vectors of the last block are filled with zeros. If ``triangle`` is not 0,
// 0 is written in place of m_i[k] for each k < i.
// Work-items: S work-items copy each block, and divide its numbers among them. Neighbouring work-items read
// neighbouring numbers of M.
// SIMD style (on CPUs): S is 1, and the work-item reads and writes V numbers at a time. If step is 1, the work-item
// transposes V x V numbers in registers.
kernel OF_ITEMS(64) void pack(global const real *restrict M, const long from, const long stride, const long step, const int n,
                 const int d, const int triangle, const int to0, const int length, global real *restrict to) {
  const int i0 = get_global_id(1) * V, begin = triangle ? min(i0, d) : 0, valid = min(V, n - i0);
  global const real *restrict m = M + from + i0 * stride;
  global real *restrict block = to + ((size_t)get_global_id(1) * length + to0) * V;
#ifdef SIMD
  for (int k = 0; k < begin; ++k) storev((realv)(real)0, k, block);
  int k = begin;
  if (valid == V && stride == 1)
    for (; k < d; ++k) storev(loadv(0, m + k * step), k, block);
  if (valid == V && step == 1)
    for (; k + V <= d; k += V) {
      realv x[V];
#pragma unroll
      for (int r = 0; r < V; ++r) x[r] = loadv(0, m + r * stride + k);
      transpose(x);
#pragma unroll
      for (int r = 0; r < V; ++r) storev(x[r], k + r, block);
    }
  for (; k < d; ++k)
    for (int r = 0; r < V; ++r) block[(size_t)k * V + r] = r < valid ? m[r * stride + k * step] : (real)0;
  if (triangle)
    for (int c = begin; c < min(begin + V, d); ++c)
      for (int r = c - i0 + 1; r < V; ++r) block[(size_t)c * V + r] = 0;
#else
  for (size_t e = get_global_id(0); e < (size_t)d * V; e += get_global_size(0)) {
    const int r = step == 1 ? e / d : e % V, k = step == 1 ? e % d : e / V;
    const bool inside = r < valid && (!triangle || k >= i0 + r);
    block[(size_t)k * V + r] = inside ? m[r * stride + k * step] : (real)0;
  }
#endif
}
