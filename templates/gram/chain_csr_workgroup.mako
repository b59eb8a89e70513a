<%doc>Continue the inner product of CSR row x with right-hand row u of a product K(X, U), in a work-group kernel:
  sum += data[e] * u[indices[e]],   over the entries begin <= e < end of the row
The kernel that includes this file defines sum, begin and end. A work-item takes one right-hand row u.
Work-items: a team of UB items takes one row. Local memory holds UB entries of each team's row at a time. All teams loop
as often as the longest of their rows needs, so that they meet at the same barriers.
Element-wise kernel functions have terms e(x[j], u[j]) in place of products. They also need ``zero_terms``, the sum of
e(0, u[j]) over the features j of the row's entries, which gram_csr_workgroup.mako subtracts.
</%doc>
#pragma unroll 1
      for (long done = 0; done < longest; done += UB) {
        const long e = begin + done + lane;
        if (e < end) lines[lid] = max(line_of[indices[e]] - mark, 0), numbers[lid] = data[e];
        barrier(CLK_LOCAL_MEM_FENCE);
        const int staged = (int)min(end - begin - done, (long)UB);
#pragma unroll 4
        for (int k = 0; k < staged; ++k) {
          const real u = block[(size_t)lines[team * UB + k] * UB];
          sum = ADD_TERM(sum, numbers[team * UB + k], u);
#ifdef ELEMENTWISE
          zero_terms = ADD_TERM(zero_terms, (real)0, u);
#endif
        }
        barrier(CLK_LOCAL_MEM_FENCE);
      }
