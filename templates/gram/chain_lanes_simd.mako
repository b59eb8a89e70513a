<%doc>Continue the inner products of ``groups`` lane groups x[a] of X with ``columns`` right-hand rows y_u of a product
K(X, U), in a SIMD kernel:
  sums[a][u] += x[a][j] * y_u[j],   over the features j < length, in each of the V lanes
The argument ``other`` is code for y_u[j], and ``begin`` is code that runs once for each feature j.
</%doc>
<%def name="chain(groups, columns, other, begin='')">
          for (int j = 0; j < length; ++j) {
            ${begin}
            realv xj[${groups}];
#pragma unroll
            for (int a = 0; a < ${groups}; ++a) {
              xj[a] = loadv(j, x[a]);
#if AHEAD > 0
              FETCH(x[a] + (size_t)(j + AHEAD) * V);
#endif
            }
#pragma unroll
            for (int u = 0; u < ${columns}; ++u) {
              const realv y = ${other};
#pragma unroll
              for (int a = 0; a < ${groups}; ++a) sums[a][u] = ADD_TERM(sums[a][u], xj[a], y);
            }
          }
</%def>
