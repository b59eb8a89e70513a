<%doc>Continue the inner products of rows of X with ``columns`` rows y_u of U, for a product K(X, U) in a SIMD kernel:
  sums[a][u] += x[a][j] * y_u[j],   over the features j < length
x[a] is one of ``groups`` lane groups of X. It has V rows with interleaved values, so x[a][j] and sums[a][u] are vectors
of V numbers.
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
