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
