// Pack rows x of d features, which are 0 or 1, into words of B bits, and count the ones of each row.
// B is 64 if kernel values are doubles, else 32. The words are stored in lane groups: V rows with interleaved words.
// in:  order    order[g * V + lane] is the number of the row in lane ``lane`` of lane group g. It is negative if the
//               lane has no row.
// in:  X        the rows with the numbers row0 .. row0 + rows - 1. Feature j of row number r is
//               X[begin + (r - row0) * d + j].
// in:  at       at[g] is the index of the first word of lane group g in ``values``
// out: values   with the row x in lane ``lane`` of lane group g, feature x[j] is bit j % B of the word
//               values[at[g] + (j / B) * V + lane] (integer division j / B)
// out: xx       xx[g * V + lane] = sum_j x[j]
// Lanes without a row, and lanes whose row is not in X, get words of 0 and the sum 0.
// Work-items: one for each lane of each lane group. Consecutive items write consecutive words.
#ifndef INPUT
#define INPUT float  // type of the caller's values
#endif
#ifdef REAL64
#define WORD ulong
#else
#define WORD uint
#endif
#define B (8 * (int)sizeof(WORD))

kernel OF_ITEMS(V) void bits(const int row0, const int rows, const int d, global const INPUT *restrict X, const int begin,
                             const int group0, global const int *restrict order, global const long *restrict at,
                             global WORD *restrict values, global real *restrict xx) {
  const int lane = get_global_id(0), g = group0 + get_global_id(1), i = order[(size_t)g * V + lane] - row0;
  const bool there = i >= 0 && i < rows;
  global const INPUT *restrict x = X + begin + (there ? (size_t)i * d : 0);
  global WORD *restrict to = values + at[g] + lane;
  int count = 0;
  for (int j0 = 0; j0 < max(d, 1); j0 += B, to += V) {
    const int here = there ? min(B, d - j0) : 0;
    WORD word = 0;
    for (int j = 0; j < here; ++j) word |= (WORD)(x[j0 + j] != 0) << j;
    *to = word, count += (int)popcount(word);
  }
  xx[(size_t)g * V + lane] = count;
}
