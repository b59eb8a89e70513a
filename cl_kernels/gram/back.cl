// Multiply a stored block of the kernel matrix K(X, U), or the transpose of the block, by vectors.
// The block has ``rows`` consecutive rows of X, and the rows u < count[0] of U. Row i of the block is row x = first + i
// of X. Its kernel value with row u of U is K[u][i] = K[u * ld + i].
// A model has ``problems`` outputs p, and each output has its own vectors. X has n rows. Six kernels:
//   forth         t[p][i] = sum_u v[p][u] * K[u][i]
//   residual      r[p][i] = w[p][x] * (t[p][i] - z[p][x])
//   coupled       r[p][i] = w[0][x] * shares[p][x] * (t[p][i] - sum_q shares[q][x] * t[q][i]), with a sum over all
//                 outputs q
//   back          out[p][u] += sum_i K[u][i] * r[p][i]
//   zero_padding  K[u][i] = 0 for the padding rows i, which hold no data
//   add_parts     adds sums that the work-items of another kernel wrote
// The arrays of these formulas:
//   v (problems, capacity)     v[p][u] is the coefficient of row u of U for output p. Only u < count[0] is read.
//   w (problems, n)            weights of the rows of X. If per_output is 0, all outputs use the weights w[0].
//   z (problems, n)            targets of the rows of X. If z is null, all targets are 0.
//   shares (problems, n)       shares[p][x] is the probability of output p for row x of X.
//   t, r (problems, ld)        one number for each output and each row of the block
//   out (problems, capacity)   one sum for each output and each row of U
// Work-items in SIMD style (on CPUs): a work-item of forth computes t[p][i] for FORTH * V consecutive rows i, as FORTH
// OpenCL vectors of V numbers. A work-item of back computes out[p][u] for ROWS_EACH rows u.
// Work-items in work-group style: a work-group has WG work-items. A work-group of forth computes t[p][i] for LINE rows
// i, and WG / LINE work-items share the sum of each row i. A work-group of back computes out[p][u] for ROWS_EACH rows
// u, and each of its work-items adds the terms of some rows i.
// forth and back compute up to OUT outputs at a time, so that they read K fewer times.
// Precision: forth and back add RUN terms at a time in the type ``real``, the type of K. They add the results in the
// type ``wide``, which is double or a pair of floats. With the macro EXACT, forth and back read v and r in the type
// ``wide``, and compute all sums in this type. residual and coupled always write r in the type ``real``.
#ifndef ROWS_EACH
#define ROWS_EACH 4
#endif
#ifndef RUN
#define RUN 128
#endif
#ifdef EXACT
#define OUT 1
typedef wide term;
#else
#define OUT 4
typedef real term;
#endif
#ifndef FORTH
#define FORTH 4
#endif
#ifndef LINE
#define LINE 16
#endif
#define LOAD_ROWS            \
  global const real *restrict k[ROWS_EACH]; /* an index past the end repeats the last row, and its sums are dropped */ \
  for (int a = 0; a < ROWS_EACH; ++a) k[a] = K + (size_t)min(u + a, count[0] - 1) * ld;

kernel EXPLICIT void residual(global const wide *restrict t, const long ld, const int first, global const wide *restrict w,
                              const int per_output, global const wide *restrict z, const long n, global real *restrict r) {
  const size_t i = get_global_id(0), p = get_global_id(1);
  const wide weight = w[per_output * p * n + first + i];
  wide one = t[p * ld + i];
  if (z) one = wide_sub(one, z[p * n + first + i]);
  // Rows of padding hold no data and have weight 0. t may be infinite there, and 0 * infinity would be NaN.
  r[p * ld + i] = wide_real(weight) == 0 ? (real)0 : wide_real(wide_mul(one, weight));
}

kernel EXPLICIT void coupled(global const wide *restrict t, const long ld, const int first, global const wide *restrict w,
                             global const wide *restrict shares, const long n, const int problems,
                             global real *restrict r) {
  const size_t i = get_global_id(0);
  const wide weight = w[first + i];
  wide mean = wide_of(0);
  for (int q = 0; q < problems; ++q) mean = wide_add(mean, wide_mul(shares[q * n + first + i], t[q * ld + i]));
  for (int q = 0; q < problems; ++q) {
    const wide one = wide_mul(shares[q * n + first + i], wide_sub(t[q * ld + i], mean));
    r[q * ld + i] = wide_real(weight) == 0 ? (real)0 : wide_real(wide_mul(one, weight));
  }
}

