<%doc>The inner product of a CSR row in the group shape: sum goes on from what it holds, entry by entry,
    sum += data[e] u[indices[e]],  begin <= e < end,  u the work-item's vector of a block
Element-wise, ``seen`` gathers the part of the working vector's zero sum that the row's own entries stand for.</%doc>
      for (long e = begin; e < end; ++e) {
        const real u = block[(size_t)max(place[indices[e]] - mark, 0) * UB];
        sum = ADD_TERM(sum, data[e], u);
#ifdef ELEMENTWISE
        seen = ADD_TERM(seen, (real)0, u);
#endif
      }
