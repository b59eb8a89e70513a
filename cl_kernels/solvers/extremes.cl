// Compute the extreme gradients m and M of a dual problem, and sums from which the host gets the objectives and the
// offset of the decision function. The host reads the results at each convergence check.
// Row i of n rows has the signed coefficient b_i with bounds lo_i <= b_i <= hi_i. f_i is the derivative of the dual
// objective by b_i, without the term epsilon * |b_i| of epsilon-SVR. With this term, the derivatives to the right and
// to the left of b_i are
//   right_i = f_i - epsilon if b_i < 0, else f_i + epsilon
//   left_i = f_i + epsilon if b_i > 0, else f_i - epsilon
// The extreme gradients are
//   m = smallest right_i of the rows whose coefficients can rise (b_i < hi_i)
//   M = largest left_i of the rows whose coefficients can fall (b_i > lo_i)
// The violation of the problem is M - m. A row is free if its coefficient can rise and fall, and right_i = left_i.
// In:
//   f, b, lo, hi    (n,), as above
//   epsilon         epsilon of epsilon-SVR, and 0 in other problems
//   q, rho          only for the kernel ``objective``: the linear term (n,) of the dual objective, and the offset
// Out, for each chunk of ``chunk`` rows:
//   numbers    by the kernel ``extremes``: m, M, and the sum of right_i over the free rows
//   places     by the kernel ``extremes``: the row that has m, the row that has M, and the number of free rows
//   sums       by the kernel ``objective``: three sums, from which the host gets the primal and the dual objective
// Work-items: one work-group for each chunk. ``chunk`` is a multiple of 8.
// SPLIT (nu-SVC, nu-SVR): rows with hi > 0 and rows with lo < 0 are two groups, and the sum of b over each group is
// fixed. Each group has its own m, M and offset.
// NO_BIAS: the decision function has no offset. The violation of the problem is the larger of -m and M.
#define NUMBERS 4  // wide numbers of a chunk: m, M, sum of right_i over free rows, unused
#define PLACES 4   // ints of a chunk: row of m, row of M, number of free rows, unused
#ifdef SPLIT
#define GROUPS 2  // a chunk has NUMBERS and PLACES of one group, and then of the other
#else
#define GROUPS 1
#endif

#if WG > 1
// Return the sum of ``value`` over all items of a work-group, to every item. Values are doubles or pairs of floats.
// The first SEGMENTS items (1 or 16) each add WG / SEGMENTS of the values. Then every item adds these SEGMENTS sums.
// ``values`` is local memory for WG + SEGMENTS numbers.
INLINED wide group_sum(wide value, local wide *values) {
  const int lid = get_local_id(0);
  values[lid] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lid < SEGMENTS) {
    wide part = values[lid];
    for (int k = lid + SEGMENTS; k < WG; k += SEGMENTS) part = wide_add(part, values[k]);
    values[WG + lid] = part;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  wide sum = values[WG];
  for (int k = 1; k < SEGMENTS; ++k) sum = wide_add(sum, values[WG + k]);
  barrier(CLK_LOCAL_MEM_FENCE);
  return sum;
}
#else
#define ENTRIES_EACH 1
inline void wide_argmin_2(wide *m, int *im, wide *M, int *iM, local wide *values, local int *indices) {}
inline wide group_sum(wide value, local wide *values) { return value; }
#endif

// Define operations on AT_ONCE rows at a time: on 8 rows as a vector in SIMD style with doubles, otherwise on one row.
#if defined(SIMD) && !defined(WIDE_PAIR)
#define AT_ONCE 8
typedef double8 some;
typedef long8 which;
#define LOAD(from, i) vload8(0, (from) + (i))
#define LESS(a, b) isless(a, b)
#define PICK(c, a, b) select(b, a, c)
#define ONE_EACH(c) (-(c))
#define ADD(a, b) ((a) + (b))
#define NEG(a) (-(a))
#else
#define AT_ONCE 1
typedef wide some;
typedef int which;
#define LOAD(from, i) (from)[i]
#define LESS(a, b) wide_less(a, b)
#define PICK(c, a, b) wide_pick(c, a, b)
#define ONE_EACH(c) (c)
#define ADD(a, b) wide_add(a, b)
#define NEG(a) wide_neg(a)
#endif

