<%doc>Continue the inner product of a CSR row with a right-hand row u, in a work-group kernel:
  sum += data[e] u[indices[e]],  begin <= e < end
The including kernel defines sum, begin, end and u, which is the work-item's column of the panel's block. Local memory
holds UB entries of each team's row at a time; all teams loop as long as the longest row, so that they meet at the same
barriers.
Element-wise kernel functions also sum e(0, u[j]) over the row's entries in ``seen``, which gram_csr_group.mako
subtracts.
</%doc>
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
