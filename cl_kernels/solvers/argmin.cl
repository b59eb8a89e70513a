// Find the smallest of the values that the work-items of a work-group pass, and the index of this value. If several
// items pass the smallest value, the smallest of their indices is taken.
// The macro DEFINE_ARGMIN(NAME, T, ...) defines two functions for values of the type T. NAME is wide_argmin or
// real_argmin, for the types wide (a double or a pair of floats, common.cl) and real (the type of kernel values):
//   NAME(value, index, values, indices)
//     Each work-item passes a value *value and its index *index. The function replaces both by the smallest value of
//     the group and the index of the smallest value.
//   NAME_2(value, index, other, other_index, values, indices)
//     Each work-item passes two values, *value and *other, and their indices *index and *other_index. The smallest
//     *value of the group and its index replace *value and *index. Separately, the smallest *other of the group and its
//     index replace *other and *other_index.
//   NAME_in(part, which, value, index, values, indices)
//     Call it after NAME_2, before ``values`` and ``indices`` change. It sets *value to the smallest *value
//     (which = 0) or to the smallest *other (which = 1) of the items of one part, and *index to its index. The items
//     are divided into PAIRS parts: item ``lid`` is in part lid / 32 % PAIRS. PAIRS > 1 needs WG >= 32 * PAIRS, and PAIRS <= RADIX.
// ``values`` and ``indices`` are arrays in local memory. NAME needs ENTRIES_EACH entries in each array, and
// NAME_2 needs 2 * ENTRIES_EACH entries in each.
// A group has WG work-items. If WG is at most RADIX = 16, every item finds the smallest of the WG values. If WG is
// larger, the group works in two stages, with a barrier between the stages:
//   1. RADIX items, the leaves, each find the smallest of WG / RADIX values, and write it to ``values``.
//   2. Every item finds the smallest of the RADIX values that stage 1 wrote.
// A leaf takes chunks of CHUNK consecutive items, so that all of its items are in one part. ENTRY(lid) is the index of
// item lid's value in ``values``. Consecutive items write STRIDE entries apart, and consecutive leaves read
// consecutive entries. STRIDE is odd, so that both use different banks of local memory.
// Stage 2 needs no barrier at its end. The next call first writes only entries that stage 2 does not read.
#define RADIX 16
#ifndef PAIRS
#define PAIRS 1
#endif
#if WG > RADIX
#define LEAVES RADIX
#define STRIDE (LEAVES + 1)
#define ENTRIES_EACH (WG / LEAVES * STRIDE + RADIX)
#else
#define LEAVES WG
#define STRIDE LEAVES
#define ENTRIES_EACH WG
#endif
#define CHUNK (WG / LEAVES < 32 ? WG / LEAVES : 32)
#define ENTRY(lid) (((lid) / (CHUNK * LEAVES) * CHUNK + (lid) % CHUNK) * STRIDE + (lid) / CHUNK % LEAVES)
#define LEAVES_EACH (32 / CHUNK)  // consecutive leaves of one part
#define REAL_LESS(a, b) ((a) < (b))
#define REAL_PICK(c, a, b) ((c) ? (a) : (b))

// Set v[k] to the smaller of the values v[k] and v[k + half_], and at[k] to its index. If both are equal, the one with
// the smaller index is taken. Steps with half_ = 8, 4, 2 and 1 reduce RADIX = 16 values to one.
#define SMALLER(LESS, PICK, k, half_)                                                                                 \
  {                                                                                                                   \
    const bool other = LESS(v[k + half_], v[k]) || (!LESS(v[k], v[k + half_]) && at[k + half_] < at[k]);              \
    v[k] = PICK(other, v[k + half_], v[k]), at[k] = other ? at[k + half_] : at[k];                                    \
  }
#define SMALLER_2(LESS, PICK, k, half_) SMALLER(LESS, PICK, k, half_) SMALLER(LESS, PICK, k + 1, half_)
#define SMALLER_4(LESS, PICK, k, half_) SMALLER_2(LESS, PICK, k, half_) SMALLER_2(LESS, PICK, k + 2, half_)

