// Copy rows of X into a panel, the buffer that holds the right-hand rows U of a product K(X, U) in blocks of UB rows.
// Right-hand row u is row x_i of X with i = rows[u]. With d features j, and with the integer division u / UB:
//   panel[((u / UB) * d + j) * UB + u % UB] = x_i[j],   uu[u] = |x_i|^2
// X is stored in lane groups of V rows, whose values are interleaved. Lane group g lists the features that it stores.
// Row x_i of this group has
//   x_i[columns[columns_at[g] + k]] = values[at[g] + k * V + i % V],   g = i / V
// With ``dense`` set, every row stores all d features in order, and columns_at and columns are not read.
// Launch (capacity, S): work-item (u, s) copies the stored entries s, s + S, ... of row rows[u].
// The panel must be zero before the launch. It stays zero for u >= count[0], for rows[u] < 0, and for rows outside the
// lane groups group0 .. group0 + groups - 1.
#ifndef UB
#define UB V
#endif
#ifndef INDEX
#define INDEX int
#endif

kernel EXPLICIT void gather(const int group0, const int groups, global const real *restrict values,
                         global const long *restrict at, global const int *restrict columns_at,
                         global const int *restrict columns, const int dense, global const real *restrict xx,
                         const int d, global const int *restrict count, global const int *restrict rows,
                         global real *restrict panel, global real *restrict uu) {
  const uint u = get_global_id(0), S = get_global_size(1);
  const int i = u < (uint)count[0] ? rows[u] : -1;
  const int g = (uint)i / V;  // unsigned, so that the division by a power of two becomes a shift
  if (i < 0 || g < group0 || g >= group0 + groups) return;
  const uint begin = dense ? 0 : columns_at[g], length = dense ? d : columns_at[g + 1] - begin;
  global const real *restrict x = values + at[g] + (uint)i % V;
  global real *restrict to = panel + (size_t)(u / UB) * d * UB + u % UB;
  for (uint j = get_global_id(1); j < length; j += S)
    to[(size_t)(dense ? j : columns[begin + j]) * UB] = x[(size_t)j * V];
  if (get_global_id(1) == 0) uu[u] = xx[i];
}
