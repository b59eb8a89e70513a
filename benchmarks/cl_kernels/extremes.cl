// Find the extremes of x: values[e P + p] is the smallest or largest x[i] of part p of P, and indices[e P + p] is i.
// The smallest index of equal values counts. x holds no NaN.
//   extremes   reduces a part in each work-group. If GROUP is 1, an item reads ``piece`` consecutive numbers. Otherwise
//              consecutive items read consecutive vectors, and the vectors are dealt to all items of the range.
//   last       reduces the extremes of the parts in one work-group
//   AT_MOST    whether extreme e is a minimum; with BOTH, e = 0 is the minimum and e = 1 the maximum
#ifndef LANES
#define LANES 16  // numbers of a vector (4, 8, 16)
#endif
#ifndef CHAINS
#define CHAINS 2  // vectors of running extremes, each over a separate stretch of addresses
#endif
#ifndef TOGETHER
#define TOGETHER 8  // vectors of a stretch that are reduced before the running extreme is compared
#endif
#ifndef GROUP
#define GROUP 1  // work-items of a work-group (a power of two)
#endif
#if defined(BOTH)
#define E 2  // extremes in one pass
#define AT_MOST(e) ((e) == 0)
#elif defined(MAXIMUM)
#define E 1
#define AT_MOST(e) 0
#else
#define E 1
#define AT_MOST(e) 1
#endif
#ifdef TERNARY  // the lanes of one of two vectors
#define PICK(no, yes, condition) ((condition) ? (yes) : (no))
#else
#define PICK(no, yes, condition) select(no, yes, condition)
#endif
#define floatl CAT(float, LANES)
#define intl CAT(int, LANES)
#define loadl CAT(vload, LANES)
#define storel CAT(vstore, LANES)
#define STEP (LANES * CHAINS * TOGETHER)  // numbers that an item reads in a step
#if GROUP > 1
#define LOAD(at, x) ((global const floatl *)(x))[at]  // one instruction, since vectors are aligned
#else
#define LOAD(at, x) loadl(at, x)
#endif
#define VECTOR_AT(c, s, q) (((size_t)(c) * full + (s)) * TOGETHER + (q))  // the item's vectors, by chain and step
#define NEARER(e, a, b) (AT_MOST(e) ? isless(a, b) : isgreater(a, b))
#define BEYOND(e) (AT_MOST(e) ? INFINITY : -INFINITY)

// Replace (value, index) by (v, i) if v is more extreme. With VALUES_ONLY, indices do not change.
inline void take(const int e, const float v, const int i, float *value, int *index) {
#ifdef VALUES_ONLY
  *value = (AT_MOST(e) ? v < *value : v > *value) ? v : *value;
#else
  const bool nearer = (AT_MOST(e) ? v < *value : v > *value) || (v == *value && i < *index);
  *value = nearer ? v : *value, *index = nearer ? i : *index;
#endif
}

// Reduce the (value, index) of a group's items into item 0's.
inline void group_take(const int e, float *value, int *index, local float *values, local int *indices) {
#if GROUP > 1
  const int lid = get_local_id(0);
  values[lid] = *value, indices[lid] = *index;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = GROUP / 2; step > 0; step /= 2) {
    if (lid < step) {
      take(e, values[lid + step], indices[lid + step], value, index);
      values[lid] = *value, indices[lid] = *index;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#endif
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1), vec_type_hint(floatl))) void extremes(
    const int n, const int piece, global const float *restrict x, global float *restrict values,
    global int *restrict indices) {
#if GROUP == 1
  const size_t step = 1, first = get_global_id(0) * (size_t)piece, end = min((size_t)n, first + piece);
  const int full = (end - first) / STEP;
  const size_t rest = first + (size_t)full * STEP;
#else
  const size_t step = get_global_size(0), first = get_global_id(0) * LANES, end = n;
  const int full = end / (STEP * step);
  const size_t rest = full * (STEP * step) + get_global_id(0);
#endif
  local float group_values[GROUP];
  local int group_indices[GROUP];
  floatl best[E][CHAINS];
  intl at[E][CHAINS];  // the step of each lane's extreme; the index is computed once at the end
#pragma unroll
  for (int e = 0; e < E; ++e)
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) best[e][c] = (floatl)BEYOND(e), at[e][c] = (intl)0;
  for (int s = 0; s < full; ++s) {
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) {
      floatl v[TOGETHER];
#pragma unroll
      for (int q = 0; q < TOGETHER; ++q) v[q] = LOAD(VECTOR_AT(c, s, q) * step, x + first);
#pragma unroll
      for (int e = 0; e < E; ++e) {
        floatl m = v[0];
#pragma unroll
        for (int q = 1; q < TOGETHER; ++q) m = PICK(m, v[q], NEARER(e, v[q], m));
        const intl nearer = NEARER(e, m, best[e][c]);
        best[e][c] = PICK(best[e][c], m, nearer);
#ifndef VALUES_ONLY
        at[e][c] = PICK(at[e][c], (intl)s, nearer);
#endif
      }
    }
  }
  for (int e = 0; e < E; ++e) {
    float value = BEYOND(e);
    int index = INT_MAX;
    for (int c = 0; c < (full > 0 ? CHAINS : 0); ++c) {
      float lane_value[LANES];
      storel(best[e][c], 0, lane_value);
      for (int l = 0; l < LANES; ++l) take(e, lane_value[l], INT_MAX, &value, &index);
    }
    for (size_t i = rest; i < end; i += step) take(e, x[i], INT_MAX, &value, &index);
    group_take(e, &value, &index, group_values, group_indices);
#ifndef VALUES_ONLY  // reads again only the numbers of the extreme's step
#if GROUP > 1
    value = group_values[0];
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    for (int c = 0; c < (full > 0 ? CHAINS : 0); ++c) {
      float lane_value[LANES];
      int lane_at[LANES];
      storel(best[e][c], 0, lane_value);
      storel(at[e][c], 0, lane_at);
      for (int l = 0; l < LANES; ++l)
        for (int q = 0; q < (lane_value[l] == value ? TOGETHER : 0); ++q) {
          const size_t k = first + VECTOR_AT(c, lane_at[l], q) * step * LANES + l;
          if (x[k] == value) index = min(index, (int)k);
        }
    }
    for (size_t i = rest; i < end; i += step)
      if (x[i] == value) index = min(index, (int)i);
    group_take(e, &value, &index, group_values, group_indices);
#endif
    if (get_local_id(0) == 0) {
      values[e * get_num_groups(0) + get_group_id(0)] = value;
      indices[e * get_num_groups(0) + get_group_id(0)] = index;
    }
  }
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void last(
    const int parts, global const float *restrict values, global const int *restrict indices,
    global float *restrict value_out, global int *restrict index_out) {
  local float group_values[GROUP];
  local int group_indices[GROUP];
  for (int e = 0; e < E; ++e) {
    float value = BEYOND(e);
    int index = INT_MAX;
    for (int p = get_local_id(0); p < parts; p += GROUP)
      take(e, values[e * parts + p], indices[e * parts + p], &value, &index);
    group_take(e, &value, &index, group_values, group_indices);
    if (get_local_id(0) == 0) value_out[e] = value, index_out[e] = index;
  }
}
