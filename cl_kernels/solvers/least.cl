// Find the smallest value of a work-group and its index, for kernels in which every SMO iteration waits for the result:
//   real_least(value, index, values, unused)
//   real_least_2(value, index, other, other_index, values, unused)
//   real_least_in(part, which, value, index, values, unused)
// Each work-item passes a ``value`` with its ``index``. Every item gets back the smallest value of all items, and the
// index of this value. The functions that end in _2 also find the smallest ``other`` and its index.
// The functions that end in _in can be called after a function that ends in _2, before ``values`` changes. They find the
// smallest ``value`` (which = 0) or the smallest ``other`` (which = 1) of the items of one part, and its index. The items
// are divided into PAIRS parts: item ``lid`` is in part lid / 32 % PAIRS. MY_PART is the part of the calling item. If
// sub-groups have more than 32 items, parts are whole sub-groups, and some parts may be empty. The index is then not
// that of any item.
// ``real`` is the type of kernel values, float or double. ``values`` is a buffer in local memory. Two calls with the same
// buffer need a barrier between them.
// A macro chooses how the minimum of a sub-group is found:
//   REDUX        by an instruction of NVIDIA GPUs, for sub-groups of 32 items
//   SUBGROUPS    by OpenCL's function sub_group_reduce_min
// If neither macro is defined, or the work-group is very small, the functions are those of argmin.cl. The last argument
// of functions in argmin.cl is a local buffer for indices. Functions of this file ignore this argument ``unused``, and
// find the minimum as follows.
// The instruction and sub_group_reduce_min take 32-bit unsigned integers. Values are therefore mapped to integers in
// the same order. A float gives one integer. A double gives two: the high and low half of 64 bits.
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

// Map a number to a key, and back. -0 becomes 0.
#ifdef REAL64
#define HALVES 1  // numbers have 64 bits
inline Key key_of(const double x, const int index) {
  const ulong bits = as_ulong(x + 0.0), key = bits ^ ((ulong)((long)bits >> 63) | 0x8000000000000000ul);
  const Key one = {(uint)(key >> 32), (uint)key, (uint)index};
  return one;
}
inline double real_of(const Key one) {
  const ulong key = (ulong)one.high << 32 | one.low;
  return as_double(key ^ ((key >> 63) ? 0x8000000000000000ul : 0xfffffffffffffffful));
}
#else
#define HALVES 0  // numbers have 32 bits, and ``low`` is 0 in all keys
inline Key key_of(const float x, const int index) {
  const uint bits = as_uint(x + 0.0f);
  const Key one = {bits ^ ((uint)((int)bits >> 31) | 0x80000000u), 0u, (uint)index};
  return one;
}
inline float real_of(const Key one) {
  return as_float(one.high ^ ((one.high & 0x80000000u) ? 0x80000000u : 0xffffffffu));
}
#endif

// Find the smallest key of a sub-group. Each work-item passes a key, keys[0]. The function replaces keys[0] of every
// item by the smallest keys[0] of all items of the sub-group.
// If ``count`` is 2, each item passes a second key, keys[1], and the smallest keys[1] is found in the same way.
// The type Key, defined above, stands for a number and its index. Keys are compared as described there.
// Each step is done for both keys before the next step, so that one reduction proceeds while the other waits.
INLINED void least_keys(const int count, Key *keys) {
  Key least[2];
  bool first[2];
  for (int s = 0; s < count; ++s) least[s].high = least_of(keys[s].high);
  for (int s = 0; s < count; ++s) first[s] = keys[s].high == least[s].high;
  for (int s = 0; s < count; ++s) least[s].low = HALVES ? least_of(first[s] ? keys[s].low : UINT_MAX) : 0u;
  for (int s = 0; s < count; ++s) first[s] = first[s] && (!HALVES || keys[s].low == least[s].low);
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
// ``parts`` is local memory for intermediate results. The array begins with one key for each sub-group, the smallest
// keys[0] of its items. If ``count`` is 2, the smallest keys[1] of each sub-group follow. A key takes three integers.
INLINED void least_of_all(const int count, Key *keys, local uint *parts) {
  least_keys(count, keys);
  for (int s = 0; s < count; ++s) {
    local uint *to = parts + 3 * (s * PARTS + PART);
    if (LANE == 0) to[0] = keys[s].high, to[1] = keys[s].low, to[2] = keys[s].index;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int s = 0; s < count; ++s) {
    keys[s] = least_among(parts + 3 * s * PARTS, LANE, SUBGROUP, 1);
  }
  least_keys(count, keys);
}

INLINED void real_least(real *value, int *index, local real *values, local int *unused) {
  Key keys[2];
  keys[0] = key_of(*value, *index);
  least_of_all(1, keys, (local uint *)values);
  *value = real_of(keys[0]), *index = (int)keys[0].index;
}

INLINED void real_least_2(real *value, int *index, real *other, int *other_index, local real *values, local int *unused) {
  Key keys[2];
  keys[0] = key_of(*value, *index), keys[1] = key_of(*other, *other_index);
  least_of_all(2, keys, (local uint *)values);
  *value = real_of(keys[0]), *index = (int)keys[0].index;
  *other = real_of(keys[1]), *other_index = (int)keys[1].index;
}

INLINED void real_least_in(const int part, const int which, real *value, int *index, local const real *values,
                           local const int *unused) {
  const Key least = least_among((local const uint *)values + 3 * which * PARTS, part * PARTS_EACH, PAIRS * PARTS_EACH,
                                PARTS_EACH);
  *value = real_of(least), *index = (int)least.index;
}
#else
#define real_least real_argmin
#define real_least_2 real_argmin_2
#define real_least_in real_argmin_in
#define MY_PART (get_local_id(0) / 32 % PAIRS)
#endif
