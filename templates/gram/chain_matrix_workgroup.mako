<%doc>Continue the inner products of rows x_i of X with rows y_u of U by matrix units (tensor cores), for a product K(X,
U):
  k[g][m] += sum_j x_i[j] * y_u[j],   over FRAGMENT_FEATURES features j at a time, in their order
A matrix unit multiplies small matrices, called fragments. A warp has fragments g of rows x_i and fragments m of rows
y_u. SUM_ROW and SUM_VECTOR give the rows i and u of each number of k[g][m].
Local memory holds DEPTH features of the rows x_i and y_u at a time. Values are copied in vectors of four. A feature has
``side`` such vectors: GROUPS * NX for rows of X, and BLOCKS * NY for rows of U. A work-item copies LOADS(side) vectors,
which are ITEMS / side features apart.
Values are split into high_of + low_of, as the matrix units need, when they are read from local memory.
</%doc>
#define LOADS(side) ((DEPTH * (side) + ITEMS - 1) / ITEMS)
#define FEATURE(r, side) (((r) * ITEMS + lid) / (side))
#define STAGED(r, side) (DEPTH * (side) % ITEMS == 0 || (r) * ITEMS + lid < DEPTH * (side))
    four next_x[LOADS(GROUPS * NX)], next_y[LOADS(BLOCKS * NY)];
    for (int j0 = -DEPTH, now = 1; j0 < d; j0 += DEPTH, now ^= 1) {
      const bool more = j0 + DEPTH < d;
      if (more) {
#pragma unroll
        for (int r = 0; r < LOADS(GROUPS * NX); ++r) {
          const int j = j0 + DEPTH + FEATURE(r, GROUPS * NX);
          next_x[r] = j < d ? x[(size_t)j * NX] : (four)0.0f;
        }
#pragma unroll
        for (int r = 0; r < LOADS(BLOCKS * NY); ++r) {
          const int j = j0 + DEPTH + FEATURE(r, BLOCKS * NY);
          next_y[r] = j < d ? y[(size_t)j * NY] : (four)0.0f;
        }
      }
      if (j0 >= 0) {
        local const float *xz = (local const float *)(xs + now * (DEPTH * X_LINE)) + along * WARP_ROWS;
        local const float *uz = (local const float *)(us + now * (DEPTH * U_LINE)) + across * WARP_VECTORS;
#pragma unroll 1  // unrolling would need too many registers
        for (int z = 0; z < DEPTH; z += FRAGMENT_FEATURES) {
          float u[U_FRAGMENTS][U_VALUES], u_low[U_FRAGMENTS][U_VALUES];
${unroll}
          for (int m = 0; m < U_FRAGMENTS; ++m)
${unroll}
            for (int r = 0; r < U_VALUES; ++r) {
              const float value = uz[(z + U_FEATURE(lane, r)) * (4 * U_LINE) + m * FRAGMENT_VECTORS + U_VECTOR(lane, r)];
              u[m][r] = high_of(value), u_low[m][r] = low_of(value, u[m][r]);
            }
${unroll}
          for (int g = 0; g < X_FRAGMENTS; ++g) {
            float a[X_VALUES], a_low[X_VALUES];
${unroll}
            for (int r = 0; r < X_VALUES; ++r) {
              const float value = xz[(z + X_FEATURE(lane, r)) * (4 * X_LINE) + g * FRAGMENT_ROWS + X_ROW(lane, r)];
              a[r] = high_of(value), a_low[r] = low_of(value, a[r]);
            }
${unroll}
            for (int m = 0; m < U_FRAGMENTS; ++m) multiplied(k[g][m], u[m], u_low[m], a, a_low EXCHANGING);
          }
        }
      }
      if (more) {
        const int then = now ^ 1;
#pragma unroll
        for (int r = 0; r < LOADS(GROUPS * NX); ++r)
          if (STAGED(r, GROUPS * NX))
            xs[(then * DEPTH + FEATURE(r, GROUPS * NX)) * X_LINE + lid % (GROUPS * NX)] = next_x[r];
#pragma unroll
        for (int r = 0; r < LOADS(BLOCKS * NY); ++r)
          if (STAGED(r, BLOCKS * NY))
            us[(then * DEPTH + FEATURE(r, BLOCKS * NY)) * U_LINE + lid % (BLOCKS * NY)] = next_y[r];
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