// Add the sums of another kernel's work-items s = 0 .. items - 1 to ``out``. ``parts`` has ``size`` sums of each
// work-item s:
//   out[j] += sum_s parts[s * size + j],   in the order of s
// Work-items: one for each j.
kernel EXPLICIT void add_parts(global const wide *restrict parts, const int items, const int size, global wide *restrict out) {
  const int j = get_global_id(0);
  wide sum = out[j];
  for (int s = 0; s < items; ++s) sum = wide_add(sum, parts[(size_t)s * size + j]);
  out[j] = sum;
}

kernel EXPLICIT void zero_padding(global const int *restrict listed, const int from, const int first, const int rows,
                           global real *restrict K, const long ld) {
  const int i = listed[from + get_global_id(0)] - first;
  for (int u = 0; u < rows; ++u) K[u * ld + i] = 0;
}

#ifdef SIMD
#ifdef EXACT
typedef widev termv;
#define TERMS(x) to_widev(x)
#else
typedef realv termv;
#define TERMS(x) (x)
#endif

// Return the sum of a vector's numbers as a double, from four partial sums.
inline double added(const termv sum) {
  const widev all = to_widev(sum);
  double part[4] = {0, 0, 0, 0};
#pragma unroll
  for (int lane = 0; lane < V; ++lane) part[lane % 4] += ((private const double *)&all)[lane];
  return (part[0] + part[1]) + (part[2] + part[3]);
}

#define BACK(outputs)                                                                                     \
  {                                                                                                       \
    double total[ROWS_EACH][outputs];                                                                           \
    for (int a = 0; a < ROWS_EACH; ++a)                                                                         \
      for (int q = 0; q < outputs; ++q) total[a][q] = 0;                                                  \
    for (int v0 = 0; v0 < rows / V; v0 += RUN) {                                                          \
      termv sum[ROWS_EACH][outputs];                                                                            \
      _Pragma("unroll") for (int a = 0; a < ROWS_EACH; ++a)                                                     \
        _Pragma("unroll") for (int q = 0; q < outputs; ++q) sum[a][q] = (termv)(term)0;                   \
      for (int v = v0; v < min(rows / V, v0 + RUN); ++v)                                                  \
        _Pragma("unroll") for (int q = 0; q < outputs; ++q) {                                             \
          const termv rv = loadv(v, r + (size_t)(p + q) * ld);                                            \
          _Pragma("unroll") for (int a = 0; a < ROWS_EACH; ++a)                                                 \
            sum[a][q] = fma(TERMS(loadv(v, k[a])), rv, sum[a][q]);                                        \
        }                                                                                                 \
      for (int a = 0; a < ROWS_EACH; ++a)                                                                       \
        for (int q = 0; q < outputs; ++q) total[a][q] += added(sum[a][q]);                                \
    }                                                                                                     \
    for (int a = 0; a < ROWS_EACH; ++a)                                                                         \
      for (int q = 0; q < outputs; ++q)                                                                   \
        if (u + a < count[0]) out[(size_t)(p + q) * capacity + u + a] += total[a][q];                     \
  }

#define FORWARD(outputs)                                                                                  \
  {                                                                                                       \
    widev total[outputs][FORTH];                                                                          \
    for (int q = 0; q < outputs; ++q)                                                                     \
      for (int a = 0; a < FORTH; ++a) total[q][a] = (widev)0.0;                                           \
    for (int u0 = 0; u0 < count[0]; u0 += RUN) {                                                          \
      termv sum[outputs][FORTH];                                                                          \
      _Pragma("unroll") for (int q = 0; q < outputs; ++q)                                                 \
        _Pragma("unroll") for (int a = 0; a < FORTH; ++a) sum[q][a] = (termv)(term)0;                     \
      for (int u = u0; u < min(count[0], u0 + RUN); ++u)                                                  \
        _Pragma("unroll") for (int a = 0; a < FORTH; ++a) {                                               \
          const termv k = TERMS(loadv(at[a], K + (size_t)u * ld));                                        \
          _Pragma("unroll") for (int q = 0; q < outputs; ++q)                                             \
            sum[q][a] = fma(k, (termv)v[(size_t)(p + q) * capacity + u], sum[q][a]);                      \
        }                                                                                                 \
      for (int q = 0; q < outputs; ++q)                                                                   \
        for (int a = 0; a < FORTH; ++a) total[q][a] += to_widev(sum[q][a]);                               \
    }                                                                                                     \
    for (int q = 0; q < outputs; ++q)                                                                     \
      for (int a = 0; a < FORTH; ++a) storev(total[q][a], at[a], t + (size_t)(p + q) * ld);               \
  }

