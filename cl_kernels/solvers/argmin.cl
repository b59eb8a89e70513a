// (value, index) of the group's smallest value, of equal values the smallest index, in all items
#define ARGMIN(value, index, values, indices, LESS, PICK)                      \
  values[lid] = value, indices[lid] = index;                             \
  barrier(CLK_LOCAL_MEM_FENCE);                                          \
  for (int step = WG / 2; step > 0; step /= 2) {                         \
    if (lid < step) {                                                    \
      const int i_ = indices[lid], j_ = indices[lid + step];             \
      const bool other = LESS(values[lid + step], values[lid]) ||        \
                         (!LESS(values[lid], values[lid + step]) && j_ < i_); \
      values[lid] = PICK(other, values[lid + step], values[lid]);        \
      indices[lid] = other ? j_ : i_;                                    \
    }                                                                    \
    barrier(CLK_LOCAL_MEM_FENCE);                                        \
  }                                                                      \
  value = values[0], index = indices[0];                                 \
  barrier(CLK_LOCAL_MEM_FENCE);
#define REAL_LESS(a, b) ((a) < (b))
#define REAL_PICK(c, a, b) ((c) ? (a) : (b))
