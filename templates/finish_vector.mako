    // k[u] holds <x_row.., u0 + u> or s for COLUMNS working vectors: apply f, then store and update. Beyond the last
    // working vector stands 0: f of an empty one may be no number, and would make the sums none
#pragma unroll
    for (int u = 0; u < COLUMNS; ++u)
      k[u] = u0 + u < total ? kernel_value(k[u], x2, (realv)uu[u0 + u] KERNEL_ARGUMENTS) : (realv)(real)0;
#ifdef STORE
#pragma unroll
    for (int u = 0; u < COLUMNS; ++u)
      if (u0 + u < total) {
        const int s = slot[u0 + u];
        storev(k[u], 0, STORED_ROW(s) + to);
      }
#endif
#ifdef UPDATE
    for (int p = 0; p < problems; ++p) {
      global wide *restrict cp = c + (size_t)p * n + to;
      global const wide *restrict Dp = D + (size_t)p * capacity + u0;
      widev sum = loadv(0, cp);
#pragma unroll
      for (int u = 0; u < COLUMNS; ++u) sum = fma(to_widev(k[u]), (widev)Dp[u], sum);
      storev(sum, 0, cp);
    }
#endif