kernel EXPLICIT void forth(global const real *restrict K, const long ld, const int rows, global const term *restrict v,
                           global const int *restrict count, const int problems, const int capacity,
                           global wide *restrict t) {
  int at[FORTH];  // an index past the end repeats the last vector, and writes the same sums again
  for (int a = 0; a < FORTH; ++a) at[a] = min((int)get_group_id(0) * FORTH + a, rows / V - 1);
  int p = 0;
  for (; p + OUT <= problems; p += OUT) FORWARD(OUT)
  for (; p + 2 <= problems; p += 2) FORWARD(2)
  for (; p < problems; ++p) FORWARD(1)
}

kernel EXPLICIT void back(global const real *restrict K, const long ld, const int rows, global const term *restrict r,
                          global const int *restrict count, const int problems, const int capacity,
                          global wide *restrict out) {
  const int u = get_group_id(0) * ROWS_EACH;
  if (u >= count[0]) return;
  LOAD_ROWS
  int p = 0;
  for (; p + OUT <= problems; p += OUT) BACK(OUT)
  for (; p + 2 <= problems; p += 2) BACK(2)
  for (; p < problems; ++p) BACK(1)
}
#else
#ifdef EXACT
#define PLUS(sum, k, other) wide_fma(wide_of(k), other, sum)
#define ZERO wide_of(0)
#define WIDE(sum) (sum)
#else
#define PLUS(sum, k, other) fma(k, other, sum)
#define ZERO 0
#define WIDE(sum) wide_of(sum)
#endif

// Compute t[q][i] = sum_u v[q][u] * K[u][i] for the outputs q = p .. p + outputs - 1, and for the LINE rows i of a
// work-group of WG items. v are coefficients, and K[u][i] is the kernel value of row u of U and row i of X.
// WG / LINE items share a row i. Each of them sums over its own rows u = begin .. end - 1. Then their sums are added.
#define FORWARD(outputs)                                                                                             \
  {                                                                                                                  \
    wide total[outputs];                                                                                             \
    _Pragma("unroll") for (int q = 0; q < outputs; ++q) total[q] = wide_of(0);                                       \
    for (int u0 = begin; u0 < end; u0 += RUN) {                                                                      \
      const int stop = min(end, u0 + RUN);                                                                           \
      term sum[outputs];                                                                                             \
      _Pragma("unroll") for (int q = 0; q < outputs; ++q) sum[q] = ZERO;                                             \
      _Pragma("unroll 8") for (int u = u0; u < stop; ++u) {                                                          \
        const real value = k[(size_t)u * ld];                                                                        \
        _Pragma("unroll") for (int q = 0; q < outputs; ++q)                                                          \
          sum[q] = PLUS(sum[q], value, v[(size_t)(p + q) * capacity + u]);                                           \
      }                                                                                                              \
      _Pragma("unroll") for (int q = 0; q < outputs; ++q) total[q] = wide_add(total[q], WIDE(sum[q]));               \
    }                                                                                                                \
    _Pragma("unroll") for (int q = 0; q < outputs; ++q) sums[q * WG + lid] = total[q];                               \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                    \
    for (int j = lid; j < outputs * LINE; j += WG) {                                                                 \
      local const wide *part = sums + j / LINE * WG + j % LINE;                                                      \
      wide sum = part[0];                                                                                            \
      for (int s = 1; s < WG / LINE; ++s) sum = wide_add(sum, part[s * LINE]);                                       \
      t[(size_t)(p + j / LINE) * ld + first + j % LINE] = sum;                                                       \
    }                                                                                                                \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                    \
  }

