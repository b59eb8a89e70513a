<%doc>Continue the inner product of a CSR row x with a row y_u of U, for a product K(X, U) in a work-group kernel:
  sum += data[e] * y_u[indices[e]],   over the entries begin <= e < end of x
The kernel that includes this file defines sum, begin and end. A work-item takes one row y_u.
Work-items: a team of UB items takes one row x. Local memory holds UB entries of each team's row at a time. All teams
loop as often as the longest of their rows needs, so that they meet at the same barriers.
Element-wise kernel functions have terms e(x[j], y_u[j]) in place of products. They also need ``zero_terms``, the sum of
e(0, y_u[j]) over the features j of the row's entries. gram_csr_workgroup.mako subtracts this sum.
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
