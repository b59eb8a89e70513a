// Write and read numbers of single rows of a shard. rows (count,) holds the rows' positions in the shard.
//   put   b[rows[k]] = values[k]
//   mark  in_set[rows[k]] = 1
//   get  out[k] = f[rows[k]], or 0 if rows[k] is -1
// Work-items: one for each entry k of rows.
kernel EXPLICIT void put(global const int *restrict rows, global const wide *restrict values, global wide *restrict b) {
  b[rows[get_global_id(0)]] = values[get_global_id(0)];
}

kernel EXPLICIT void mark(global const int *restrict rows, global uchar *restrict in_set) {
  in_set[rows[get_global_id(0)]] = 1;
}

kernel EXPLICIT void get(global const int *restrict rows, global const wide *restrict f, global wide *restrict out) {
  const int k = get_global_id(0);
  out[k] = rows[k] >= 0 ? f[rows[k]] : wide_of(0);
}