// Hold the results of one work-item for the rows that it has read. The work-item reads AT_ONCE consecutive rows at a
// time, the rows i, i + 1, ..., i + AT_ONCE - 1. It does so for several start rows i. Each member of the struct is a
// vector of AT_ONCE components. Component k of a vector (k = 0, 1, ...) is the result over the rows i + k for all start
// rows i of the work-item.
// ``right`` and ``left`` are the derivatives of the dual objective to the right and to the left of a row's coefficient.
//   m       the smallest ``right`` of the rows whose coefficient can rise
//   im      the start row i for which m was found. Component k of m belongs to row i + k.
//   M       the smallest value of -left of the rows whose coefficient can fall
//   iM      the start row i for which M was found. Component k of M belongs to row i + k.
//   free    the number of free rows. The coefficient of a free row can rise and fall, and ``right`` equals ``left``.
//   sum     the sum of ``right`` over the free rows
typedef struct {
  some m, M, sum;
  which im, iM, free;
} Partial;

inline Partial no_rows(void) {
  const Partial s = {(some)WIDE_MAX, (some)WIDE_MAX, (some)wide_of(0), (which)INT_MAX, (which)INT_MAX, (which)0};
  return s;
}

#define RIGHT(f, b, epsilon) PICK(LESS(b, (some)wide_of(0)), ADD(f, NEG(epsilon)), ADD(f, epsilon))
#define LEFT(f, b, epsilon) PICK(LESS((some)wide_of(0), b), ADD(f, epsilon), ADD(f, NEG(epsilon)))

// Update the results of a work-item by AT_ONCE more rows. The rows are consecutive. The vectors ``right``, ``left``,
// ``up`` and ``low`` have one component for each row.
// In:
//   i        the number of the first row
//   right    the derivative of the dual objective by a row's coefficient, if the coefficient rises
//   left     the derivative of the dual objective by a row's coefficient, if the coefficient falls
//   up       whether a row's coefficient can rise
//   low      whether a row's coefficient can fall
// In and out:
//   s    the results (type Partial) over all rows that the work-item has read:
//          the smallest ``right`` of the rows whose coefficient can rise
//          the largest ``left`` of the rows whose coefficient can fall, with the opposite sign
//          the number of free rows, and the sum of ``right`` over the free rows
//        A row is free if its coefficient can rise and fall, and its ``right`` equals its ``left``.
inline void add_rows(Partial *s, const int i, const some right, const some left, const which up, const which low) {
  const some a = PICK(up, right, (some)WIDE_MAX), c = PICK(low, NEG(left), (some)WIDE_MAX);
  const which first = LESS(a, s->m), second = LESS(c, s->M), both = up && low && !LESS(left, right);
  s->m = PICK(first, a, s->m), s->im = first ? (which)i : s->im;
  s->M = PICK(second, c, s->M), s->iM = second ? (which)i : s->iM;
  s->sum = ADD(s->sum, PICK(both, right, (some)wide_of(0))), s->free += ONE_EACH(both);
}

// Find the smallest of AT_ONCE values that a work-item has kept, and the row of this value. The work-item has read one
// value of each of its rows. It has read the values of AT_ONCE consecutive rows at a time, as a vector. It has
// kept the smallest value of each component k = 0, 1, ... of the vectors.
// In:
//   v    v[k] is the smallest value that component k had
//   i    i[k] is the first row of the vector from which v[k] was kept. So v[k] is the value of row i[k] + k.
// Out:
//   *value    the smallest v[k]
//   *index    the row of this value. If several v[k] are the smallest, it is the first of their rows.
inline void reduce_lanes(const some v, const which i, wide *value, int *index) {
#if AT_ONCE == 1
  *value = v, *index = i;
#else
  double values[AT_ONCE];
  long indices[AT_ONCE];
  vstore8(v, 0, values), vstore8(i, 0, indices);
  *value = WIDE_MAX, *index = INT_MAX;
  for (int k = 0; k < AT_ONCE; ++k) {
    const int at = (int)indices[k] + k;
    if (values[k] < *value || (values[k] == *value && values[k] < WIDE_MAX && at < *index)) *value = values[k], *index = at;
  }
#endif
}

