// Put rows that have similar nonzero columns into the same cluster, greedily in one pass over the rows.
// This is algorithm 2 of GTSVM (Cotter, Srebro, Keshet 2011). A cluster gets a fixed number of rows. If at least one
// row of a cluster has a nonzero in a column, the cluster stores the column for all of its rows, zeros included.
// Several clusters are filled at a time. A row joins the one in which the fewest additional zeros must then be stored.
// The paper's formula for the number of clusters that are filled at a time has a misprint: ``max`` must be ``min``.
// A row's pattern is the set of its nonzero columns, as bits in words of 32 bits. Bit j of word w stands for column
// 32 * w + j.
//   pattern_dense, pattern_csr   compute the patterns of rows
//   assign                       puts rows into clusters
#ifndef INPUT
#define INPUT float  // type of the caller's values
#endif
#define LANES 16  // slots whose words are interleaved

// Compute the patterns of some consecutive dense rows. The pattern of a row is the bit set of its nonzero columns.
// in:  X          the rows i = 0, 1, 2, ..., with d entries each. Entry j of row i is X[begin + i * d + j].
// in:  begin      index in X of the first entry of row i = 0
// in:  row0       index in ``patterns`` of the pattern of row i = 0
// in:  centre     centre[j] is the value that counts as zero in column j
// out: patterns   patterns[row0 + i] is the pattern of row i, in words of 32 bits. Bit j of its word w is 1 if the
//                 entry of row i in column 32 * w + j differs from centre[32 * w + j].
// Work-items: one for each word w and row i.
kernel EXPLICIT void pattern_dense(const int d, global const INPUT *restrict X, const int begin,
                                   global const finest *restrict centre, const int row0,
                                   global uint *restrict patterns) {
  const int w = get_global_id(0), words = get_global_size(0), length = min(32, d - 32 * w);
  const size_t i = get_global_id(1);
  global const INPUT *restrict x = X + begin + i * d + 32 * w;
  uint word = 0;
  for (int j = 0; j < length; ++j) word |= (uint)(x[j] != centre[32 * w + j]) << j;
  patterns[(row0 + i) * words + w] = word;
}

// Compute the patterns of CSR rows, which are bit sets of their nonzero columns. patterns[i] is the bit set of row i.
// Bit j of its word w is 1 if the row's entry in column 32 * w + j is not 0. Work-items: one for each row i.
kernel EXPLICIT void pattern_csr(const int words, global const long *restrict indptr,
                                 global const int *restrict indices, const int indices_begin,
                                 global const INPUT *restrict data, const int data_begin,
                                 global uint *restrict patterns) {
  const size_t i = get_global_id(0);
  global uint *restrict to = patterns + i * words;
  for (int w = 0; w < words; ++w) to[w] = 0;
  for (long e = indptr[i]; e < indptr[i + 1]; ++e) {
    const int j = indices[indices_begin + e];
    to[j / 32] |= (uint)(data[data_begin + e] != 0) << j % 32;
  }
}

// Define where the data of unfilled clusters are stored. Rows can still be added to these clusters. Each of them has a
// slot s. There are k slots, and k is a multiple of LANES = 16.
// A cluster has a bit set of columns: bit j of word w is 1 if any of its rows has a nonzero in column 32 * w + j.
// The array ``unions`` holds the bit sets:
//   WORD(s, w)   index in ``unions`` of word w of the bit set in slot s. The words of LANES consecutive slots are
//     interleaved.
// The array ``slots`` holds three numbers for each slot s:
//   COLUMNS(s)   number of bits of the bit set that are 1
//   ROWS(s)      number of rows in the cluster, or -1 if the slot holds no cluster
//   NAME(s)      number of the cluster, or -1 if the slot holds no cluster
// Work-item ``lid`` of a work-group of WG items owns the slots lid, lid + WG, ...
#define WORD(s, w) (((size_t)(s) / LANES * words + (w)) * LANES + (s) % LANES)
#define COLUMNS(s) slots[s]
#define ROWS(s) slots[k + (s)]
#define NAME(s) slots[2 * k + (s)]

#ifdef SIMD
#define LANE (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
// Return the smallest of the sixteen values in the lanes of v.
// The code uses shuffles instead of v.lo and v.hi, because Oclgrind 21.10 treats the upper half of sixteen lanes as
// uninitialised.
inline int lowest(int16 v) {
  for (int step = LANES / 2; step > 0; step /= 2) v = min(v, shuffle(v, as_uint16(LANE ^ step)));
  return v.s0;
}
#endif

