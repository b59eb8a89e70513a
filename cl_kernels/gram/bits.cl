// Pack rows of 0 and 1 into words of B bits, with a bit for each feature j, and count the ones of each row.
// B is 64 if kernel values are doubles, else 32. A lane group has V rows, whose words are interleaved.
// in:  X       a block of ``rows`` consecutive rows. Row i of the block begins at X + begin + i * d, and is row
//              row0 + i of the whole data.
// in:  order   order[g * V + lane] is the row of the whole data in lane number ``lane`` of lane group g, or negative
// in:  at      at[g] is the index of the first word of lane group g in ``values``
// out, for row i = order[g * V + lane] - row0 of the block with the features x_ij, and with the integer division j / B:
//   bit j % B of values[at[g] + (j / B) * V + lane] = x_ij
//   xx[g * V + lane] = sum_j x_ij
// A lane whose order[...] is negative, or whose row is not in the block, gets words and a sum of 0.
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