// Combine the results of all work-items of a work-group, and write the combined results. Each work-item has read some
// rows of the work-group's chunk of rows.
// A row has two derivatives of the dual objective by its coefficient: to the right for a coefficient that rises, and to
// the left for one that falls. They differ only in epsilon-SVR, for a coefficient of 0.
// In:
//   g    number of a group of rows. The rows of nu-SVC and nu-SVR are in two groups, 0 and 1, and the coefficients of
//        each group have a fixed sum. All rows of other problems are in group 0.
//   s    the results of this work-item for its rows of group g (type Partial)
// Out, for the rows of group g in the chunk:
//   numbers    m, M, and a sum. m is the smallest derivative to the right of the rows whose coefficient can rise. M is
//              the largest derivative to the left of the rows whose coefficient can fall. The sum adds the derivatives
//              of the free rows. A row is free if its coefficient can rise and fall, and its derivatives are equal.
//   places     the row that has m, the row that has M, and the number of free rows
// ``values`` and ``indices`` are local memory.
inline void __attribute__((always_inline)) write_partial(const Partial s, const int g, local wide *values, local int *indices,
                                                global wide *numbers, global int *places) {
  const size_t piece = (size_t)get_group_id(0) * GROUPS + g;
  wide m, M, sum;
  int im, iM, free;
  reduce_lanes(s.m, s.im, &m, &im);
  reduce_lanes(s.M, s.iM, &M, &iM);
#if AT_ONCE == 1
  sum = s.sum, free = s.free;
#else
  const double4 four = s.sum.lo + s.sum.hi;
  const long4 four_free = s.free.lo + s.free.hi;
  sum = four.x + four.y + (four.z + four.w), free = (int)(four_free.x + four_free.y + four_free.z + four_free.w);
#endif
  wide_argmin_2(&m, &im, &M, &iM, values, indices);
  sum = group_sum(sum, values);
  int total;
  group_scan(free, indices, &total);
  if (get_local_id(0) == 0) {
    global wide *to = numbers + piece * NUMBERS;
    global int *at = places + piece * PLACES;
    to[0] = m, to[1] = wide_neg(M), to[2] = sum;
    at[0] = im, at[1] = iM, at[2] = total;
  }
}

kernel OF_GROUP void extremes(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                     global const wide *restrict lo, global const wide *restrict hi, global const wide *restrict epsilon,
                     global wide *restrict numbers, global int *restrict places) {
  const int begin = get_group_id(0) * chunk, end = min(n, begin + chunk);
  local wide values[2 * ENTRIES_EACH];
  local int indices[2 * ENTRIES_EACH];
  Partial s[GROUPS];
  for (int g = 0; g < GROUPS; ++g) s[g] = no_rows();
  for (int i = begin + get_local_id(0) * AT_ONCE; i < end; i += WG * AT_ONCE) {
    const some fi = LOAD(f, i), bi = LOAD(b, i), k = (some)epsilon[0], bottom = LOAD(lo, i), top = LOAD(hi, i);
    const which up = LESS(bi, top), low = LESS(bottom, bi);
#ifdef SPLIT
    const which mine[2] = {LESS((some)wide_of(0), top), LESS(bottom, (some)wide_of(0))};
#else
    const which mine[1] = {up || low};
#endif
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) add_rows(&s[g], i, RIGHT(fi, bi, k), LEFT(fi, bi, k), up && mine[g], low && mine[g]);
  }
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) write_partial(s[g], g, values, indices, numbers, places);
}

// Hold the extreme gradients m and M of a group of rows, and the rows im and iM that have them.
typedef struct {
  wide m, M;
  int im, iM;
} Extremes;

