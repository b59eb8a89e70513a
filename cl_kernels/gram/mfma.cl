// Multiply parts of matrices by AMD's matrix units (v_mfma_f32_32x32x2f32), in float32:
//   sums[u][i] += sum_j y_u[j] * x_i[j],   over 2 features j, for 32 rows x_i of X and 32 rows y_u of U
// The sums are parts of inner products for a kernel matrix K(X, U). The rows y_u are called right-hand rows.
// One instruction multiplies two parts of matrices, called fragments: 2 features of 32 rows x_i and of 32 rows y_u. The
// 64 work-items of a wavefront hold the fragments and the 32 x 32 sums together, in the layout of AMD's CDNA manual.
// Each work-item holds one number of each fragment, and an array of 16 sums.
// The rows x_i are the rows of the manual's matrix A. The elements 4 * m to 4 * m + 3 of the array then belong
// to one row y_u and to four consecutive rows x_i, for m = 0 .. 3.
// The macro EMULATED makes the function ``multiplied`` compute the same sums in OpenCL C, without matrix units. All
// work-items of a work-group must then call this function together, because they exchange values through local memory.
#define WARP 64  // work-items that hold a fragment together
#define FRAGMENT_ROWS 32
#define FRAGMENT_VECTORS 32
#define FRAGMENT_FEATURES 2
#define X_VALUES 1  // values of X that a work-item holds in a fragment; U_VALUES: values of U; SUMS: sums
#define U_VALUES 1
#define SUMS 16
#define X_ROW(lane, r) ((lane) % 32)
#define X_FEATURE(lane, r) ((lane) / 32)
#define U_VECTOR(lane, r) ((lane) % 32)
#define U_FEATURE(lane, r) ((lane) / 32)
#define SUM_ROW(lane, s) (8 * ((s) / 4) + 4 * ((lane) / 32) + (s) % 4)
#define SUM_VECTOR(lane, s) ((lane) % 32)
#define SHARING 32  // work-items that hold sums of the same row x; SHARE: number of item ``lane`` among them
#define SHARE(lane) ((lane) % 32)
#define RUN 4  // consecutive sums of an item belong to this many consecutive rows x
typedef float4 run;
#define RUN_OF(k, s) ((run)((k)[s], (k)[(s) + 1], (k)[(s) + 2], (k)[(s) + 3]))
#define high_of(x) (x)  // float32 needs no split
#define low_of(x, high) 0.0f

#ifdef EMULATED
#define EXCHANGED (FRAGMENT_FEATURES * (FRAGMENT_ROWS + FRAGMENT_VECTORS))  // numbers that a wavefront exchanges
#define EXCHANGE local float exchange[ITEMS / WARP * EXCHANGED];
#define EXCHANGING , exchange + get_local_id(0) / WARP * EXCHANGED
// Compute D = D + A B in the layout of AMD's manual, for the matrices A (32, 2), B (2, 32) and D (32, 32).
// Work-item 32 * k + i holds A[i][k] in ``x``, and work-item 32 * k + j holds B[k][j] in ``u``.
// D[i][j] is held by work-item ((i / 4) % 2) * 32 + j, as element (i / 8) * 4 + i % 4 of its array ``sums`` (integer
// divisions).
INLINED void multiplied(float *sums, const float *u, const float *u_low, const float *x, const float *x_low, local float *exchange) {
  const int lane = get_local_id(0) % WARP, j = lane % 32;
  exchange[lane] = x[0], exchange[WARP + lane] = u[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < FRAGMENT_ROWS; ++i)
    if (i / 4 % 2 == lane / 32) {
      const int s = i / 8 * 4 + i % 4;
      for (int k = 0; k < FRAGMENT_FEATURES; ++k) sums[s] = fma(exchange[32 * k + i], exchange[WARP + 32 * k + j], sums[s]);
    }
  barrier(CLK_LOCAL_MEM_FENCE);
}
#else
#define EXCHANGE
#define EXCHANGING

inline void multiplied(float *sums, const float *u, const float *u_low, const float *x, const float *x_low) {
  float16 d;
  __private float *at = (__private float *)&d;
#pragma unroll
  for (int s = 0; s < SUMS; ++s) at[s] = sums[s];
  d = __builtin_amdgcn_mfma_f32_32x32x2f32(x[0], u[0], d, 0, 0, 0);
#pragma unroll
  for (int s = 0; s < SUMS; ++s) sums[s] = at[s];
}
#endif
