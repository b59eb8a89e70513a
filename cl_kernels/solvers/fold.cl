// Define vectors of DW kernel values and their reductions, for the SIMD-style solvers of working sets.
#ifdef REAL64
#define DW 8
typedef long8 ivec;
#define INDEX_TYPE long
#else
#define DW 16
typedef int16 ivec;
#define INDEX_TYPE int
#endif
typedef CAT(REAL, DW) rvec;
#define load CAT(vload, DW)
#define store CAT(vstore, DW)

// Set ``out`` to the reduction of all lanes of v by the function OP, such as max. Each step combines the first half of
// the vector with the second half.
// The first step reads both halves from an array, because Oclgrind reports halves of a vector of 16 as uninitialised.
#define FOLD(type, OP, v, out)                                     \
  {                                                                \
    type lane[16];                                                 \
    store(v, 0, lane);                                             \
    const CAT(type, 8) v8 = OP(vload8(0, lane), vload8(DW / 8 - 1, lane)); \
    const CAT(type, 4) v4 = OP(v8.lo, v8.hi);                      \
    const CAT(type, 2) v2 = OP(v4.lo, v4.hi);                      \
    out = OP(v2.x, v2.y);                                          \
  }

// Return the first index of ``value`` in an array. ``value`` is the minimum or the maximum of the array.
// The array was read in vectors of DW values: lane z of vector k is entry k * DW + z of the array.
// In:
//   v        v[z] is the minimum or the maximum of lane z over all vectors
//   at       at[z] is the number k of the first vector whose lane z has the value v[z]
//   lanes    lanes[z] = z
inline int first_index(const rvec v, const real value, const ivec at, const ivec lanes) {
  const ivec index = select((ivec)(INT_MAX), at * DW + lanes, isequal(v, (rvec)value));
  INDEX_TYPE least;
  FOLD(INDEX_TYPE, min, index, least)
  return (int)least;
}
