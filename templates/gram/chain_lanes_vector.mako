<%doc>The inner product of lane groups, in the vector shape: sums[a][u] goes on from what it holds, feature by feature,
    sums[a][u] += x[a][j] other(u),  j < length
for ``groups`` lane groups x[a] and ``columns`` working vectors. begin: what other(u) wants made for a feature.</%doc>
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
