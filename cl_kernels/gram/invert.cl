// Build an inverted index of CSR rows, separately for each block b of ``size`` rows.
// The index lists the entries of the block column by column. The entries of a column are in ascending order of rows.
// in:  indptr, indices, data   the CSR matrix, with n rows and ``columns`` columns
// out: rows_of[e]   row of entry e, counted from the first row of the block
// out: values[e]    value of entry e
// out: ends         column k of block b has the entries
//                     indptr[b * size] + ends[b][k] <= e < indptr[b * size] + ends[b][k + 1]
// Three kernels run one after another. ends[b] has columns + 2 numbers, whose meaning changes from kernel to kernel:
//   count  sets ends[b][k + 2] to the number of entries in column k
//   sum    sets ends[b][k + 1] to the number of entries in the columns before k
//   write  writes the entries of column k from ends[b][k + 1] on, and adds 1 to ends[b][k + 1] for each entry.
//     Afterwards, ends[b][k + 1] is the end of column k, and ends[b][k] is its beginning.
// count and write use ``parts`` work-items for each block, a power of two. Each item reads all entries of the block.
// Item m handles only the columns k with k % parts = m, so that no two items write the same address.
// sum uses one work-item for each block.
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
