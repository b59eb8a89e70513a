// List the rows of a working set whose coefficients a solve over the working set has changed. Other kernels then update
// the gradients by the rows of the kernel matrix that belong to the listed rows. After listing, this kernel makes space
// in the working set for new rows.
// The row cache stores rows of the kernel matrix, one in each slot. A listed row is a hit if the cache has its row of
// the kernel matrix. Otherwise it is a miss, and its row of the kernel matrix has to be computed.
// In:
//   delta    (problems, W), the changes of the coefficients. ``problems`` is the number of classes in the multiclass
//            SVM of Crammer and Singer, else 1. A row is listed if any of its coefficients changed.
//   all      1 in a call before the solve, else 0. If ``all`` is 1, all rows of the working set are listed, and hit_D
//            and miss_D become 0. The rows of the misses are then computed and stored in the cache, so that the solve
//            finds in the cache all kernel values that it needs.
//   used     the number of entries of ws in use, which are the first ``used`` entries. Some of them may be -1.
//   first, leaving   the entries first .. first + leaving - 1 leave the working set
// In and out:
//   slot_of     slot_of[row] is the row's slot in the cache, or -1
//   owner       owner[slot] is the row in the slot, or -1
//   ws          (W,), row numbers, or -1 for no row. The entries that leave the working set become -1.
//   in_set      in_set[row] says whether a row is in the working set
//   counters    counters[1] is increased by the number of misses.
//               counters[2] is increased by the number of misses if ``capacity`` is not 0. Each miss then gets a slot.
//               counters[3] is increased by the number of idle rows if ``all`` is 0. A row is idle if the solve
//               changed none of its coefficients and the row stays in the working set. If all rows leave, rows that
//               leave are counted too.
// Out, for the hits (the arrays have space for ``stride`` rows):
//   hits        hits[0] is the number of hits
//   hit_slot    (stride,), the slots of the hits
//   hit_D       (problems, stride), the changes of the hits' coefficients
// Out, for the misses:
//   misses       misses[0] is the number of misses
//   miss_row     (stride,), the row numbers of the misses
//   miss_slot    (stride,), the slots in which the misses' rows of the kernel matrix are to be stored
//   miss_D       (problems, stride), the changes of the misses' coefficients
// The row cache is a ring of ``capacity`` slots. The first miss gets the slot counters[2] % capacity, where counters[2]
// is the count before the call. Each further miss gets the next slot of the ring. The row that owned the slot before is
// evicted. If capacity is 0, there is no cache, and every listed row is a miss.
// A miss may get the slot of a hit of the same call, because other kernels read the hits before they store the misses.
// Work-items: one work-group.
kernel EXPLICIT __attribute__((reqd_work_group_size(WG, 1, 1))) void plan(
    const int problems, const int W, const int used, const int first, const int leaving, const int capacity, const int all,
    global int *restrict ws, global uchar *restrict in_set, global const wide *restrict delta,
    global int *restrict slot_of, global int *restrict owner, global int *restrict hits,
    global int *restrict hit_slot, global wide *restrict hit_D,
    global int *restrict misses, global int *restrict miss_row, global int *restrict miss_slot,
    global wide *restrict miss_D, const int stride, global long *restrict counters) {
  const int lid = get_local_id(0);
  local int scratch[SCAN];
  for (int k = lid; k < problems * stride; k += WG) hit_D[k] = wide_of(0), miss_D[k] = wide_of(0);
  barrier(CLK_GLOBAL_MEM_FENCE);
  int hit_total = 0, miss_total = 0, idle_total = 0;
  for (int e0 = 0; e0 < W; e0 += WG) {
    // The entries that leave come first. They are most likely hits, and so the order of the sums depends little on what
    // is in the cache.
    const int e = e0 + lid, from = e + first, at = e >= used ? e : from < used ? from : from - used;
    const int row = e < W ? ws[at] : -1;
    bool changed = all && row >= 0;
    for (int p = 0; p < problems && e < W && !all; ++p) {
      const wide d = delta[(size_t)p * W + at];  // 0 where ws has no row, so that no row is listed there
      changed = changed || wide_less(d, wide_of(0)) || wide_less(wide_of(0), d);
    }
    const int slot = changed && capacity > 0 ? slot_of[row] : -1;
    const bool leaves = at >= first && at < first + leaving;
    const int idle = !all && row >= 0 && !changed && (!leaves || leaving == used);
    int hits_here, misses_here;  // one scan sums hits in bits 0 to 15 and idle rows from bit 16 on
    const int hit = hit_total + (group_scan((changed && slot >= 0) + (idle << 16), scratch, &hits_here) & 0xffff) - 1;
    const int miss = miss_total + group_scan(changed && slot < 0, scratch, &misses_here) - 1;
    if (changed && slot >= 0) hit_slot[hit] = slot;
    if (changed && slot < 0) miss_row[miss] = row;
    for (int p = 0; p < problems && changed && !all; ++p) {
      const wide d = delta[(size_t)p * W + at];
      if (slot >= 0) hit_D[(size_t)p * stride + hit] = d;
      else miss_D[(size_t)p * stride + miss] = d;
    }
    hit_total += hits_here & 0xffff, miss_total += misses_here, idle_total += hits_here >> 16;
  }
  barrier(CLK_GLOBAL_MEM_FENCE);
  const long head = counters[2];
  const int cached = capacity > 0 ? miss_total : 0;
  for (int k = lid; k < cached; k += WG) {
    const int slot = (int)((head + k) % capacity), old = owner[slot];
    if (old >= 0) slot_of[old] = -1;
    miss_slot[k] = slot;
  }
  barrier(CLK_GLOBAL_MEM_FENCE);
  for (int k = lid; k < cached; k += WG) owner[miss_slot[k]] = miss_row[k], slot_of[miss_row[k]] = miss_slot[k];
  for (int k = miss_total + lid; k < stride; k += WG) miss_row[k] = -1;
  for (int k = first + lid; k < first + leaving; k += WG) {
    if (ws[k] >= 0) in_set[ws[k]] = 0;
    ws[k] = -1;
  }
  if (lid == 0) {
    hits[0] = hit_total, misses[0] = miss_total;
    counters[1] += miss_total, counters[3] += idle_total, counters[2] = head + cached;
  }
}
