// Find the smallest value of a work-group and its index, for kernels in which every SMO iteration waits for the result:
//   real_least(value, index, values, unused)
//   real_least_2(value, index, other, other_index, values, unused)
//   wide_least_2(value, index, other, other_index, values, unused)
//   wide_least_in(part, which, value, index, values, unused)
//   real_least_in(part, which, value, index, values, unused)
// Each work-item passes a ``value`` with its ``index``. Every item gets back the smallest value of all items, and the
// index of this value. The functions that end in _2 also find the smallest ``other`` and its index.
// The functions that end in _in can be called after a function that ends in _2, before ``values`` changes. They find the
// smallest ``value`` (which = 0) or the smallest ``other`` (which = 1) of the items of one part, and its index. The items
// are divided into PAIRS parts: item ``lid`` is in part lid / 32 % PAIRS. MY_PART is the part of the calling item. If
// sub-groups have more than 32 items, parts are whole sub-groups, and some parts may be empty. The index is then not
// that of any item.
// ``real`` is the type of kernel values, float or double. ``wide`` is the type of gradients, a double or a pair of
// floats. ``values`` is a buffer in local memory. Two calls with the same buffer need a barrier between them.
// A macro chooses how the minimum of a sub-group is found:
//   REDUX        by an instruction of NVIDIA GPUs, for sub-groups of 32 items
//   SUBGROUPS    by OpenCL's function sub_group_reduce_min
// If neither macro is defined, or the work-group is very small, the functions are those of argmin.cl. The last argument
// of functions in argmin.cl is a local buffer for indices. Functions of this file ignore this argument ``unused``, and
// find the minimum as follows.
// The instruction and sub_group_reduce_min take 32-bit unsigned integers. Values are therefore mapped to integers in
// the same order. A float gives one integer. A double or a pair of floats gives two: the high and low half of 64 bits.
// A sub-group first reduces the high halves. Then it reduces the low halves of the items that have the smallest high
// half. Last it reduces the indices of the items that have the smallest value.
// Each sub-group writes its result to ``values``. After a barrier every sub-group reduces these results.
#if (defined(REDUX) && WG >= 32) || (defined(SUBGROUPS) && WG > 1)
#ifdef REDUX
#define SUBGROUP 32
#define PARTS (WG > SUBGROUP ? WG / SUBGROUP : 1)
#define PART (int)(get_local_id(0) / SUBGROUP)
#define LANE (int)(get_local_id(0) % SUBGROUP)
inline uint least_of(const uint x) {
  uint y;
  __asm__ volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}
#else
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#define SUBGROUP (int)get_sub_group_size()
#define PARTS (int)get_num_sub_groups()
#define PART (int)get_sub_group_id()
#define LANE (int)get_sub_group_local_id()
#define least_of(x) sub_group_reduce_min((uint)(x))
#endif
#define PARTS_EACH max(1, 32 / SUBGROUP)  // consecutive sub-groups of one part
#define MY_PART (PART / PARTS_EACH % PAIRS)
// A key stands for a number and the index of this number. It has three unsigned integers: ``high``, ``low`` and
// ``index``. The number is mapped to ``high`` and ``low`` in such a way that smaller numbers have smaller keys.
// Keys are compared by ``high``. If ``high`` is equal, they are compared by ``low``, and if ``low`` is equal too, by
// ``index``. So the smallest index wins among equal numbers.
typedef struct {
  uint high, low, index;
} Key;

// Map floats to unsigned integers that have the order of the floats, and back. -0 becomes 0.
inline uint ordered(const float x) {
  const uint bits = as_uint(x + 0.0f);
  return bits ^ ((uint)((int)bits >> 31) | 0x80000000u);
}
inline float unordered(const uint key) { return as_float(key ^ ((key & 0x80000000u) ? 0x80000000u : 0xffffffffu)); }
#if !defined(WIDE_PAIR) || defined(REAL64)
inline Key key_of_double(const double x, const int index) {
  const ulong bits = as_ulong(x + 0.0), key = bits ^ ((ulong)((long)bits >> 63) | 0x8000000000000000ul);
  const Key one = {(uint)(key >> 32), (uint)key, (uint)index};
  return one;
}
inline double double_of(const Key one) {
  const ulong key = (ulong)one.high << 32 | one.low;
  return as_double(key ^ ((key >> 63) ? 0x8000000000000000ul : 0xfffffffffffffffful));
}
#endif
inline Key key_of_float(const float x, const int index) {
  const Key one = {ordered(x), 0u, (uint)index};
  return one;
}
inline float float_of(const Key one) { return unordered(one.high); }
#ifdef WIDE_PAIR
inline Key key_of_wide(const wide x, const int index) {
  const Key one = {ordered(x.x), ordered(x.y), (uint)index};
  return one;
}
inline wide wide_of_key(const Key one) { return (wide)(unordered(one.high), unordered(one.low)); }
#else
#define key_of_wide key_of_double
#define wide_of_key double_of
#endif
#ifdef REAL64
#define key_of_real key_of_double
#define real_of_key double_of
#define BOTH_HALVES 1
#else
#define key_of_real key_of_float
#define real_of_key float_of
#define BOTH_HALVES 0
#endif