// Return the slot of the cluster that row x joins. A slot is the place of a cluster that still takes rows.
// The cluster of least cost is chosen, and the first slot among equal costs. The cost is the number of zeros that have
// to be stored in addition if the row joins the cluster:
//   cost = (rows in the cluster) * |Jx \ JS| + |JS \ Jx|
// Jx is the set of the row's nonzero columns. JS is the set of columns in which any row of the cluster has a nonzero.
// |.| is the size of a set.
inline int nearest(const int words, const int k, global const uint *restrict x, global const uint *restrict unions,
                   global const int *restrict slots, local int *costs, local int *at) {
  int length = 0;
  for (int w = 0; w < words; ++w) length += popcount(x[w]);
#ifdef SIMD
  int16 best = INT_MAX, where = 0;
  for (int s = 0; s < k; s += LANES) {
    int16 common = 0;
    for (int w = 0; w < words; ++w) common += as_int16(popcount(vload16(0, unions + WORD(s, w)) & x[w]));
    const int16 rows = vload16(0, &ROWS(s));
    int16 cost = rows * (length - common) + vload16(0, &COLUMNS(s)) - common;
    cost = select(cost, (int16)INT_MAX, rows < 0);
    const int16 better = cost < best;
    best = select(best, cost, better), where = select(where, s + LANE, better);
  }
  return lowest(select((int16)INT_MAX, where, best == lowest(best)));
#else
  const int lid = get_local_id(0);
  int best = INT_MAX, where = INT_MAX;
  for (int s = lid; s < k; s += WG) {
    int common = 0;
    for (int w = 0; w < words; ++w) common += popcount(unions[WORD(s, w)] & x[w]);
    const int rows = ROWS(s), cost = select(rows * (length - common) + COLUMNS(s) - common, INT_MAX, rows < 0);
    const int better = cost < best;
    best = select(best, cost, better), where = select(where, s, better);
  }
  costs[lid] = best, at[lid] = where;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = WG / 2; step > 0; step /= 2) {
    const int other = min(lid + step, WG - 1);  // the results of items from ``step`` on are unused
    const int a = costs[lid], b = costs[other], i = at[lid], j = at[other];
    const int better = b < a || (b == a && j < i);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lid < step) costs[lid] = select(a, b, better), at[lid] = select(i, j, better);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const int slot = at[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  return slot;
#endif
}

// Assign n rows to clusters of ``size`` rows, so that the rows of a cluster have similar nonzero columns.
// A cluster stores the same columns for all of its rows: the columns in which at least one of its rows has a nonzero.
// The cluster also stores the zeros of its rows in these columns.
// A cluster is open from its start until it has ``size`` rows. Each row joins the open cluster in which the fewest
// additional zeros must then be stored (function ``nearest``).
// in:  walk       indices of the n rows, in the order in which they join clusters
// in:  patterns   a bit set for each row, in ``words`` words of 32 bits: the columns in which the row has a nonzero
// in:  share      number of clusters that each work-group fills. The last work-group may fill fewer.
// in:  active     largest number of clusters that a work-group has open at the same time
// in:  k          number of open clusters of a work-group that fit in the scratch memory, at least ``active``
// out: order      order[c * size + r] is the index of the row that joined cluster c as its r-th row, counted from 0.
//                 If fewer than ``size`` rows join a cluster, the cluster's remaining entries keep their values.
// out: filled     a bit set for each cluster: the columns in which at least one of its rows has a nonzero
// ``unions`` and ``slots`` are scratch memory. For each open cluster, ``unions`` has the cluster's bit set of columns
// (macro WORD). For each open cluster, ``slots`` has three numbers: how many columns are in the bit set, how many rows
// the cluster has so far, and the index c of the cluster (macros COLUMNS, ROWS and NAME).
// Work-items: work-group p fills the clusters p * share .. (p + 1) * share - 1 with the rows walk[p * share * size],
// walk[p * share * size + 1], ... When a cluster is full, the work-group opens its next cluster. On CPUs a work-group
// has one work-item.
kernel OF_GROUP void assign(const int n, const int words, const int size, const int active, const int k,
                            const int clusters, const int share, global const uint *restrict patterns,
                            global const int *restrict walk, global uint *restrict unions, global int *restrict slots,
                            global uint *restrict filled, global int *restrict order) {
  const int p = get_group_id(0), lid = get_local_id(0), last = min(clusters, (p + 1) * share);
  local int costs[WG], at[WG], next;
  unions += (size_t)p * k * words;
  slots += (size_t)p * 3 * k;
  for (int s = lid; s < k; s += WG) {
    const int name = p * share + s, present = s < active && name < last;
    for (int w = 0; w < words; ++w) unions[WORD(s, w)] = 0;
    COLUMNS(s) = 0, ROWS(s) = present ? 0 : -1, NAME(s) = present ? name : -1;
  }
  if (lid == 0) next = p * share + active;
  barrier(CLK_LOCAL_MEM_FENCE);
  const int end = min(n, last * size);
  for (int i = p * share * size; i < end; ++i) {
    const int row = walk[i];
    global const uint *restrict x = patterns + (size_t)row * words;
    const int s = nearest(words, k, x, unions, slots, costs, at);
    if (s % WG == lid) {  // Only the owner of slot s changes it and ``next``, between two searches.
      const int name = NAME(s), rows = ROWS(s) + 1, full = rows == size;
      order[(size_t)name * size + rows - 1] = row;
      int columns = 0;
      for (int w = 0; w < words; ++w) {
        const uint word = unions[WORD(s, w)] | x[w];
        columns += popcount(word);
        unions[WORD(s, w)] = full ? 0 : word;
        if (full) filled[(size_t)name * words + w] = word;
      }
      COLUMNS(s) = columns, ROWS(s) = rows;
      if (full) {
        const int present = next < last;
        COLUMNS(s) = 0, ROWS(s) = present ? 0 : -1, NAME(s) = present ? next : -1;
        next += present;
      }
    }
  }
  for (int s = lid; s < k; s += WG)  // also write the patterns of clusters that did not become full
    for (int w = 0; w < words; ++w)
      if (NAME(s) >= 0) filled[(size_t)NAME(s) * words + w] = unions[WORD(s, w)];
}
