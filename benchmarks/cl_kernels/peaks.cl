// Measure the peaks of fused multiply-adds and of reads.
//   fma_chains  out[i] = sum over CHAINS LANES numbers v, each after ``steps`` of v <- v a + b, all independent
//   read_sum    out[i] = sum over ``count`` vectors of x: with PIECES a piece of x in STREAMS interleaved stretches,
//               otherwise every global-size-th vector, so that consecutive items read consecutive addresses
#ifndef LANES
#define LANES 16  // floats of a vector (2, 4, 8, 16)
#endif
#ifndef CHAINS
#define CHAINS 8  // independent accumulators; divides count
#endif
#ifndef STREAMS
#define STREAMS 1  // stretches of a piece; divides CHAINS
#endif
#define floatl CAT(float, LANES)
#define loadl CAT(vload, LANES)
#define storel CAT(vstore, LANES)

inline float lanes_sum(const floatl v) {
  float part[LANES], sum = 0;
  storel(v, 0, part);
  for (int l = 0; l < LANES; ++l) sum += part[l];
  return sum;
}

// a, b and the first CHAINS LANES values are arguments, so that the compiler computes nothing in advance.
kernel __attribute__((vec_type_hint(floatl))) void fma_chains(
    const int steps, const float a, const float b, global const float *restrict first, global float *restrict out) {
  floatl v[CHAINS];
#pragma unroll
  for (int c = 0; c < CHAINS; ++c) v[c] = loadl(c, first);
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) v[c] = fma(v[c], (floatl)a, (floatl)b);
  }
  floatl sum = v[0];
#pragma unroll
  for (int c = 1; c < CHAINS; ++c) sum += v[c];
  out[get_global_id(0)] = lanes_sum(sum);
}

kernel __attribute__((vec_type_hint(floatl))) void read_sum(
    const int count, global const float *restrict x, global float *restrict out) {
#ifdef PIECES
  const size_t step = 1;
  x += get_global_id(0) * (size_t)count * LANES;
#else
  const size_t step = get_global_size(0);
  x += get_global_id(0) * LANES;
#endif
  floatl v[CHAINS];
#pragma unroll
  for (int c = 0; c < CHAINS; ++c) v[c] = (floatl)0.0f;
  const int each = CHAINS / STREAMS;
  for (int k = 0; k < count / STREAMS; k += each) {
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) v[c] += loadl((c / each * (size_t)(count / STREAMS) + k + c % each) * step, x);
  }
  floatl sum = v[0];
#pragma unroll
  for (int c = 1; c < CHAINS; ++c) sum += v[c];
  out[get_global_id(0)] = lanes_sum(sum);
}
