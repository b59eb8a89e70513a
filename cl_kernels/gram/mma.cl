// Multiply parts of float32 matrices by NVIDIA's matrix units (mma.sync m16n8k8), which multiply tf32 numbers:
//   sums[u][i] += sum_j y_u[j] * x_i[j],   over 8 features j, for 8 rows x_i of X and 16 rows y_u of U
// The sums belong to a product K(X, U), and the rows y_u are called right-hand rows.
// A tf32 number has 11 significant bits. Each float32 number is split into two tf32 numbers, high + low. ``high`` is
// the number, rounded to nearest (halves away from 0). ``low`` is the number minus high, rounded in the same way.
// Three products of tf32 numbers then replace each product a * b, with an error of at most 2^-21 * |a * b|:
//   low_a * high_b + high_a * low_b + high_a * high_b
// The units truncate sums instead of rounding them. To limit this error, the units add only the products of eight
// features. Ordinary float32 additions add the sums of the units.
// One instruction reads a part of a matrix, called a fragment. The 32 work-items of a warp hold a fragment together, in
// the layout of the PTX manual.
// The macro EMULATED makes the function ``multiplied`` compute the same sums in OpenCL C, without matrix units. All
// work-items of a work-group must then call this function together, because they exchange values through local memory.
#define WARP 32  // work-items that hold a fragment together
#define FRAGMENT_ROWS 8
#define FRAGMENT_VECTORS 16
#define FRAGMENT_FEATURES 8
#define X_VALUES 2  // values of X that a work-item holds in a fragment; U_VALUES: values of U; SUMS: sums
#define U_VALUES 4
#define SUMS 4
#define X_ROW(lane, r) ((lane) / 4)
#define X_FEATURE(lane, r) ((lane) % 4 + 4 * (r))
#define U_VECTOR(lane, r) ((lane) / 4 + 8 * ((r) % 2))
#define U_FEATURE(lane, r) ((lane) % 4 + 4 * ((r) / 2))
#define SUM_ROW(lane, s) (2 * ((lane) % 4) + (s) % 2)
#define SUM_VECTOR(lane, s) ((lane) / 4 + 8 * ((s) / 2))
#define SHARING 8  // work-items that hold sums of the same row x; SHARE: number of item ``lane`` among them
#define SHARE(lane) ((lane) / 4)
#define RUN 2  // consecutive sums of an item belong to this many consecutive rows x
typedef float2 run;
#define RUN_OF(k, s) ((run)((k)[s], (k)[(s) + 1]))

inline float high_of(const float x) { return as_float((as_uint(x) + 0x1000u) & 0xffffe000u); }
#define low_of(x, high) high_of((x) - (high))

#ifdef EMULATED
#define EXCHANGED (FRAGMENT_FEATURES * (FRAGMENT_VECTORS + FRAGMENT_ROWS))  // numbers that a warp exchanges
#define EXCHANGE local float exchange[ITEMS / WARP * EXCHANGED];
#define EXCHANGING , exchange + get_local_id(0) / WARP * EXCHANGED
#define EXCHANGING_PARAMETER , local float *exchange
#define READ(x) as_float(as_uint(x) & 0xffffe000u)
// Compute S[a][b] += sum_j U[a][j] * X[b][j] for tf32 numbers, as NVIDIA's instruction mma.sync m16n8k8 does.
// U has 16 rows a, X has 8 rows b, and both have 8 features j. All work-items of a work-group call the function
// ``units`` below together. Each warp of 32 work-items has its own matrices S, U and X. The items of a warp hold these
// matrices together, as the PTX manual says. Item ``lane`` of the warp holds (all divisions are integer divisions):
//   u[r] = U[lane / 4 + 8 * (r % 2)][lane % 4 + 4 * (r / 2)] for r < 4
//   x[r] = X[lane / 4][lane % 4 + 4 * r] for r < 2
//   sums[s] = S[lane / 4 + 8 * (s / 2)][2 * (lane % 4) + s % 2] for s < 4
// The items of a warp exchange the numbers u and x through local memory, the array ``exchange``. The array has u[r] at
// index 32 * r + lane. The part ``of_x`` of the array begins at index 128, and has x[r] at its index 32 * r + lane.
INLINED void units(float *sums, const float *u, const float *x EXCHANGING_PARAMETER) {
  const int lane = get_local_id(0) % WARP;
  local float *of_x = exchange + WARP * U_VALUES;
  for (int r = 0; r < U_VALUES; ++r) exchange[WARP * r + lane] = READ(u[r]);
  for (int r = 0; r < X_VALUES; ++r) of_x[WARP * r + lane] = READ(x[r]);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int s = 0; s < SUMS; ++s) {
    const int vector = lane / 4 + s / 2 * 8, row = lane % 4 * 2 + s % 2;
    finest sum = sums[s];
    for (int j = 0; j < FRAGMENT_FEATURES; ++j)
      sum += (finest)exchange[WARP * (vector / 8 + j / 4 * 2) + vector % 8 * 4 + j % 4] * of_x[WARP * (j / 4) + row * 4 + j % 4];
    sums[s] = convert_float_rtz(sum);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
}
#else
#define EXCHANGE
#define EXCHANGING
#define EXCHANGING_PARAMETER
inline void units(float *sums, const float *u, const float *x) {
  __asm__("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(as_uint(u[0])), "r"(as_uint(u[1])), "r"(as_uint(u[2])), "r"(as_uint(u[3])), "r"(as_uint(x[0])),
            "r"(as_uint(x[1])));
}
#endif

INLINED void multiplied(float *sums, const float *u, const float *u_low, const float *x, const float *x_low EXCHANGING_PARAMETER) {
  float part[SUMS] = {0, 0, 0, 0};
#ifdef EMULATED
#define PASSED , exchange
#else
#define PASSED
#endif
  units(part, u_low, x PASSED);
  units(part, u, x_low PASSED);
  units(part, u, x PASSED);
  sums[0] += part[0], sums[1] += part[1], sums[2] += part[2], sums[3] += part[3];
}
