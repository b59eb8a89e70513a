<%doc>The inner product of a CSR row in the vector shape: sum[v] goes on from what it holds, entry by entry,
    sum[v] += data[e] u[indices[e]],  begin <= e < end,  u the vectors first + v V .. of a block
An entry that meets none of the block adds nothing. Where some columns are whole (DENSE_COLUMNS), few of the other entries
meet one: as long as fewer than half of those before did (``thin``), those that do are listed first, RUN entries at a
time, without a branch that could not be foreseen (in a block of several vectors: to add one takes less than to list it).
Element-wise, ``seen`` gathers the part of the working vectors' zero sums that the row's own entries stand for.</%doc>
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
