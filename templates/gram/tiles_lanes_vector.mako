<%doc>Tiles of kernel values over lane groups begin .. end - 1 of a launch and all working vectors of a panel, in the
vector shape: a part of the panel that stays in the second-level cache, then the next; of it COLUMNS vectors at a time
against GROUPS lane groups in registers. How many vectors there are is the range's to say.
    x_i[columns[j]] = values[at[g] + j V + i % V]        contiguous loads of V, the tile stays in cache
    u[j]            = panel[(block d + j) UB + u % UB]   one line a feature, broadcast lane by lane
DENSE: every group holds all d features and columns is not read.
HALF: rows and working vectors are the same, and of those from the launch's first on the ones in front of a lane group
are left out: their values are mirror images (carry.cl).
The caller's body is given value[u], the inner products or sums s of ``here`` working vectors u0 + u with the V rows from
``row`` on, that is of lane group ``first + a`` of the launch, and their squared norms x2.</%doc>
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
#ifdef DENSE
#define COLUMN(j) (j)
#else
#define COLUMN(j) J[j]
#endif
</%def>
<%namespace name="lanes" file="chain_lanes_vector.mako"/>
<%def name="tiles()">
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
#ifdef HALF
        if (u0 >= group0 * V && u0 < (group0 + first) * V) continue;
#endif
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
          const size_t row = (size_t)(group0 + first + a) * V;
          const realv x2 = loadv(0, xx + row);
          realv *value = k[a];
${caller.body()}
        }
      }
    }
</%def>
