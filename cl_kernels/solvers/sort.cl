// The working set by sorting chunks (GTSVM section 5.1): cheaper than counting (count.cl) while it is small, one pass over
// the rows in place of three.
//   shortlist  what extremes.cl's ``extremes`` does, and of each chunk and side the ``quota`` best rows, by f alone:
//              candidates better than the last of the list go into a buffer of SORT rows, which is sorted when full
//   choose     the best of all lists, the same way; by now m and M are known: a free row stands on the side where its
//              violation is larger, and rows without a violation stay out
// Rows with in_set set (kept from the step before) and inert rows (lo = hi) never qualify. Of equal values the smallest
// index comes first. NO_BIAS: all rows stand on one side, by their own violation. (A row can be missed where a chunk's
// list was full of free rows that then went to the other side, which they violate more.)
#ifndef SORT
#define SORT 64  // room of the buffer: a power of two, at least quota + WG and more than quota
#endif
#ifdef NO_BIAS
#define SIDES 1
#else
#define SIDES 2
#endif

// Rows by rising key; count is of those that are there, worst the key that a further one has to stay below.
typedef struct {
  local wide *key;
  local int *row;
  int count;
  wide worst;
} List;

INLINED void sort(List *l, const int quota) {
  const int lid = get_local_id(0);
  for (int k = l->count + lid; k < SORT; k += WG) l->key[k] = WIDE_MAX, l->row[k] = INT_MAX;
  for (int size = 2; size <= SORT; size *= 2)  // bitonic
    for (int stride = size / 2; stride > 0; stride /= 2) {
      SYNC
      for (int k = lid; k < SORT / 2; k += WG) {
        const int i = 2 * k - (k & (stride - 1)), j = i + stride;
        const wide a = l->key[i], b = l->key[j];
        const int r = l->row[i], s = l->row[j];
        const bool after = wide_less(b, a) || (!wide_less(a, b) && s < r);
        if (after == !(i & size)) l->key[i] = b, l->key[j] = a, l->row[i] = s, l->row[j] = r;
      }
    }
  SYNC
  l->count = min(l->count, quota);
  l->worst = l->key[quota - 1];
  SYNC
}

// Adds an item's row where it is good enough; all items of the group together.
INLINED void add(List *l, const int quota, const wide key, const int row, local int *scratch) {
  const bool better = wide_less(key, l->worst);
  int total;
  const int at = l->count + group_scan(better, scratch, &total) - 1;
  if (better) l->key[at] = key, l->row[at] = row;
  l->count += total;
#if WG == 1
  if (l->count == SORT)
#endif
    sort(l, quota);
}

// Adds the rows i, i + 1, ... that are good enough; most often none is.
inline void offer(List *l, const int quota, const some key, const int i, local int *scratch) {
#if AT_ONCE == 1
  add(l, quota, key, i, scratch);
#else
  if (!any(isless(key, (some)l->worst))) return;
  double keys[AT_ONCE];
  vstore8(key, 0, keys);
  for (int k = 0; k < AT_ONCE; ++k) add(l, quota, keys[k], i + k, scratch);
#endif
}