// Find the extreme gradients m and M of a group of rows, and the rows that have them. m is the smallest gradient of
// rows whose coefficient can rise. M is the largest gradient of rows whose coefficient can fall.
// In:
//   g                  number of the group. The rows of nu-SVC and nu-SVR are in two groups, 0 and 1. In other
//                      problems, all rows are in group 0.
//   pieces             number of chunks into which the rows are divided
//   numbers            m and M of each group in each chunk, as the kernel ``extremes`` wrote them
//   places             for each group in each chunk, the row that has m and the row that has M, as the kernel
//                      ``extremes`` wrote them
// Out:
//   *found    m and M of group g over all chunks, the row that has m, and the row that has M. Every item of the
//             work-group gets this result.
// Work-items: the items of a work-group divide the chunks among them. ``values`` and ``indices`` are local memory.
INLINED void combine(Extremes *found, const int pieces, const int g, global const wide *numbers,
                     global const int *places, local wide *values, local int *indices) {
  Extremes e = {WIDE_MAX, wide_neg(WIDE_MAX), INT_MAX, INT_MAX};
  for (int k = g + get_local_id(0) * GROUPS; k < pieces * GROUPS; k += WG * GROUPS) {
    if (wide_less(numbers[k * NUMBERS], e.m)) e.m = numbers[k * NUMBERS], e.im = places[k * PLACES];
    if (wide_less(e.M, numbers[k * NUMBERS + 1])) e.M = numbers[k * NUMBERS + 1], e.iM = places[k * PLACES + 1];
  }
#if WG > 1
  e.M = wide_neg(e.M);
  wide_argmin_2(&e.m, &e.im, &e.M, &e.iM, values, indices);
  e.M = wide_neg(e.M);
#endif
  *found = e;
}

// Compute three sums over each chunk of rows. The host adds the sums of all chunks. From the totals it computes the
// primal and the dual objective. The dual problem is to minimise
//   1/2 * b^T K b + q^T b + epsilon * sum |b|,   lo <= b <= hi,   with the kernel matrix K
// If the decision function has an offset, the sum of b is fixed too. With SPLIT, the sum over each group is fixed.
// In:
//   b, lo, hi    (n,), the signed coefficients of the n rows, and their lower and upper bounds
//   q            (n,), the linear term
//   f            (n,), f = K b + q
//   epsilon      epsilon of epsilon-SVR, and 0 in other problems
//   rho          the offset of the decision function. In nu-SVC and nu-SVR (macro SPLIT) there are two offsets: rho[1]
//                for rows with lo < 0, and rho[0] for the other rows. In the formulas, rho is the offset of the row.
// Out:
//   sums    (chunks, 3), the numbers quadratic, linear and loss for each chunk:
//     quadratic = sum b * (f - q),   linear = sum (b * q + epsilon * |b|)
//     loss = sum max(lo * (rho - f + epsilon), hi * (rho - f - epsilon), 0)
// With the sums over all rows, the objectives are
//   dual = -(quadratic / 2 + linear),   primal = quadratic / 2 + loss - sum rho * b
// ``dual`` is the minimised function with the opposite sign. For C-SVC, sum rho * b is 0, and the objectives are
// equations 1 and 2 of Cotter, Srebro and Keshet 2011.
kernel OF_GROUP void objective(const int n, const int chunk, global const wide *restrict f, global const wide *restrict b,
                      global const wide *restrict lo, global const wide *restrict hi,
                      global const wide *restrict epsilon, global const wide *restrict q, global const wide *restrict rho,
                      global wide *restrict sums) {
  const int piece = get_group_id(0);
  local wide values[SCAN];
  wide quadratic = wide_of(0), linear = wide_of(0), loss = wide_of(0);
  const int end = min(n, (piece + 1) * chunk);
  for (int i = piece * chunk + get_local_id(0); i < end; i += WG) {
    const wide bi = b[i], qi = q[i];
    const bool valid = wide_less(lo[i], wide_of(0)) || wide_less(wide_of(0), hi[i]);
    const wide fi = wide_pick(valid, f[i], wide_of(0));  // 0 for padding rows, where f may be NaN
    const int g = GROUPS == 2 && wide_less(lo[i], wide_of(0));
    const wide slack = wide_sub(rho[g], fi);
    quadratic = wide_add(quadratic, wide_mul(bi, wide_sub(fi, qi)));
    linear = wide_add(linear, wide_add(wide_mul(bi, qi), wide_mul(wide_max(bi, wide_neg(bi)), epsilon[0])));
    const wide under = wide_mul(lo[i], wide_add(slack, epsilon[0]));
    const wide over = wide_mul(hi[i], wide_sub(slack, epsilon[0]));
    loss = wide_add(loss, wide_max(wide_max(under, over), wide_of(0)));
  }
  quadratic = group_sum(quadratic, values), linear = group_sum(linear, values);
  loss = group_sum(loss, values);
  if (get_local_id(0) == 0) {
    global wide *to = sums + (size_t)piece * 3;
    to[0] = quadratic, to[1] = linear, to[2] = loss;
  }
}