// Compute out[q][u] += sum_i K[u][i] * r[q][i] for the outputs q = p .. p + outputs - 1, and for ROWS_EACH rows u of U.
// K[u][i] is the kernel value of row u of U and row i of X. r[q][i] is a number that belongs to row i.
// Work-item lid sums over the rows i = lid, lid + WG, ... Then the WG sums of each row u are added in two steps. First
// LINE work-items add WG / LINE sums each. Then one work-item adds the LINE results.
#define BACK(outputs)                                                                                                \
  {                                                                                                                  \
    wide total[ROWS_EACH][outputs];                                                                                        \
    _Pragma("unroll") for (int a = 0; a < ROWS_EACH; ++a)                                                                  \
      _Pragma("unroll") for (int q = 0; q < outputs; ++q) total[a][q] = wide_of(0);                                  \
    for (int i0 = lid; i0 < rows; i0 += WG * RUN) {                                                                  \
      const int stop = min(rows, i0 + WG * RUN);                                                                     \
      term sum[ROWS_EACH][outputs];                                                                                        \
      _Pragma("unroll") for (int a = 0; a < ROWS_EACH; ++a)                                                                \
        _Pragma("unroll") for (int q = 0; q < outputs; ++q) sum[a][q] = ZERO;                                        \
      _Pragma("unroll 4") for (int i = i0; i < stop; i += WG)                                                        \
        _Pragma("unroll") for (int q = 0; q < outputs; ++q) {                                                        \
          const term ri = r[(size_t)(p + q) * ld + i];                                                               \
          _Pragma("unroll") for (int a = 0; a < ROWS_EACH; ++a) sum[a][q] = PLUS(sum[a][q], k[a][i], ri);                  \
        }                                                                                                            \
      _Pragma("unroll") for (int a = 0; a < ROWS_EACH; ++a)                                                                \
        _Pragma("unroll") for (int q = 0; q < outputs; ++q) total[a][q] = wide_add(total[a][q], WIDE(sum[a][q]));    \
    }                                                                                                                \
    _Pragma("unroll") for (int q = 0; q < outputs; ++q) {                                                            \
      _Pragma("unroll") for (int a = 0; a < ROWS_EACH; ++a) sums[a * WG + lid] = total[a][q];                              \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
      for (int j = lid; j < ROWS_EACH * LINE; j += WG) {                                                                   \
        local wide *part = sums + j / LINE * WG + j % LINE;                                                          \
        wide sum = part[0];                                                                                          \
        for (int s = 1; s < WG / LINE; ++s) sum = wide_add(sum, part[s * LINE]);                                     \
        part[0] = sum;                                                                                               \
      }                                                                                                              \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
      if (lid < ROWS_EACH && u + lid < count[0]) {                                                                         \
        wide sum = sums[lid * WG];                                                                                   \
        for (int s = 1; s < LINE; ++s) sum = wide_add(sum, sums[lid * WG + s]);                                      \
        global wide *restrict to = out + (size_t)(p + q) * capacity + u + lid;                                       \
        *to = wide_add(*to, sum);                                                                                    \
      }                                                                                                              \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
    }                                                                                                                \
  }

kernel OF_GROUP void forth(global const real *restrict K, const long ld, const int rows, global const term *restrict v,
                  global const int *restrict count, const int problems, const int capacity, global wide *restrict t) {
  const int first = get_group_id(0) * LINE, lid = get_local_id(0);
  if (first >= rows) return;  // the whole group returns
  const int each = (count[0] + WG / LINE - 1) / (WG / LINE), begin = lid / LINE * each, end = min(count[0], begin + each);
  global const real *restrict k = K + first + lid % LINE;
  local wide sums[OUT * WG];
  int p = 0;
  for (; p + OUT <= problems; p += OUT) FORWARD(OUT)
#if OUT > 2
  for (; p + 2 <= problems; p += 2) FORWARD(2)
#endif
  for (; p < problems; ++p) FORWARD(1)
}

kernel OF_GROUP void back(global const real *restrict K, const long ld, const int rows, global const term *restrict r,
                 global const int *restrict count, const int problems, const int capacity, global wide *restrict out) {
  const int u = get_group_id(0) * ROWS_EACH, lid = get_local_id(0);
  if (u >= count[0]) return;  // the whole group returns
  LOAD_ROWS
  local wide sums[ROWS_EACH * WG];
  int p = 0;
  for (; p + OUT <= problems; p += OUT) BACK(OUT)
#if OUT > 2
  for (; p + 2 <= problems; p += 2) BACK(2)
#endif
  for (; p < problems; ++p) BACK(1)
}
#endif
