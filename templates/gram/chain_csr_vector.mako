<%doc>Continue the inner products of a CSR row with the UB right-hand rows of a block, in a SIMD kernel:
  sum[v] += data[e] u[indices[e]],  begin <= e < end,  with the V right-hand rows from first + v V on as the lanes of u
An entry whose feature no right-hand row has meets the block's zero line. With DENSE_COLUMNS, few of the other entries
match. If fewer than half of the last RUN entries did (``thin``), the matching entries of the next RUN are listed first,
without unpredictable branches. Blocks of one vector skip this, since adding then costs less than listing.
Element-wise kernel functions also sum e(0, u[j]) over the row's entries in ``seen``, which gram_csr_vector.mako
subtracts.
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
          const int here = place[indices[at + e]] - mark;
          lines[met] = here;
          values[met] = data[at + e];
          met += here > 0;
        }
        for (int e = 0; e < met; ++e) {
${add("lines[e]", "values[e]")}
        }
      } else {
        for (int e = 0; e < length; ++e) {
          const int here = max(place[indices[at + e]] - mark, 0);
          met += here > 0;
${add("here", "data[at + e]")}
        }
      }
      thin = 2 * met < length;
    }
#else
    for (long e = begin; e < end; ++e) {
${add("max(place[indices[e]] - mark, 0)", "data[e]")}
#ifdef ELEMENTWISE
#pragma unroll
      for (int v = 0; v < UB / V; ++v) seen[v] = ADD_TERM(seen[v], (realv)(real)0, loadv(v, line));
#endif
    }
#endif
