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
// ``values`` and ``indices`` are arrays in local memory. NAME needs ENTRIES_EACH entries in each array, and
// NAME_2 needs 2 * ENTRIES_EACH entries in each.
// A group has WG work-items. If WG is at most RADIX = 16, every item finds the smallest of the WG values. If WG is
// larger, the group works in two stages, with a barrier between the stages:
//   1. RADIX items each find the smallest of WG / RADIX values, and write it to ``values``.
//   2. Every item finds the smallest of the RADIX values that stage 1 wrote.
// Stage 2 needs no barrier at its end. The next call first writes only entries that stage 2 does not read.
#define RADIX 16
#if WG > RADIX
#define LEAVES RADIX
#define ENTRIES_EACH (WG + RADIX)
#else
#define LEAVES WG
#define ENTRIES_EACH WG
#endif
#define REAL_LESS(a, b) ((a) < (b))
#define REAL_PICK(c, a, b) ((c) ? (a) : (b))

// Set v[k] to the smaller of the values v[k] and v[k + half_], and at[k] to its index. If both are equal, the one with
// the smaller index is taken. Steps with half_ = 8, 4, 2 and 1 reduce RADIX = 16 values to one.
#define SMALLER(LESS, PICK, k, half_)                                                                       \
  {                                                                                                      \
    const bool other = LESS(v[k + half_], v[k]) || (!LESS(v[k], v[k + half_]) && at[k + half_] < at[k]); \
    v[k] = PICK(other, v[k + half_], v[k]), at[k] = other ? at[k + half_] : at[k];                       \
  }
#define SMALLER_2(LESS, PICK, k, half_) SMALLER(LESS, PICK, k, half_) SMALLER(LESS, PICK, k + 1, half_)
#define SMALLER_4(LESS, PICK, k, half_) SMALLER_2(LESS, PICK, k, half_) SMALLER_2(LESS, PICK, k + 2, half_)

#define DEFINE_ARGMIN(NAME, T, LESS, PICK)                                                                            \
  /* find the smallest of ``count`` values (a power of two): values[0], values[stride], values[2 * stride], ... */      \
  INLINED void NAME##_of(const int count, const int stride, local const T *values, local const int *indices, T *value, \
                         int *index) {                                                                                \
    T v[RADIX];                                                                                                       \
    int at[RADIX];                                                                                                    \
    _Pragma("unroll") for (int k = 0; k < RADIX; ++k) {                                                               \
      v[k] = values[min(k, count - 1) * stride], at[k] = indices[min(k, count - 1) * stride];                         \
    }                                                                                                                 \
    SMALLER_4(LESS, PICK, 0, 8) SMALLER_4(LESS, PICK, 4, 8) SMALLER_4(LESS, PICK, 0, 4) SMALLER_2(LESS, PICK, 0, 2)               \
    SMALLER(LESS, PICK, 0, 1)                                                                                            \
    *value = v[0], *index = at[0];                                                                                    \
  }                                                                                                                   \
  INLINED void NAME##_level(const int item, local T *values, local int *indices) {                                    \
    T v;                                                                                                              \
    int at;                                                                                                           \
    NAME##_of(min(WG / LEAVES, RADIX), LEAVES, values + item, indices + item, &v, &at);                               \
    for (int k = RADIX; k < WG / LEAVES; ++k) { /* only in groups of more than RADIX^2 items */                       \
      const T w = values[k * LEAVES + item];                                                                          \
      const int index_w = indices[k * LEAVES + item];                                                                   \
      const bool less = LESS(w, v) || (!LESS(v, w) && index_w < at);                                                    \
      v = PICK(less, w, v), at = less ? index_w : at;                                                                   \
    }                                                                                                                 \
    values[WG + item] = v, indices[WG + item] = at;                                                                   \
  }                                                                                                                   \
  INLINED void NAME(T *value, int *index, local T *values, local int *indices) {                                      \
    const int lid = get_local_id(0);                                                                                  \
    values[lid] = *value, indices[lid] = *index;                                                                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                     \
    if (WG > LEAVES) {                                                                                                \
      if (lid < LEAVES) NAME##_level(lid, values, indices);                                                           \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                                   \
    }                                                                                                                 \
    NAME##_of(LEAVES, 1, values + ENTRIES_EACH - LEAVES, indices + ENTRIES_EACH - LEAVES, value, index);                              \
    if (WG == LEAVES) barrier(CLK_LOCAL_MEM_FENCE);                                                                   \
  }                                                                                                                   \
  INLINED void NAME##_2(T *value, int *index, T *other, int *other_index, local T *values, local int *indices) {      \
    const int lid = get_local_id(0);                                                                                  \
    values[lid] = *value, indices[lid] = *index;                                                                      \
    values[ENTRIES_EACH + lid] = *other, indices[ENTRIES_EACH + lid] = *other_index;                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                     \
    if (WG > LEAVES) {                                                                                                \
      const int item = lid % LEAVES, side = lid / LEAVES * ENTRIES_EACH; /* WG >= 2 LEAVES */                                 \
      if (lid < 2 * LEAVES) NAME##_level(item, values + side, indices + side);                                        \
      barrier(CLK_LOCAL_MEM_FENCE);                                                                                   \
    }                                                                                                                 \
    NAME##_of(LEAVES, 1, values + ENTRIES_EACH - LEAVES, indices + ENTRIES_EACH - LEAVES, value, index);                              \
    NAME##_of(LEAVES, 1, values + 2 * ENTRIES_EACH - LEAVES, indices + 2 * ENTRIES_EACH - LEAVES, other, other_index);                \
    if (WG == LEAVES) barrier(CLK_LOCAL_MEM_FENCE);                                                                   \
  }

DEFINE_ARGMIN(wide_argmin, wide, wide_less, wide_pick)
DEFINE_ARGMIN(real_argmin, real, REAL_LESS, REAL_PICK)
