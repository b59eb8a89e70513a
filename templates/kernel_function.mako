// ${kernel.name}: K(x, y) = ${kernel.expression.text}
#define KERNEL_PARAMETERS ${"".join(f", const {'int' if p.integer else 'real'} p_{p.name}" for p in kernel.parameters)}
#define KERNEL_ARGUMENTS ${"".join(f", p_{p.name}" for p in kernel.parameters)}

inline kv ipow(kv x, int n) {
  kv r = (kv)(real)1;
  for (; n > 0; n >>= 1, x *= x)
    if (n & 1) r *= x;
  return r;
}

inline kv kernel_value(const kv dot, const kv xx, const kv yy KERNEL_PARAMETERS) {
% if "sqdist" in kernel.expression.names:
  const kv sqdist = fmax(xx + yy - (real)2 * dot, (kv)(real)0);  // the one place that clamps it
% endif
  return ${kernel.expression.opencl()};
}
