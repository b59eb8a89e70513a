// ${kernel.name or "expression"}: K(x, y) = ${kernel.formula}
// The numbers ${", ".join(a.name for a in kernel.arguments) or "(none)"} are what of it the parameters alone decide, computed by the host.
#define KERNEL_PARAMETERS ${"".join(f", const {a.type} {a.name}" for a in kernel.arguments)}
#define KERNEL_ARGUMENTS ${"".join(f", {a.name}" for a in kernel.arguments)}

inline kv ipow(kv x, int n) {  // as expression._whole_power
  kv r = (kv)(real)1;
  for (uint left = abs(n); left > 0; left >>= 1, x *= x)
    if (left & 1) r *= x;
  return n < 0 ? (kv)(real)1 / r : r;
}

// e^x to 0.75 ulp, 0 below -87 (runtimes take three times as long): x = n ln 2 + r, e^r = 1 + r + r^2 q(r), q of least
// largest error on |r| <= ln 2 / 2; 2^n in two factors, so that all exponents pass
#if defined(VECTOR) && !defined(REAL64)
inline kv exponential(kv x) {
  const kv n = rint(x * 1.44269504f);
  const kv r = fma(n, (kv)2.12194440e-4f, fma(n, (kv)-0.693359375f, x));
  kv q = (kv)0.00138145406f;
  q = fma(q, r, (kv)0.00836874545f);
  q = fma(q, r, (kv)0.041668389f);
  q = fma(q, r, (kv)0.166665211f);
  q = fma(q, r, (kv)0.49999994f);
  const kv p = fma(q, r * r, r) + 1.0f;
  const CAT(int, V) bits = (CAT(convert_int, V)(min(n, (kv)129.0f)) + 126) << 23;
  const kv y = p * CAT(as_float, V)(bits) * 2.0f;
  return select(select(y, (kv)0.0f, isless(x, (kv)-87.0f)), (kv)INFINITY, isgreater(x, (kv)88.8f));
}
#else
#define exponential exp
#endif

inline kv power(kv x, kv y) {
#if defined(VECTOR) && defined(REAL64)  // PoCL 3.1's pow of eight doubles is wrong beside a lane of 0, infinity or NaN
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
// one term of s
inline kv element(const kv x, const kv y KERNEL_PARAMETERS) {${function_body(kernel.element, "e")}}
#define ADD_TERM(sum, x, y) ((sum) + element(x, y KERNEL_ARGUMENTS))

inline kv kernel_value(const kv s, const kv xx, const kv yy KERNEL_PARAMETERS) {${function_body(kernel.expression, "f")}}
% else:
#define ADD_TERM(sum, x, y) fma(x, y, sum)

inline kv kernel_value(const kv dot, const kv xx, const kv yy KERNEL_PARAMETERS) {
% if "sqdist" in kernel.expression.names:
  const kv sqdist = fmax(xx + yy - (real)2 * dot, (kv)(real)0);  // the one place that clamps it
% endif
${function_body(kernel.expression, "f")}}
% endif
