<%doc>tile[r][u] holds <x, u> or s for the work-item's row r0 + r and ``here`` working vectors: f, then store and update.</%doc>
#pragma unroll 1
      for (int u = 0; u < here; ++u) {
        const real k = kernel_value(tile[r * (UB + 1) + u], x2, uu[u0 + u] KERNEL_ARGUMENTS);
        tile[r * (UB + 1) + u] = k;
#ifdef STORE
        const int s = slot[u0 + u];
        STORED_ROW(s)[out + r0 + r] = k;
#endif
      }
#ifdef UPDATE
      for (int p = 0; p < problems; ++p) {
        wide sum = c[(size_t)p * n + out + r0 + r];
#pragma unroll 1
        for (int u = 0; u < here; ++u)
          sum = wide_add(sum, wide_mul(wide_of(tile[r * (UB + 1) + u]), D[(size_t)p * capacity + u0 + u]));
        c[(size_t)p * n + out + r0 + r] = sum;
      }
#endif
