// Pack rows of 0 and 1 into words of B bits, with a bit for each feature j, and count each row's ones.
// X is a part of all rows. Its row i starts at X + begin + i * d, and has the number row0 + i among all rows.
// The rows are stored in lane groups of V rows, whose words are interleaved. The words of lane group g begin at
// values[at[g]]. order[g * V + lane] is the number of the row in lane number ``lane`` of lane group g. With the
// features x_ij of row i = order[g * V + lane] - row0 of X:
//   bit j % B of values[at[g] + (j / B) * V + lane] = x_ij,   xx[g * V + lane] = sum_j x_ij
// j / B is an integer division. B is 64 if kernel values are doubles, else 32.
// A lane with order[...] < 0, or with a row i outside 0 .. rows - 1, is padding. Its words become 0.
// Launch (V, groups): a work-item packs one row. Consecutive items write consecutive words.
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
