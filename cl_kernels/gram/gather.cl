// Copy rows of X to a panel. A panel stores the right-hand rows U of a product K(X, U), in blocks of UB rows.
// X has d features. The rows of X are stored in lane groups of V rows, whose values are interleaved. Row i is in lane
// group g = i / V. All divisions are integer divisions.
// A lane group stores the same features c[0], c[1], ... for all of its rows. The rows are 0 in all other features.
// in:  rows, count           right-hand row u is row i = rows[u] of X, called x_i, for u < count[0]. For all other u,
//                            and if rows[u] is negative, there is no row i.
// in:  columns, columns_at   c[k] = columns[columns_at[g] + k]. If ``dense`` is set, all d features are stored, and
//                            c[k] = k.
// in:  values, at            x_i[c[k]] = values[at[g] + k * V + i % V]
// in:  xx                    xx[i] = |x_i|^2
// out: panel                 panel[((u / UB) * d + j) * UB + u % UB] = x_i[j] for the stored features j. The other
//                            features keep the 0 that the caller wrote.
// out: uu                    uu[u] = |x_i|^2
// Only rows in the lane groups group0 .. group0 + groups - 1 are copied. If ``fresh`` is set, zeros are written in place
// of rows that are not copied. Otherwise nothing is written for these rows.
// Work-items: S for each right-hand row. Work-item (u, s) copies the features c[s], c[s + S], ... of row u.
#ifndef UB
#define UB V
#endif
#ifndef INDEX
#define INDEX int
#endif

kernel EXPLICIT void gather(const int group0, const int groups, global const real *restrict values,
                         global const long *restrict at, global const int *restrict columns_at,
                         global const int *restrict columns, const int dense, const int fresh,
                         global const real *restrict xx, const int d, global const int *restrict count,
                         global const int *restrict rows, global real *restrict panel, global real *restrict uu) {
  const uint u = get_global_id(0), S = get_global_size(1);
  const int i = u < (uint)count[0] ? rows[u] : -1;
  const int g = (uint)i / V;  // unsigned, so that the division by a power of two becomes a shift
  const bool copied = i >= 0 && g >= group0 && g < group0 + groups;
  global real *restrict to = panel + (size_t)(u / UB) * d * UB + u % UB;
  if (get_global_id(1) == 0 && (copied || fresh)) uu[u] = copied ? xx[i] : (real)0;
  if (copied) {
    const uint begin = dense ? 0 : columns_at[g], length = dense ? d : columns_at[g + 1] - begin;
    global const real *restrict x = values + at[g] + (uint)i % V;
    for (uint j = get_global_id(1); j < length; j += S)
      to[(size_t)(dense ? j : columns[begin + j]) * UB] = x[(size_t)j * V];
  } else if (fresh) {
    for (uint j = get_global_id(1); j < d; j += S) to[(size_t)j * UB] = 0;
  }
}
