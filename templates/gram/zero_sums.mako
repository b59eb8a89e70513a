<%include file="kernel_function.mako"/>
// Compute zero[i] = sum_j e(0, x_i[j]) over all d columns j, where x_i is a CSR row and e is the term of an
// element-wise kernel function. First the terms of the row's entries are added, in the order of the columns. Each other
// column adds e(0, 0).
// Work-items: one for each row i.
kernel EXPLICIT void zero_sums(global const long *restrict indptr, global const real *restrict data, const int d,
                               global real *restrict zero KERNEL_PARAMETERS) {
  const size_t i = get_global_id(0);
  const kv none = (kv)(real)0;
  kv sum = none;
  for (long e = indptr[i]; e < indptr[i + 1]; ++e) sum = ADD_TERM(sum, none, (kv)data[e]);
  sum += (kv)(real)(d - (int)(indptr[i + 1] - indptr[i])) * ADD_TERM(none, none, none);
#ifdef SIMD
  zero[i] = sum.s0;
#else
  zero[i] = sum;
#endif
}