#define DEFINE_ARGMIN(NAME, T, LESS, PICK)                                                                            \
  INLINED void NAME##_smaller(const T other, const int other_index, T *value, int *index) {                           \
    const bool less = LESS(other, *value) || (!LESS(*value, other) && other_index < *index);                          \
    *value = PICK(less, other, *value), *index = less ? other_index : *index;                                         \
  }                                                                                                                   \
  /* find the smallest of ``count`` values (a power of two): values[0], values[stride], values[2 * stride], ... */    \
  INLINED void NAME##_of(const int count, const int stride, local const T *values, local const int *indices, T *value,\
                         int *index) {                                                                                \
    T v[RADIX];                                                                                                       \
    int at[RADIX];                                                                                                    \
    _Pragma("unroll") for (int k = 0; k < RADIX; ++k) {                                                               \
      v[k] = values[min(k, count - 1) * stride], at[k] = indices[min(k, count - 1) * stride];                         \
    }                                                                                                                 \
    SMALLER_4(LESS, PICK, 0, 8) SMALLER_4(LESS, PICK, 4, 8) SMALLER_4(LESS, PICK, 0, 4) SMALLER_2(LESS, PICK, 0, 2)   \
    SMALLER(LESS, PICK, 0, 1)                                                                                         \
    *value = v[0], *index = at[0];                                                                                    \
    for (int k = RADIX; k < count; ++k) /* only in groups of more than RADIX^2 items */                               \
      NAME##_smaller(values[k * stride], indices[k * stride], value, index);                                          \
  }                                                                                                                   \
  INLINED void NAME##_level(const int leaf, local T *values, local int *indices) {                                    \
    T v;                                                                                                              \
    int at;                                                                                                           \
    NAME##_of(WG / LEAVES, STRIDE, values + leaf, indices + leaf, &v, &at);                                           \
    values[ENTRIES_EACH - LEAVES + leaf] = v, indices[ENTRIES_EACH - LEAVES + leaf] = at;                             \
  }                                                                                                                   \
  INLINED void NAME(T *value, int *index, local T *values, local int *indices) {                                      \
    const int lid = get_local_id(0), to = ENTRY(lid);                                                                 \
    values[to] = *value, indices[to] = *index;                                                                        \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                     \
    if (WG > LEAVES) {                                                                                                \
      if (lid < LEAVES) NAME##_level(lid, values, indices);                                                           \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                                   \
    }                                                                                                                 \
    NAME##_of(LEAVES, 1, values + ENTRIES_EACH - LEAVES, indices + ENTRIES_EACH - LEAVES, value, index);              \
    if (WG == LEAVES) barrier(CLK_LOCAL_MEM_FENCE);                                                                   \
  }                                                                                                                   \
  INLINED void NAME##_in(const int part, const int which, T *value, int *index, local const T *values,                \
                         local const int *indices) {                                                                  \
    values += (which + 1) * ENTRIES_EACH - LEAVES, indices += (which + 1) * ENTRIES_EACH - LEAVES;                    \
    *value = values[part * LEAVES_EACH], *index = indices[part * LEAVES_EACH];                                        \
    for (int first = part * LEAVES_EACH; first < LEAVES; first += PAIRS * LEAVES_EACH)                                \
      for (int k = first; k < min(first + LEAVES_EACH, LEAVES); ++k) NAME##_smaller(values[k], indices[k], value, index);\
  }                                                                                                                   \
  INLINED void NAME##_2(T *value, int *index, T *other, int *other_index, local T *values, local int *indices) {      \
    const int lid = get_local_id(0), to = ENTRY(lid);                                                                 \
    values[to] = *value, indices[to] = *index;                                                                        \
    values[ENTRIES_EACH + to] = *other, indices[ENTRIES_EACH + to] = *other_index;                                    \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                     \
    if (WG > LEAVES) {                                                                                                \
      const int item = lid % LEAVES, side = lid / LEAVES * ENTRIES_EACH; /* WG >= 2 LEAVES */                         \
      if (lid < 2 * LEAVES) NAME##_level(item, values + side, indices + side);                                        \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                                   \
    }                                                                                                                 \
    NAME##_of(LEAVES, 1, values + ENTRIES_EACH - LEAVES, indices + ENTRIES_EACH - LEAVES, value, index);              \
    NAME##_of(LEAVES, 1, values + 2 * ENTRIES_EACH - LEAVES, indices + 2 * ENTRIES_EACH - LEAVES, other, other_index);\
    if (WG == LEAVES) barrier(CLK_LOCAL_MEM_FENCE);                                                                   \
  }

DEFINE_ARGMIN(wide_argmin, wide, wide_less, wide_pick)
DEFINE_ARGMIN(real_argmin, real, REAL_LESS, REAL_PICK)