kernel OF_GROUP void shortlist(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                     global const wide *restrict lo, global const wide *restrict hi, global const wide *restrict kink,
                     global const uchar *restrict in_set, const int quota, global wide *restrict numbers,
                     global int *restrict places, global wide *restrict keys, global int *restrict rows) {
  const int p = get_global_id(1), piece = get_group_id(0), pieces = get_num_groups(0), lid = get_local_id(0);
  const size_t base = (size_t)p * n;
  const int begin = piece * chunk, end = min(n, begin + chunk);
  local wide values[2 * ROOM], key[SIDES][SORT];
  local int indices[2 * ROOM], row[SIDES][SORT];
  Seen s = nothing_seen();
  List lists[SIDES];
  for (int side = 0; side < SIDES; ++side)
    lists[side].key = key[side], lists[side].row = row[side], lists[side].count = 0, lists[side].worst = WIDE_MAX;
  f += base, b += base, lo += base, hi += base, in_set += base;
  for (int i0 = begin; i0 < end; i0 += WG * AT_ONCE) {
    const int i = i0 + lid * AT_ONCE;
    some key0 = (some)WIDE_MAX, key1 = (some)WIDE_MAX;  // (WIDE_MAX is never added)
    if (i < end) {
      const some fi = LOAD(f, i), bi = LOAD(b, i), k = (some)kink[0];
      const some right = RIGHT(fi, bi, k), left = LEFT(fi, bi, k);
      const which up = LESS(bi, LOAD(hi, i)), low = LESS(LOAD(lo, i), bi), fresh = FRESH(in_set, i);
      see(&s, i, right, left, up, low);
#ifdef NO_BIAS
      const which rising = up && LESS(right, (some)wide_of(0)), falling = low && LESS((some)wide_of(0), left);
      key0 = PICK(fresh && (rising || falling), PICK(rising, right, NEG(left)), key0);
#else
      key0 = PICK(fresh && up, right, key0), key1 = PICK(fresh && low, NEG(left), key1);
#endif
    }
    offer(&lists[0], quota, key0, i, indices);
    if (SIDES == 2) offer(&lists[SIDES - 1], quota, key1, i, indices);
  }
  tell(s, 0, values, indices, numbers, places);
  for (int side = 0; side < SIDES; ++side) {
    sort(&lists[side], quota);
    const size_t to = (((size_t)p * pieces + piece) * SIDES + side) * quota;
    for (int k = lid; k < quota; k += WG) keys[to + k] = key[side][k], rows[to + k] = row[side][k];
  }
}

// One work-group a problem; ws[p][stay + side quota ...] = the chosen rows, of which each list held ``listed``.
kernel OF_GROUP void choose(const int n, const int pieces, const int listed, global const wide *restrict f,
                     global const wide *restrict b, global const wide *restrict lo, global const wide *restrict hi,
                     global const wide *restrict kink, global uchar *restrict in_set,
                     global const wide *restrict numbers, global const int *restrict places,
                     global const wide *restrict keys, global const int *restrict rows, const int quota, const int stay,
                     const int W, global int *restrict ws) {
  const int p = get_group_id(0), lid = get_local_id(0);
  const size_t base = (size_t)p * n;
  local wide key[SORT], values[2 * ROOM];
  local int row[SORT], scratch[SCAN], indices[2 * ROOM];
  const size_t seen = (size_t)p * pieces;
  Extremes e;
  combine(&e, pieces, 0, numbers + seen * NUMBERS, places + seen * PLACES, values, indices);
  for (int side = 0; side < SIDES; ++side) {
    List list = {key, row, 0, WIDE_MAX};
    for (int c0 = 0; c0 < pieces * listed; c0 += WG) {
      const int c = c0 + lid;
      const size_t from = (((size_t)p * pieces + c / listed) * SIDES + side) * listed + c % listed;
      const int i = c < pieces * listed ? rows[from] : INT_MAX;
      bool wanted = i < INT_MAX;
      wide value = WIDE_MAX;
      if (wanted) {
        value = keys[from];
#ifndef NO_BIAS
        const wide fi = f[base + i], bi = b[base + i];
        const wide rise = wide_sub(e.M, right_of(fi, bi, kink[0])), fall = wide_sub(left_of(fi, bi, kink[0]), e.m);
        const bool both = wide_less(bi, hi[base + i]) && wide_less(lo[base + i], bi), fell = wide_less(rise, fall);
        wanted = wide_less(wide_of(0), side ? fall : rise) && (!both || fell == (side == 1));
#endif
      }
      add(&list, quota, wide_pick(wanted, value, WIDE_MAX), i, scratch);
    }
    sort(&list, quota);
    for (int k = lid; k < list.count; k += WG) ws[(size_t)p * W + stay + side * quota + k] = row[k], in_set[base + row[k]] = 1;
    SYNC
  }
}
