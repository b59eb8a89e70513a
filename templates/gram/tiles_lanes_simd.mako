<%doc>Compute the sums of a product K(X, U) in a SIMD kernel, block by block. X is stored in lane groups g of V rows,
whose values are interleaved. The kernel takes the lane groups begin .. end - 1 of the launch with all rows y_u of U. U
is in the buffer ``panel``, in blocks of UB rows. With integer divisions:
  x_i[J[j]] = values[at[g] + j * V + i % V]              contiguous loads of V values of lane group g = i / V
  y_u[k]    = panel[((u / UB) * d + k) * UB + u % UB]    one value at a time, broadcast to V lanes
x_i is row i of X. J[j] is the feature of stored column number j of the lane group.
The panel is read in parts that stay in the second-level cache. Registers hold the sums of GROUPS lane groups and
COLUMNS rows y_u.
The caller's body receives value[u] for u < valid: the inner products, or element-wise sums, of V rows x_i with row
u0 + u of U. The V rows are lane group ``group`` of the launch and begin at row ``row`` of X. x2 has their squared
norms.
DENSE: every lane group holds all d features, and ``columns`` is not read.
CHUNK: the kernel takes CHUNK features at a time, for SPAN rows y_u and TALL * GROUPS lane groups. Their values fit in
the first-level cache. The array k holds the sums from one chunk to the next, so that each value is one sum in the order
of the features.
SYMMETRIC: X and U are the same rows. A lane group leaves out the rows y_u from the launch's first row up to its own
first row. These values follow by symmetry, and mirror.cl fills them in.
</%doc>
<%def name="settings()">
#ifndef COLUMNS
#define COLUMNS V  // right-hand rows in registers at a time, a divisor of UB
#endif
#ifndef GROUPS
#define GROUPS 1  // lane groups in registers at a time; more than one only for DENSE rows
#endif
#ifndef AHEAD
#define AHEAD 0  // features by which prefetches run ahead; 0 leaves them to the processor
#endif
#define PASS_BYTES 131072  // bytes of a part of the panel that the second-level cache holds
#define SPAN 128  // right-hand rows that share a chunk, a multiple of UB
#define TALL (GROUPS < 12 ? 12 / GROUPS : 1)
#define STRIDE (SPAN + 1)  // a stride of a power of two would map values to the same cache sets
#ifdef DENSE
#define COLUMN(j) (j)
#else
#define COLUMN(j) J[j]
#endif
#ifdef SYMMETRIC
#define LEFT_OUT(group, u) ((u) >= group0 * V && (u) < (group0 + (group)) * V)
#else
#define LEFT_OUT(group, u) false
#endif
</%def>
<%namespace name="lanes" file="chain_lanes_simd.mako"/>
<%def name="at_once(body)">
  const int pass = max(1, (int)(PASS_BYTES / (sizeof(real) * UB) / (size_t)max(d, 1))) * UB;
  for (int u1 = 0; u1 < total; u1 += pass)
    for (int first = begin; first < end; first += GROUPS) {
      global const real *restrict x[GROUPS];
#pragma unroll
      for (int a = 0; a < GROUPS; ++a) x[a] = values + at[group0 + min(first + a, groups - 1)];
#ifdef DENSE
      const int length = d;
#else
      global const int *restrict J = columns + columns_at[group0 + first];
      const int length = columns_at[group0 + first + 1] - columns_at[group0 + first];
#endif
      for (int u0 = u1; u0 < min(total, u1 + pass); u0 += UB) {
        if (LEFT_OUT(first, u0)) continue;
        const int valid = min(UB, total - u0);
        realv k[GROUPS][UB];
        for (int v = 0; v < valid; v += COLUMNS) {
          global const real *restrict block = panel + (size_t)u0 * d + v;
          realv sums[GROUPS][COLUMNS];
#pragma unroll
          for (int a = 0; a < GROUPS; ++a)
#pragma unroll
            for (int u = 0; u < COLUMNS; ++u) sums[a][u] = (realv)(real)0;
${lanes.chain("GROUPS", "COLUMNS", "(realv)uj[u]", "global const real *restrict uj = block + (size_t)COLUMN(j) * UB;")}
#pragma unroll
          for (int a = 0; a < GROUPS; ++a)
#pragma unroll
            for (int u = 0; u < COLUMNS; ++u) k[a][v + u] = sums[a][u];
        }
        for (int a = 0; a < min(GROUPS, groups - first); ++a) {
          const int group = first + a;
          const size_t row = (size_t)(group0 + group) * V;
          const realv x2 = loadv(0, xx + row);
          realv *value = k[a];
${body()}
        }
      }
    }
</%def>
<%def name="in_chunks(body)">
  for (int u1 = 0; u1 < total; u1 += SPAN)
    for (int top = begin; top < end; top += TALL * GROUPS) {
      const int bottom = min(top + TALL * GROUPS, end), last = min(total, u1 + SPAN);
      realv k[TALL * GROUPS * STRIDE];
      for (int begun = 0; begun == 0 || begun < d; begun += CHUNK) {
        const int length = min(CHUNK, d - begun);
        for (int first = top; first < bottom; first += GROUPS) {
          global const real *restrict x[GROUPS];
#pragma unroll
          for (int a = 0; a < GROUPS; ++a)
            x[a] = values + at[group0 + min(first + a, groups - 1)] + (size_t)begun * V;
          for (int v = 0; v < last - u1; v += COLUMNS) {
            const int u0 = u1 + v / UB * UB;
            if (LEFT_OUT(first, u0)) continue;
            global const real *restrict block = panel + (size_t)u0 * d + (size_t)begun * UB + v % UB;
            realv sums[GROUPS][COLUMNS], *partial = k + (first - top) * STRIDE + v;
#pragma unroll
            for (int a = 0; a < GROUPS; ++a)
#pragma unroll
              for (int u = 0; u < COLUMNS; ++u) sums[a][u] = begun ? partial[a * STRIDE + u] : (realv)(real)0;
${lanes.chain("GROUPS", "COLUMNS", "(realv)uj[u]", "global const real *restrict uj = block + (size_t)j * UB;")}
#pragma unroll
            for (int a = 0; a < GROUPS; ++a)
#pragma unroll
              for (int u = 0; u < COLUMNS; ++u) partial[a * STRIDE + u] = sums[a][u];
          }
        }
      }
      for (int group = top; group < bottom; ++group) {
        const size_t row = (size_t)(group0 + group) * V;
        const realv x2 = loadv(0, xx + row);
        for (int u0 = u1; u0 < last; u0 += UB) {
          if (LEFT_OUT(top + (group - top) / GROUPS * GROUPS, u0)) continue;
          const int valid = min(UB, total - u0);
          realv *value = k + (group - top) * STRIDE + (u0 - u1);
${body()}
        }
      }
    }
</%def>
<%def name="tiles()">
#ifdef CHUNK
${in_chunks(caller.body)}
#else
${at_once(caller.body)}
#endif
</%def>
