// Build an inverted index of CSR rows, separately for each block b of ``size`` rows.
// The index lists the entries of a block column by column. The entries of a column are in ascending order of rows.
// in:  indptr, indices, data   the CSR matrix, with ``columns`` columns
// out: rows_of[e]   row of entry e of the index, counted from the first row of the block
// out: values[e]    value of entry e of the index
// out: ends         column k of block b has the entries
//                     indptr[b * size] + ends[b][k] <= e < indptr[b * size] + ends[b][k + 1]
// Three kernels run one after another:
//   count  counts the entries of each column of a block
//   sum    adds up the counts of the columns before column k. The result is the place of the column's first entry.
//   write  writes each entry of the block to the next free place of its column
// ends[b] has columns + 2 numbers. count stores the count of column k in ends[b][k + 2]. sum and write store the next
// free place of column k in ends[b][k + 1]. After write, this place is the end of the column.
// Work-items: sum has one for each block. count and write have ``parts`` for each block, a power of two. Item m of a
// block reads all entries of the block, but handles only the columns k with k % parts = m. So no two items write the
// same address.
#ifndef INDEX
#define INDEX int
#endif
#define MINE(k) (((k) & (parts - 1)) == part)

kernel void count(const int n, const int size, const int columns, const int parts, global const long *restrict indptr,
                  global const INDEX *restrict indices, global int *restrict ends) {
  const int b = get_global_id(0) / parts, part = get_global_id(0) % parts;
  global int *restrict at = ends + (size_t)b * (columns + 2);
  if (part == 0) at[0] = at[1] = 0;
  for (int k = part; k < columns; k += parts) at[k + 2] = 0;  // only this item's columns
  const long end = indptr[min((b + 1) * size, n)];
  for (long e = indptr[b * size]; e < end; ++e)
    if (MINE(indices[e])) ++at[indices[e] + 2];
}

kernel void sum(const int columns, global int *restrict ends) {
  global int *restrict at = ends + (size_t)get_global_id(0) * (columns + 2);
  for (int k = 2; k < columns + 2; ++k) at[k] += at[k - 1];
}

kernel void write(const int n, const int size, const int columns, const int parts, global const long *restrict indptr,
                  global const INDEX *restrict indices, global const real *restrict data, global int *restrict ends,
                  global ushort *restrict rows_of, global real *restrict values) {
  const int b = get_global_id(0) / parts, part = get_global_id(0) % parts;
  global int *restrict at = ends + (size_t)b * (columns + 2);
  const long start = indptr[b * size];
  for (int i = b * size; i < min((b + 1) * size, n); ++i)
    for (long e = indptr[i]; e < indptr[i + 1]; ++e)
      if (MINE(indices[e])) {
        const long to = start + at[indices[e] + 1]++;
        rows_of[to] = i - b * size, values[to] = data[e];
      }
}
