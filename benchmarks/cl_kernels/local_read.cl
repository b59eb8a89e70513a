// Measure the peak of local memory: out[i] is the sum of steps x CHAINS vectors that item i reads. Consecutive items
// read consecutive addresses.
#ifndef LANES
#define LANES 4  // floats of a vector (2, 4, 8, 16)
#endif
#ifndef CHAINS
#define CHAINS 4  // independent accumulators
#endif
#ifndef GROUP
#define GROUP 1  // work-items of a group
#endif
#define VECTORS (4096 / LANES)  // 16 KB, a power of two
#define floatl CAT(float, LANES)
#define loadl CAT(vload, LANES)
#define storel CAT(vstore, LANES)

// first: 4096 numbers
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void local_read(
    const int steps, global const float *restrict first, global float *restrict out) {
  local floatl room[VECTORS];
  const int lid = get_local_id(0);
  for (int i = lid; i < VECTORS; i += GROUP) room[i] = loadl(i, first);
  barrier(CLK_LOCAL_MEM_FENCE);
  floatl v[CHAINS];
#pragma unroll
  for (int c = 0; c < CHAINS; ++c) v[c] = (floatl)0.0f;
  for (int s = 0, at = lid; s < steps; ++s, at += CHAINS * GROUP) {
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) v[c] += room[(at + c * GROUP) & (VECTORS - 1)];
  }
  floatl sum = v[0];
#pragma unroll
  for (int c = 1; c < CHAINS; ++c) sum += v[c];
  float part[LANES], total = 0;
  storel(sum, 0, part);
  for (int l = 0; l < LANES; ++l) total += part[l];
  out[get_global_id(0)] = total;
}
