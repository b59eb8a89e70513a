// Build an inverted index of a CSR matrix. Every ``size`` consecutive rows of the matrix are a block b, and each block
// has its own index. The index lists the entries of the block column by column. The entries of one column are in
// ascending order of rows.
// in:  indptr, indices, data   the CSR matrix, with ``columns`` columns
// out: rows_of[e]   row of entry e of the index, counted from the first row of the block
// out: values[e]    value of entry e of the index
// out: ends         (blocks, columns + 2), offsets of the columns. The entries of column k of block b are
//                     S + ends[b][k] <= e < S + ends[b][k + 1]
//                   S = indptr[b * size] is the number of entries in all blocks before block b.
// Three kernels run one after another. The kernels count and sum store intermediate numbers in ``ends``:
//   count  sets ends[b][k + 2] to the number of entries of column k in block b.
//   sum    replaces the counts by running sums. Then ends[b][k + 1] is the number of entries of block b in all
//          columns before column k, and S + ends[b][k + 1] is the place e of the first entry of column k.
//   write  takes the entries of block b in the order of the CSR matrix. It writes an entry of column k to the place
//          e = S + ends[b][k + 1], and then adds 1 to ends[b][k + 1]. After all entries of column k have been written,
//          S + ends[b][k + 1] is the place after the last of them.
// Work-items: sum has one for each block. count and write have ``parts`` for each block, where ``parts`` is a power of
// two. Item m of a block handles the columns k with k % parts = m. So no two items write the same address.
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
