<%doc>Tiles of kernel values over lane groups begin .. end - 1 of a launch and all working vectors of a panel, in the
vector shape: a part of the panel that stays in the second-level cache, then the next; of it COLUMNS vectors at a time
against GROUPS lane groups in registers. How many vectors there are is the range's to say.
    x_i[columns[j]] = values[at[g] + j V + i % V]        contiguous loads of V, the tile stays in cache
    u[j]            = panel[(block d + j) UB + u % UB]   one line a feature, broadcast lane by lane
DENSE: every group holds all d features and columns is not read.
CHUNK: so many of these at a time, which the first-level cache holds, for SPAN vectors and TALL times GROUPS lane groups;
their sums wait in k meanwhile, so that a value is one chain still.
HALF: rows and working vectors are the same, and of those from the launch's first on the ones in front of a lane group
are left out: their values are mirror images (carry.cl).
The caller's body is given value[u], the inner products or sums s of ``here`` working vectors u0 + u with the V rows from
``row`` on, lane group ``group`` of the launch, and their squared norms x2.</%doc>
<%def name="settings()">
#ifndef COLUMNS
#define COLUMNS V  // working vectors that a work-item holds at a time, a divisor of UB
#endif
#ifndef GROUPS
#define GROUPS 1  // lane groups that it holds at a time; more than one only for DENSE rows
#endif
#ifndef AHEAD
#define AHEAD 0  // features by which fetches from memory run ahead; 0 leaves it to the processor
#endif
#define PASS_BYTES 131072  // such a part of the panel
#define SPAN 128  // of CHUNK: a multiple of UB
#define TALL (GROUPS < 12 ? 12 / GROUPS : 1)
#define STRIDE (SPAN + 1)  // (a power of two apart, values would share the places of a cache)
#ifdef DENSE
#define COLUMN(j) (j)
#else
#define COLUMN(j) J[j]
#endif
#ifdef HALF
#define LEFT_OUT(group, u) ((u) >= group0 * V && (u) < (group0 + (group)) * V)
#else
#define LEFT_OUT(group, u) false
#endif
</%def>
<%namespace name="lanes" file="chain_lanes_vector.mako"/>
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
        const int here = min(UB, total - u0);
        realv k[GROUPS][UB];
        for (int v = 0; v < here; v += COLUMNS) {
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
            realv sums[GROUPS][COLUMNS], *kept = k + (first - top) * STRIDE + v;
#pragma unroll
            for (int a = 0; a < GROUPS; ++a)
#pragma unroll
              for (int u = 0; u < COLUMNS; ++u) sums[a][u] = begun ? kept[a * STRIDE + u] : (realv)(real)0;
${lanes.chain("GROUPS", "COLUMNS", "(realv)uj[u]", "global const real *restrict uj = block + (size_t)j * UB;")}
#pragma unroll
            for (int a = 0; a < GROUPS; ++a)
#pragma unroll
              for (int u = 0; u < COLUMNS; ++u) kept[a * STRIDE + u] = sums[a][u];
          }
        }
      }
      for (int group = top; group < bottom; ++group) {
        const size_t row = (size_t)(group0 + group) * V;
        const realv x2 = loadv(0, xx + row);
        for (int u0 = u1; u0 < last; u0 += UB) {
          if (LEFT_OUT(top + (group - top) / GROUPS * GROUPS, u0)) continue;
          const int here = min(UB, total - u0);
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
