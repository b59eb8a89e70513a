// ${kernel.name or "expression"}: K(x, y) = ${kernel.formula}
// Arguments of the function, which the host computes from the kernel's parameters:
// ${", ".join(a.name for a in kernel.arguments) or "none"}
#define KERNEL_PARAMETERS ${"".join(f", const {a.type} {a.name}" for a in kernel.arguments)}
#define KERNEL_ARGUMENTS ${"".join(f", {a.name}" for a in kernel.arguments)}

inline kv ipow(kv x, int n) {  // x to the power n, with the operations of expression._whole_power
  kv r = (kv)(real)1;
  for (uint left = abs(n); left > 0; left >>= 1, x *= x)
    if (left & 1) r *= x;
  return n < 0 ? (kv)(real)1 / r : r;
}

// Return e^x with an error of at most 1.1 ulp. Return 0 for x < LEAST, which is near the logarithm of the smallest
// normal number.
//   x = n * ln 2 + r with an integer n,   e^x = 2^n * e^r,   e^r = 1 + r + r^2 * q(r)
// The coefficients of the polynomial q minimise the largest error on |r| <= (ln 2) / 2. MANTISSA is the number of bits
// after the binary point of a number's significand. So n is in the last bits of the sum x / ln 2 + 1.5 * 2^MANTISSA
// after rounding. These bits are added to the exponent of e^r.
#ifdef SIMD
#ifdef REAL64
#define MANTISSA 52
#define LEAST -708.0
#define MOST 709.78
#define BITS CAT(as_long, V)
#define NUMBERS CAT(as_double, V)
#else
#define MANTISSA 23
#define LEAST -87.0f
#define MOST 88.72f
#define BITS CAT(as_int, V)
#define NUMBERS CAT(as_float, V)
#endif
inline kv exponential(kv x) {
  const kv middle = (kv)(real)(3L << (MANTISSA - 1)), t = fma(x, (kv)NUMBER(1.4426950408889634), middle), n = t - middle;
  const kv r = fma(n, (kv)NUMBER(-1.4286068203094173e-06), fma(n, (kv)NUMBER(-0.693145751953125), x));
#ifdef REAL64
  kv q = (kv)2.5100375832561234e-08;
  q = fma(q, r, (kv)2.7620075879983367e-07);
  q = fma(q, r, (kv)2.7557268480310024e-06);
  q = fma(q, r, (kv)2.4801521322368692e-05);
  q = fma(q, r, (kv)0.00019841269863040545);
  q = fma(q, r, (kv)0.0013888888917196719);
  q = fma(q, r, (kv)0.008333333333330065);
  q = fma(q, r, (kv)0.041666666666624164);
  q = fma(q, r, (kv)0.16666666666666669);
  q = fma(q, r, (kv)0.5000000000000001);
#else
  kv q = (kv)0.00138145406f;
  q = fma(q, r, (kv)0.00836874545f);
  q = fma(q, r, (kv)0.041668389f);
  q = fma(q, r, (kv)0.166665211f);
  q = fma(q, r, (kv)0.49999994f);
#endif
  const kv p = fma(q, r * r, r) + NUMBER(1.0);
  const kv y = NUMBERS(BITS(p) + (BITS(t) << MANTISSA));
  // Return 0 for x < LEAST, infinity for x > MOST, and NaN for NaN.
  return select(select(y, (kv)NUMBER(0.0), isless(x, (kv)LEAST)), x + INFINITY, !islessequal(x, (kv)MOST));
}
#else
#define exponential exp
#endif

inline kv power(kv x, kv y) {
#if defined(SIMD) && defined(REAL64)  // PoCL 3.1's pow of eight doubles is wrong in lanes beside a 0, infinity or NaN
  return (kv)(pow(x.lo, y.lo), pow(x.hi, y.hi));
#else
  return pow(x, y);
#endif
}

<%def name="function_body(expression, prefix)">
<% statements, value = expression.opencl(prefix) %>\
% for statement in statements:
  ${statement}
% endfor
  return ${value};
</%def>\
% if kernel.element:
#define ELEMENTWISE
// Return the term e(x, y) of one feature. The kernel function depends on s, the sum of the terms over all features.
inline kv element(const kv x, const kv y KERNEL_PARAMETERS) {${function_body(kernel.element, "e")}}
#define ADD_TERM(sum, x, y) ((sum) + element(x, y KERNEL_ARGUMENTS))

inline kv kernel_value(const kv s, const kv xx, const kv yy KERNEL_PARAMETERS) {${function_body(kernel.expression, "f")}}
% else:
#ifdef BIT_ROWS
// Define the inner product of two rows x and y whose features are 0 or 1, stored as bits. It is the number of features
// that are 1 in both rows.
// ADD_TERM(sum, x, y) takes a word of x and a word of y. It counts the bits that are 1 in both words, and adds the
// count to ``sum``. The variable ``sum`` has a floating-point type, but holds the bits of an integer.
// INNER_PRODUCT(sum) converts the integer in ``sum`` to a floating-point number.
#ifdef SIMD
#define AS_WORD BITS
#define AS_REAL NUMBERS
#define TO_REAL CAT(CAT(convert_, REAL), V)
#else
#ifdef REAL64
#define AS_WORD as_long
#else
#define AS_WORD as_int
#endif
#define AS_REAL CAT(as_, REAL)
#define TO_REAL (real)
#endif
#define ADD_TERM(sum, x, y) AS_REAL(AS_WORD(sum) + popcount(AS_WORD(x) & AS_WORD(y)))
#define INNER_PRODUCT(sum) TO_REAL(AS_WORD(sum))
#else
#define ADD_TERM(sum, x, y) fma(x, y, sum)
#define INNER_PRODUCT(sum) (sum)
#endif

inline kv kernel_value(const kv sum, const kv xx, const kv yy KERNEL_PARAMETERS) {
  const kv dot = INNER_PRODUCT(sum);
% if "sqdist" in kernel.expression.names:
  // Rounding can make the squared distance negative. It is then set to 0.
  const kv sqdist = fmax(xx + yy - (real)2 * dot, (kv)(real)0);
% endif
${function_body(kernel.expression, "f")}}
% endif