// Find the smallest key of a sub-group. Each work-item passes a key, keys[0]. The function replaces keys[0] of every
// item by the smallest keys[0] of all items of the sub-group.
// If ``count`` is 2, each item passes a second key, keys[1], and the smallest keys[1] is found in the same way.
// The type Key, defined above, stands for a number and its index. Keys are compared as described there.
// ``halves`` is 1 if numbers have 64 bits. ``halves`` is 0 if numbers have 32 bits, so that ``low`` is 0 in all keys.
// Each step is done for both keys before the next step, so that one reduction proceeds while the other waits.
INLINED void least_keys(const int count, Key *keys, const int halves) {
  Key least[2];
  bool first[2];
  for (int s = 0; s < count; ++s) least[s].high = least_of(keys[s].high);
  for (int s = 0; s < count; ++s) first[s] = keys[s].high == least[s].high;
  for (int s = 0; s < count; ++s) least[s].low = halves ? least_of(first[s] ? keys[s].low : UINT_MAX) : 0u;
  for (int s = 0; s < count; ++s) first[s] = first[s] && (!halves || keys[s].low == least[s].low);
  for (int s = 0; s < count; ++s) least[s].index = least_of(first[s] ? keys[s].index : UINT_MAX);
  for (int s = 0; s < count; ++s) keys[s] = least[s];
}

// Return the smallest of some of the PARTS keys in ``parts``: of ``run`` keys from key ``first`` on, then of ``run`` keys
// from key first + step on, and so on. If there is none, the three integers of the result are UINT_MAX.
INLINED Key least_among(local const uint *parts, const int first, const int step, const int run) {
  Key least = {UINT_MAX, UINT_MAX, UINT_MAX};
  for (int from = first; from < PARTS; from += step)
    for (int k = from; k < min(from + run, PARTS); ++k) {
      const Key one = {parts[3 * k], parts[3 * k + 1], parts[3 * k + 2]};
      const bool same = one.high == least.high, both = same && one.low == least.low;
      if (one.high < least.high || (same && one.low < least.low) || (both && one.index < least.index)) least = one;
    }
  return least;
}

// Find the smallest key of a work-group. Each work-item passes a key, keys[0]. The function replaces keys[0] of every
// item by the smallest keys[0] of all items of the work-group.
// If ``count`` is 2, each item passes a second key, keys[1], and the smallest keys[1] is found in the same way.
// The type Key, defined above, stands for a number and its index. Keys are compared as described there.
// ``halves`` is 1 if numbers have 64 bits. ``halves`` is 0 if numbers have 32 bits, so that ``low`` is 0 in all keys.
// ``parts`` is local memory for intermediate results. The array begins with one key for each sub-group, the smallest
// keys[0] of its items. If ``count`` is 2, the smallest keys[1] of each sub-group follow. A key takes three integers.
INLINED void least_of_all(const int count, Key *keys, const int halves, local uint *parts) {
  least_keys(count, keys, halves);
  for (int s = 0; s < count; ++s) {
    local uint *to = parts + 3 * (s * PARTS + PART);
    if (LANE == 0) to[0] = keys[s].high, to[1] = keys[s].low, to[2] = keys[s].index;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int s = 0; s < count; ++s) {
    keys[s] = least_among(parts + 3 * s * PARTS, LANE, SUBGROUP, 1);
  }
  least_keys(count, keys, halves);
}

#define DEFINE_LEAST(T, HALVES)                                                                                       \
  INLINED void T##_least(T *value, int *index, local T *values, local int *unused) {                                  \
    Key keys[2];                                                                                                      \
    keys[0] = key_of_##T(*value, *index);                                                                             \
    least_of_all(1, keys, HALVES, (local uint *)values);                                                              \
    *value = T##_of_key(keys[0]), *index = (int)keys[0].index;                                                        \
  }                                                                                                                   \
  INLINED void T##_least_2(T *value, int *index, T *other, int *other_index, local T *values, local int *unused) {    \
    Key keys[2];                                                                                                      \
    keys[0] = key_of_##T(*value, *index), keys[1] = key_of_##T(*other, *other_index);                                 \
    least_of_all(2, keys, HALVES, (local uint *)values);                                                              \
    *value = T##_of_key(keys[0]), *index = (int)keys[0].index;                                                        \
    *other = T##_of_key(keys[1]), *other_index = (int)keys[1].index;                                                  \
  }                                                                                                                   \
  INLINED void T##_least_in(const int part, const int which, T *value, int *index, local const T *values,             \
                            local const int *unused) {                                                                \
    const Key least = least_among((local const uint *)values + 3 * which * PARTS, part * PARTS_EACH, PAIRS * PARTS_EACH, \
                                   PARTS_EACH);                                                                       \
    *value = T##_of_key(least), *index = (int)least.index;                                                            \
  }

DEFINE_LEAST(wide, 1)
DEFINE_LEAST(real, BOTH_HALVES)
#else
#define wide_least_2 wide_argmin_2
#define real_least real_argmin
#define real_least_2 real_argmin_2
#define wide_least_in wide_argmin_in
#define real_least_in real_argmin_in
#define MY_PART (get_local_id(0) / 32 % PAIRS)
#endif
