// Define the types and functions that all kernels share. Options (-D):
//   REAL64      the type real, of kernel values, is double; otherwise it is float
//   V           number of rows in a lane group, which interleaves the values of its rows. In SIMD style V is also
//     the length of vectors (type realv).
//   SIMD        SIMD style: a work-item computes with explicit vectors. Otherwise work-group style: the work-items of a
//     group share its work.
//   WIDE_PAIR   the type wide, of gradients and coefficients of the dual problem, is an unevaluated sum of two floats,
//     for devices without double precision. Otherwise it is double.
//   WG          number of work-items of a work-group in reductions, a power of two
//   SLABS       number of buffers (1 or 8) of the row cache, which stores rows of the kernel matrix
#ifndef V
#define V 16  // lanes: 8 or 16 in SIMD style, 32, 64 or 128 in work-group style
#endif
#define COUNTERS 4  // counters of a problem: [0] SMO iterations; for problem 0 also the counters of rowcache.cl
#ifndef WG
#define WG 1  // work-items of a work-group in reductions: 1 on a CPU, 64 to 256 on a GPU
#endif

#if !defined(WIDE_PAIR) || defined(REAL64)
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define FINEST double  // the most precise type of the device
#else
#define FINEST float
#endif
typedef FINEST finest;

#ifdef REAL64
#define REAL double
#else
#define REAL float
#endif
typedef REAL real;
#ifdef REAL64
#define NUMBER(x) x  // a literal of type real
#else
#define NUMBER(x) x##f
#endif

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

#ifdef SIMD
typedef CAT(REAL, V) realv;
typedef CAT(double, V) widev;
#define loadv CAT(vload, V)
#define storev CAT(vstore, V)
#define to_widev CAT(convert_double, V)
// Prefetch the cache line at any address p. OpenCL's own prefetch is a slow function call in some runtimes.
#if defined(__clang__) && !defined(NO_FETCH)
#define FETCH(p) __builtin_prefetch((const void *)(size_t)(p))
#else
#define FETCH(p)
#endif
// Transpose the V x V numbers k in registers by log2(V) perfect shuffles: lane c of k[r] becomes lane r of k[c].
inline void transpose(realv *k) {
  realv t[V];
  for (int stage = 1; stage < V; stage *= 4) {
#pragma unroll
    for (int r = 0; r < V / 2; ++r) {
      t[2 * r].even = k[r].lo, t[2 * r].odd = k[r + V / 2].lo;
      t[2 * r + 1].even = k[r].hi, t[2 * r + 1].odd = k[r + V / 2].hi;
    }
    if (2 * stage < V) {
#pragma unroll
      for (int r = 0; r < V / 2; ++r) {
        k[2 * r].even = t[r].lo, k[2 * r].odd = t[r + V / 2].lo;
        k[2 * r + 1].even = t[r].hi, k[2 * r + 1].odd = t[r + V / 2].hi;
      }
    } else {
#pragma unroll
      for (int r = 0; r < V; ++r) k[r] = t[r];
    }
  }
}
typedef realv kv;  // the type in which a kernel function is evaluated
// Tell compilers that a kernel is vectorised already, so that they do not vectorise across work-items.
#define EXPLICIT __attribute__((vec_type_hint(CAT(float, 16))))
#else
typedef real kv;
#define EXPLICIT
#endif

// Compute with wide numbers. A wide number is a double, or the unevaluated sum hi + lo of two floats with
// |lo| <= ulp(hi) / 2 (Dekker 1971; Knuth, The Art of Computer Programming, section 4.2.2).
#ifdef WIDE_PAIR
#pragma OPENCL FP_CONTRACT OFF
typedef float2 wide;
#define WIDE_MAX ((wide)(INFINITY, 0.0f))
inline wide wide_of(float a) { return (wide)(a, 0.0f); }
inline float wide_real(wide a) { return a.x; }
inline wide two_sum(float a, float b) {
  float s = a + b, t = s - a;
  return (wide)(s, (a - (s - t)) + (b - t));
}
inline wide quick_sum(float a, float b) {  // |a| >= |b|
  float s = a + b;
  return (wide)(s, b - (s - a));
}
inline wide wide_add(wide a, wide b) {
  wide s = two_sum(a.x, b.x), t = two_sum(a.y, b.y);
  s = quick_sum(s.x, s.y + t.x);
  return quick_sum(s.x, s.y + t.y);
}
inline wide wide_neg(wide a) { return -a; }
inline wide wide_mul(wide a, wide b) {
  float p = a.x * b.x;
  return quick_sum(p, fma(a.x, b.x, -p) + (a.x * b.y + a.y * b.x));
}
inline wide wide_div(wide a, wide b) {
  float q = a.x / b.x;
  wide r = wide_add(a, wide_neg(wide_mul(wide_of(q), b)));
  return quick_sum(q, r.x / b.x);
}
inline bool wide_less(wide a, wide b) { return a.x < b.x || (a.x == b.x && a.y < b.y); }
inline wide wide_pick(bool c, wide a, wide b) { return select(b, a, (int2)(c ? -1 : 0)); }
#else
typedef double wide;
#define WIDE_MAX ((wide)INFINITY)
inline wide wide_of(real a) { return a; }
inline real wide_real(wide a) { return (real)a; }
inline wide wide_add(wide a, wide b) { return a + b; }
inline wide wide_neg(wide a) { return -a; }
inline wide wide_mul(wide a, wide b) { return a * b; }
inline wide wide_div(wide a, wide b) { return a / b; }
inline bool wide_less(wide a, wide b) { return a < b; }
inline wide wide_pick(bool c, wide a, wide b) { return c ? a : b; }
#endif
#ifdef WIDE_PAIR
inline wide wide_fma(wide a, wide b, wide c) { return wide_add(c, wide_mul(a, b)); }
#else
inline wide wide_fma(wide a, wide b, wide c) { return fma(a, b, c); }
#endif
inline wide wide_sub(wide a, wide b) { return wide_add(a, wide_neg(b)); }
inline wide wide_min(wide a, wide b) { return wide_pick(wide_less(b, a), b, a); }
inline wide wide_max(wide a, wide b) { return wide_pick(wide_less(a, b), b, a); }

