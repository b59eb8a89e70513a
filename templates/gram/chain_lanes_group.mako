<%doc>The inner product of a lane group in the group shape: k[i][q] goes on from what it holds, feature by feature,
    k[i][q] += x_(tx RX + i)[j] u_(ty RY + q)[j],  j < length
staged in local memory, DEPTH features at a time, both sides read with consecutive items on consecutive lanes.</%doc>
    for (int j0 = 0; j0 < length; j0 += DEPTH) {
      for (uint e = lid; e < DEPTH * V; e += NX * NY)
        xs[e] = j0 + (int)(e / V) < length ? x[(size_t)j0 * V + e] : (real)0;
      for (uint e = lid; e < DEPTH * COLUMNS; e += NX * NY) {
        const int j = j0 + e / COLUMNS;
        us[e] = j < length ? block[(size_t)COLUMN(j) * UB + e % COLUMNS] : (real)0;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
#ifdef ELEMENTWISE  // e(0, 0) of staged padding may be any number
      const int depth = min(DEPTH, length - j0);
#else
#define depth DEPTH
#endif
#pragma unroll
      for (int z = 0; z < depth; ++z) {
        real a[RX], b[RY];
#pragma unroll
        for (int i = 0; i < RX; ++i) a[i] = xs[z * V + tx * RX + i];
#pragma unroll
        for (int q = 0; q < RY; ++q) b[q] = us[z * COLUMNS + ty * RY + q];
#pragma unroll
        for (int i = 0; i < RX; ++i)
#pragma unroll
          for (int q = 0; q < RY; ++q) k[i][q] = ADD_TERM(k[i][q], a[i], b[q]);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
