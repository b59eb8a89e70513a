    // k[u] holds <x_row.., u0 + u>: apply f, then store and update
#pragma unroll
    for (int u = 0; u < V; ++u) k[u] = kernel_value(k[u], x2, (realv)uu[u0 + u] KERNEL_ARGUMENTS);
#ifdef STORE
#pragma unroll
    for (int u = 0; u < V; ++u)
      if (u0 + u < total) {
        const int s = slot[u0 + u];
        storev(k[u], 0, STORED_ROW(s) + row);
      }
#endif
#ifdef UPDATE
    for (int p = 0; p < problems; ++p) {
      global wide *restrict cp = c + (size_t)p * n + row;
      global const wide *restrict Dp = D + (size_t)p * capacity + u0;
      widev sum = loadv(0, cp);
#pragma unroll
      for (int u = 0; u < V; ++u) sum = fma(to_widev(k[u]), (widev)Dp[u], sum);
      storev(sum, 0, cp);
    }
#endif
