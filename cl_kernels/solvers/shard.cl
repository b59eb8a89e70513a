// What a shard of the rows is told of single rows, and is asked of them. A work-item a row; rows (count,) are positions.
//   put   b[row] = value       mark  in_set[row] = 1       pick  out[k] = f[row], 0 where there is none (-1)
kernel EXPLICIT void put(global const int *restrict rows, global const wide *restrict values, global wide *restrict b) {
  b[rows[get_global_id(0)]] = values[get_global_id(0)];
}

kernel EXPLICIT void mark(global const int *restrict rows, global uchar *restrict in_set) {
  in_set[rows[get_global_id(0)]] = 1;
}

kernel EXPLICIT void pick(global const int *restrict rows, global const wide *restrict f, global wide *restrict out) {
  const int k = get_global_id(0);
  out[k] = rows[k] >= 0 ? f[rows[k]] : wide_of(0);
}
