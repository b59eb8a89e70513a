// Build an inverted index of CSR rows, separately for each block b of ``size`` rows.
// The index lists the entries of a block column by column. The entries of a column are in ascending order of rows.
// in:  indptr, indices, data   the CSR matrix, with ``columns`` columns
// out: rows_of[e]   row of entry e of the index, counted from the first row of the block
// out: values[e]    value of entry e of the index
// out: ends         (blocks, columns + 2). Column k of block b has the entries
//                     indptr[b * size] + ends[b][k] <= e < indptr[b * size] + ends[b][k + 1]
// Three kernels run one after another, and keep intermediate numbers in ``ends``:
//   count  counts the entries of column k of block b in ends[b][k + 2]
//   sum    sets ends[b][k + 1] to the number of entries in the columns before column k. This is the place of the first
//          entry of column k.
//   write  writes each entry to the place ends[b][k + 1] of its column k, and then adds 1 to this place
// Work-items: sum has one for each block. count and write have ``parts`` for each block, a power of two. Item m of a
// block handles the columns k with k % parts = m. So no two items write the same address.
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
