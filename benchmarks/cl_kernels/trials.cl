// An instruction or call that some devices have and OpenCL C has not, or not everywhere, ``steps`` times by every
// work-group: is it built, is it right, what does a step take. One of
//   SHUFFLE_PTX, SHUFFLE_KHR, SHUFFLE_INTEL, SHUFFLE_AMD   out[i] = in[l ^ 1], l the item within the group, steps odd
//   MMA_TF32   D = steps A B, A (16, 8) and B (8, 8) one after the other in in[], D (16, 8)
//   MMA_F16    D = steps A B, A (16, 16) and B (16, 8), D (16, 8)
//   MFMA_F32   D = steps A B, A (32, 2) and B (2, 32), D (32, 32)
//   CP_ASYNC   out[i] = the four numbers of item l + 1 together, which came to local memory past the registers
//   BARRIER    out[i] = in[l], after steps barriers
// Every group writes its own results behind those of the groups before. The fragments are those of the PTX manual
// (mma.m16n8k8, mma.m16n8k16) and of AMD's for CDNA (v_mfma_f32_32x32x2f32).
#define GROUP get_group_id(0)
#define ITEM (int)get_local_id(0)

#if defined(SHUFFLE_PTX)
inline float shuffled(float x) {
  float y;
  __asm__ volatile("shfl.sync.bfly.b32 %0, %1, 1, 0x1f, 0xffffffff;" : "=f"(y) : "f"(x));
  return y;
}
#elif defined(SHUFFLE_KHR)
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
#define shuffled(x) sub_group_shuffle_xor(x, 1u)
#elif defined(SHUFFLE_INTEL)
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#define shuffled(x) intel_sub_group_shuffle_xor(x, 1u)
#elif defined(SHUFFLE_AMD)
#define shuffled(x) as_float(__builtin_amdgcn_ds_swizzle(as_int(x), 0x041F))
#endif

#if defined(MMA_F16)
inline uint halves(float low, float high) {
  uint both;
  __asm__("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
#endif

kernel void trial(const int steps, global const float *in, global float *out) {
#if defined(MMA_TF32) || defined(MMA_F16)
  const int g = ITEM / 4, t = ITEM % 4;
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
#if defined(MMA_TF32)
  global const float *A = in, *B = in + 16 * 8;
  const uint a0 = as_uint(A[g * 8 + t]), a1 = as_uint(A[(g + 8) * 8 + t]), a2 = as_uint(A[g * 8 + t + 4]);
  const uint a3 = as_uint(A[(g + 8) * 8 + t + 4]), b0 = as_uint(B[t * 8 + g]), b1 = as_uint(B[(t + 4) * 8 + g]);
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#else
  global const float *A = in, *B = in + 16 * 16;
  const uint a0 = halves(A[g * 16 + 2 * t], A[g * 16 + 2 * t + 1]);
  const uint a1 = halves(A[(g + 8) * 16 + 2 * t], A[(g + 8) * 16 + 2 * t + 1]);
  const uint a2 = halves(A[g * 16 + 2 * t + 8], A[g * 16 + 2 * t + 9]);
  const uint a3 = halves(A[(g + 8) * 16 + 2 * t + 8], A[(g + 8) * 16 + 2 * t + 9]);
  const uint b0 = halves(B[2 * t * 8 + g], B[(2 * t + 1) * 8 + g]);
  const uint b1 = halves(B[(2 * t + 8) * 8 + g], B[(2 * t + 9) * 8 + g]);
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif
  for (int s = 0; s < steps; ++s)
    __asm__ volatile(MMA " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  global float *D = out + GROUP * 16 * 8;
  D[g * 8 + 2 * t] = d0;
  D[g * 8 + 2 * t + 1] = d1;
  D[(g + 8) * 8 + 2 * t] = d2;
  D[(g + 8) * 8 + 2 * t + 1] = d3;
#elif defined(MFMA_F32)
  const float a = in[(ITEM % 32) * 2 + ITEM / 32], b = in[32 * 2 + (ITEM / 32) * 32 + ITEM % 32];
  float16 d = (float16)(0.0f);
  for (int s = 0; s < steps; ++s) d = __builtin_amdgcn_mfma_f32_32x32x2f32(a, b, d, 0, 0, 0);
  global float *D = out + GROUP * 32 * 32;
  for (int i = 0; i < 16; ++i) D[(8 * (i / 4) + 4 * (ITEM / 32) + i % 4) * 32 + ITEM % 32] = d[i];
#elif defined(CP_ASYNC)
  local float staged[4 * SIZE] __attribute__((aligned(16)));
  const int next = (ITEM + 1) % SIZE;
  float sum = 0;
  for (int s = 0; s < steps; ++s) {
    __asm__ volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((uint)(ulong)(staged + 4 * ITEM)), "l"((ulong)(in + 4 * ITEM))
                 : "memory");
    __asm__ volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = staged[4 * next] + staged[4 * next + 1] + staged[4 * next + 2] + staged[4 * next + 3];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  out[get_global_id(0)] = sum;
#elif defined(BARRIER)
  local float kept[SIZE];
  kept[ITEM] = in[ITEM];
  float x = 0;
  for (int s = 0; s < steps; ++s) {
    barrier(CLK_LOCAL_MEM_FENCE);
    x = kept[(ITEM + s) % SIZE];
  }
  out[get_global_id(0)] = kept[ITEM] + 0 * x;
#else
  float x = in[ITEM];
  for (int s = 0; s < steps; ++s) x = shuffled(x);
  out[get_global_id(0)] = x;
#endif
}
