<%doc>Continue the inner products of one CSR row x with UB rows y_u of U, for a product K(X, U) in a SIMD kernel:
  sum[v] += data[e] * y_u[indices[e]],   over the entries begin <= e < end of x
The lanes of sum[v] are the V rows y_u with u = first + v * V, first + v * V + 1, ...
The UB rows y_u are stored as a block of lines. A line has the UB values of one feature, for each feature that one of
these rows has. All other features use line 0, which is zero.
With DENSE_COLUMNS, most entries of x meet line 0 and add nothing. So the kernel takes RUN entries at a time, in one of
two ways. It can list the entries with a line other than 0, without unpredictable branches, and then add only the listed
entries. It does this if fewer than half of the last RUN entries had such a line. Otherwise it adds all entries.
Element-wise kernel functions have terms e(x[j], y_u[j]) in place of products. They also need ``zero_terms``, the sum of
e(0, y_u[j]) over the features j of the row's entries. gram_csr_simd.mako subtracts this sum.
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
