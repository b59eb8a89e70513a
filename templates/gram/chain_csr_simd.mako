<%doc>Continue the inner products of CSR row x with UB right-hand rows u of a product K(X, U), in a SIMD kernel:
  sum[v] += data[e] * u[indices[e]],   over the entries begin <= e < end of the row
The lanes of sum[v] are the V right-hand rows u from first + v * V on.
The UB right-hand rows form a block in memory. It has a line of UB numbers for each feature that one of these rows has.
Line 0 is zero, and serves all other features.
With DENSE_COLUMNS, most entries meet line 0 and add nothing. So the kernel takes RUN entries at a time. If fewer than
half of the last RUN entries had a line other than 0, it first lists the next RUN entries with such a line, without
unpredictable branches. Then it adds only the listed entries.
Element-wise kernel functions have terms e(x[j], u[j]) in place of products. They also need ``zero_terms``, the sum of
e(0, u[j]) over the features j of the row's entries, which gram_csr_simd.mako subtracts.
</%doc>
<%def name="add(at, value)">
      global const real *restrict line = block + (size_t)${at} * UB;
      const realv x = (realv)${value};
#pragma unroll
      for (int v = 0; v < UB / V; ++v) sum[v] = ADD_TERM(sum[v], x, loadv(v, line));
</%def>
#if defined(DENSE_COLUMNS) && !defined(ELEMENTWISE) && UB > V
    for (long at = begin; at < end; at += RUN) {
      const int length = (int)min((long)RUN, end - at);
      int met = 0;
      if (thin) {
        int lines[RUN];
        real values[RUN];
        for (int e = 0; e < length; ++e) {
          const int line_number = line_of[indices[at + e]] - mark;
          lines[met] = line_number;
          values[met] = data[at + e];
          met += line_number > 0;
        }
        for (int e = 0; e < met; ++e) {
${add("lines[e]", "values[e]")}
        }
      } else {
        for (int e = 0; e < length; ++e) {
          const int line_number = max(line_of[indices[at + e]] - mark, 0);
          met += line_number > 0;
${add("line_number", "data[at + e]")}
        }
      }
      thin = 2 * met < length;
    }
#else
    for (long e = begin; e < end; ++e) {
${add("max(line_of[indices[e]] - mark, 0)", "data[e]")}
#ifdef ELEMENTWISE
#pragma unroll
      for (int v = 0; v < UB / V; ++v) zero_terms[v] = ADD_TERM(zero_terms[v], (realv)(real)0, loadv(v, line));
#endif
    }
#endif
