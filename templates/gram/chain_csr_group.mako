<%doc>The inner product of a CSR row in the group shape: sum goes on from what it holds, entry by entry,
    sum += data[e] u[indices[e]],  begin <= e < end,  u the work-item's vector of a block
UB entries at a time stand in local memory, from begin on as many as the longest row of the teams has. Element-wise,
``seen`` gathers the part of the working vector's zero sum that the row's own entries stand for.</%doc>
#pragma unroll 1
      for (long done = 0; done < longest; done += UB) {
        const long e = begin + done + lane;
        if (e < end) lines[lid] = max(place[indices[e]] - mark, 0), numbers[lid] = data[e];
        barrier(CLK_LOCAL_MEM_FENCE);
        const int staged = (int)min(end - begin - done, (long)UB);
#pragma unroll 4
        for (int k = 0; k < staged; ++k) {
          const real u = block[(size_t)lines[team * UB + k] * UB];
          sum = ADD_TERM(sum, numbers[team * UB + k], u);
#ifdef ELEMENTWISE
          seen = ADD_TERM(seen, (real)0, u);
#endif
        }
        barrier(CLK_LOCAL_MEM_FENCE);
      }
