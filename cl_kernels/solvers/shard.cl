// Access single rows of a shard, which is a set of training rows on one device. rows[k] is a row's index in the shard.
//   put   sets coefficients:                   b[rows[k]] = values[k]
//   mark  marks rows as in the working set:    in_set[rows[k]] = 1
//   get   reads gradients:                     out[k] = f[rows[k]], or 0 if rows[k] is -1
// Work-items: one for each k.
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