// Compute the one-sided derivatives of a dual objective by a coefficient b, and the range of b in one SMO iteration.
// The dual objective of epsilon-SVR has the term epsilon * |b|, whose derivative jumps at b = 0. So one iteration may
// not move b across 0. f is the derivative of all other terms.
//   right_of, left_of   derivative of the objective to the right and to the left of b
//   top_of              largest value that an iteration may give to b: 0 if b < 0, else the upper bound hi
//   bottom_of           smallest value that an iteration may give to b: 0 if b > 0, else the lower bound lo
inline wide right_of(wide f, wide b, wide epsilon) {
  return wide_pick(wide_less(b, wide_of(0)), wide_sub(f, epsilon), wide_add(f, epsilon));
}
inline wide left_of(wide f, wide b, wide epsilon) {
  return wide_pick(wide_less(wide_of(0), b), wide_add(f, epsilon), wide_sub(f, epsilon));
}
inline wide top_of(wide b, wide hi) { return wide_pick(wide_less(b, wide_of(0)), wide_of(0), hi); }
inline wide bottom_of(wide b, wide lo) { return wide_pick(wide_less(wide_of(0), b), wide_of(0), lo); }

// Define the address of slot s of the row cache. A slot has ``ld`` values, and stores one row of the kernel matrix.
// The cache is divided into 1 or 8 buffers (slabs) of slab_rows slots each. Slot s lies in slab q = s / slab_rows
// (integer division), at position s % slab_rows.
#ifndef SLABS
#define SLABS 1  // buffers of the row cache (1 or 8)
#endif
#if SLABS == 1
#define SLABS_GIVEN global real *K0
#define SLAB(q) K0
#else
#define SLABS_GIVEN global real *K0, global real *K1, global real *K2, global real *K3, global real *K4, global real *K5, global real *K6, global real *K7
#define SLAB(q) ((q) == 0 ? K0 : (q) == 1 ? K1 : (q) == 2 ? K2 : (q) == 3 ? K3 : (q) == 4 ? K4 : (q) == 5 ? K5 : (q) == 6 ? K6 : K7)
#endif
#define STORED_ROW(s) (SLAB((s) / slab_rows) + (size_t)((s) - (s) / slab_rows * slab_rows) * ld)

// Make writes to local memory visible to the work-group. A group of one work-item needs no barrier.
#if WG > 1
#define SYNC barrier(CLK_LOCAL_MEM_FENCE);
#else
#define SYNC
#endif

// Define attributes of kernels and functions. Kernels have two styles. SIMD style (macro SIMD): a work-item computes
// with explicit vectors. Otherwise work-group style: the work-items of a work-group share its work.
//   OF_ITEMS(count)   is an attribute of a kernel. It fixes the work-group size at ``count`` items in work-group
//     style, so that the driver allocates registers for this size. It is the macro EXPLICIT in SIMD style: a hint that
//     tells the compiler that the kernel is vectorised already.
//   OF_GROUP          the same as OF_ITEMS(WG). WG is the number of work-items of a work-group in reductions.
//   INLINED           stands before a function in place of ``inline``. It forces the compiler to inline the function
//     in work-group style. Functions with barriers or with pointers to local memory need INLINED, because some
//     compilers would not inline them otherwise.
//   OUTLINED          forbids the compiler to inline a function. A long function that a kernel calls in several places
//     is then compiled only once, which saves compile time.
//   CALLED            OUTLINED in SIMD style, INLINED in work-group style
#define OUTLINED __attribute__((noinline))
#ifdef SIMD
#define OF_ITEMS(count) EXPLICIT
#define INLINED inline
#define CALLED OUTLINED
#else
#define OF_ITEMS(count) __attribute__((reqd_work_group_size(count, 1, 1)))
#define INLINED inline __attribute__((always_inline))
#define CALLED INLINED
#endif
#define OF_GROUP OF_ITEMS(WG)

// Return an inclusive prefix sum over a work-group: item ``lid`` gets the sum of ``value`` over the items 0 .. lid.
// Set *total to the sum over all items. ``scratch`` is local memory for SCAN = WG + SEGMENTS ints.
// The items are divided into SEGMENTS segments (1 or 16) of WG / SEGMENTS consecutive items. First, SEGMENTS items each
// sum one segment. Then every item adds the sums of all earlier segments, and the values of its segment up to its
// own value.
#define SEGMENTS (WG < 16 ? 1 : 16)
#define SCAN (WG + SEGMENTS)
INLINED int group_scan(int value, local int *scratch, int *total) {
#if WG == 1
  *total = value;
  return value;
#else
  const int lid = get_local_id(0), segment = lid / (WG / SEGMENTS);
  scratch[lid] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lid < SEGMENTS) {
    int sum = 0;
    for (int k = 0; k < WG / SEGMENTS; ++k) sum += scratch[lid * (WG / SEGMENTS) + k];
    scratch[WG + lid] = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  int sum = 0, all = 0;
  for (int k = 0; k < SEGMENTS; ++k) {
    const int count = scratch[WG + k];
    all += count, sum += k < segment ? count : 0;
  }
  for (int k = segment * (WG / SEGMENTS); k <= lid; ++k) sum += scratch[k];
  *total = all;
  barrier(CLK_LOCAL_MEM_FENCE);
  return sum;
#endif
}
