<%doc>Turn the sums value[u] of a SIMD kernel into values of K(X, U). value[u] has the inner products of V rows of X
with row u0 + u of U, for u < valid.
Then store the values, or add their products with factors D to sums c (epilogue.mako).
</%doc>
    // The loops are not unrolled, because the constants of the kernel function would then not fit into registers.
#ifdef STORE
    const bool past = PAST;
#endif
    for (int u = 0; u < valid; ++u) {
      value[u] = kernel_value(value[u], x2, (realv)uu[u0 + u] KERNEL_ARGUMENTS);
#ifdef STORE
      const int s = slot[u0 + u];
      if (past) {
        store_past(value[u], STORED_ROW(s) + to);
      } else {
        storev(COMBINED(loadv(0, STORED_ROW(s) + to), value[u]), 0, STORED_ROW(s) + to);
      }
#endif
    }
#ifdef UPDATE
    for (int p = 0; p < problems; ++p) {
      global wide *restrict cp = c + (size_t)p * n + to;
      global const wide *restrict Dp = D + (size_t)p * capacity + u0;
      widev sum = loadv(0, cp);
      for (int u = 0; u < valid; ++u) sum = fma(to_widev(value[u]), (widev)Dp[u], sum);
      storev(sum, 0, cp);
    }
#endif
