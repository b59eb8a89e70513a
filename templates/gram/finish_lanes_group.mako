<%doc>k[i][q] holds <x, u> or s for the rows tx RX + i and the working vectors u0 + ty RY + q: f, then store and update.</%doc>
#pragma unroll
    for (int i = 0; i < RX; ++i) {
      const real x2 = xx[row + tx * RX + i];
#pragma unroll
      for (int q = 0; q < RY; ++q) {  // (beyond the last working vector f may be no number)
        const int u = u0 + ty * RY + q;
        k[i][q] = u < total ? kernel_value(k[i][q], x2, uu[u] KERNEL_ARGUMENTS) : (real)0;
      }
    }
#ifdef STORE
#pragma unroll
    for (int q = 0; q < RY; ++q) {
      const int u = u0 + ty * RY + q;
      if (u < total) {
        const int s = slot[u];
        global real *to = STORED_ROW(s) + out;
#pragma unroll
        for (int i = 0; i < RX; ++i) to[tx * RX + i] = KEPT(to[tx * RX + i], k[i][q]);
      }
    }
#endif
#ifdef UPDATE
    for (int p = 0; p < problems; ++p) {
      global const wide *restrict Dp = D + (size_t)p * capacity + u0;
#pragma unroll
      for (int i = 0; i < RX; ++i) {
        wide sum = wide_of(0);
#pragma unroll
        for (int q = 0; q < RY; ++q) sum = wide_add(sum, wide_mul(wide_of(k[i][q]), Dp[ty * RY + q]));
        partial[ty * V + tx * RX + i] = sum;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (uint lane = lid; lane < V; lane += NX * NY) {
        wide sum = c[(size_t)p * n + out + lane];
        for (int y = 0; y < NY; ++y) sum = wide_add(sum, partial[y * V + lane]);
        c[(size_t)p * n + out + lane] = sum;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
