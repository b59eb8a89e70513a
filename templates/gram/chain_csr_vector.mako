<%doc>The inner product of a CSR row in the vector shape: sum[v] goes on from what it holds, entry by entry,
    sum[v] += data[e] u[indices[e]],  begin <= e < end,  u the vectors first + v V .. of a block
Element-wise, ``seen`` gathers the part of the working vectors' zero sums that the row's own entries stand for.</%doc>
    for (long e = begin; e < end; ++e) {
      global const real *restrict line = block + (size_t)max(place[indices[e]] - mark, 0) * UB;
      const realv x = (realv)data[e];
#pragma unroll
      for (int v = 0; v < UB / V; ++v) sum[v] = ADD_TERM(sum[v], x, loadv(v, line));
#ifdef ELEMENTWISE
#pragma unroll
      for (int v = 0; v < UB / V; ++v) seen[v] = ADD_TERM(seen[v], (realv)(real)0, loadv(v, line));
#endif
    }
