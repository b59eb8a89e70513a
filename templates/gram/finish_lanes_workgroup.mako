<%doc>Turn the sums k[g][4 * b + v] = <x, y_u> of a work-group kernel into values of K(X, U), for rows x of X and y_u
of U. Then store the values, or add their products with factors D to sums c (epilogue.mako).
Each k[g][...] has four rows x: the rows g * V + 4 * tx .. g * V + 4 * tx + 3 of the work-group. The row y_u has the
number u = u0 + b * UB + 4 * ty + v.
Values of rows u past the last row of U become 0, since the kernel function may be infinite there.
</%doc>
#define VECTOR_OF(q) (u0 + (q) / 4 * UB + ty * 4 + (q) % 4)
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      const four x2 = *(global const four *)(xx + row + min(g, present - 1) * V + tx * 4);
#pragma unroll
      for (int q = 0; q < 4 * BLOCKS; ++q) {
        const int u = VECTOR_OF(q);
        const real u2 = uu[min(u, total - 1)];
        k[g][q] = u < total ? VALUES(k[g][q], x2, u2) : (four)(real)0;
      }
    }
#ifdef STORE
    for (int u = lid; u < COLUMNS; u += ITEMS) {
      const int s = u0 + u < total ? slot[u0 + u] : -1;
      to[u] = s < 0 ? (global real *)0 : STORED_ROW(s) + out;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int q = 0; q < 4 * BLOCKS; ++q) {
      global real *row_q = to[VECTOR_OF(q) - u0];
      if (row_q) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g)
          if (g < present) {
            global four *stored = (global four *)(row_q + g * V + tx * 4);
            *stored = COMBINED(*stored, k[g][q]);
          }
      }
    }
#endif
#ifdef UPDATE
    // Add the blocks b of U one after another. So a launch with one block at a time gives the same bits as one with
    // two. The inner loop is over problems, because compilers otherwise store all kernel values as wide numbers.
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
        for (int p = 0; p < problems && u0 + b * UB < total; ++p) {
          wide s0 = wide_of(0), s1 = wide_of(0), s2 = wide_of(0), s3 = wide_of(0);
#pragma unroll
          for (int q = 4 * b; q < 4 * b + 4; ++q) {
            const wide weight = VECTOR_OF(q) < total ? D[(size_t)p * capacity + VECTOR_OF(q)] : wide_of(0);
            s0 = wide_fma(wide_of(k[g][q].s0), weight, s0), s1 = wide_fma(wide_of(k[g][q].s1), weight, s1);
            s2 = wide_fma(wide_of(k[g][q].s2), weight, s2), s3 = wide_fma(wide_of(k[g][q].s3), weight, s3);
          }
          local wide *sums = partial + ty * V + tx * 4;
          sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
          barrier(CLK_LOCAL_MEM_FENCE);
          for (int lane = lid; lane < V && g < present; lane += ITEMS) {
            global wide *sum_at = c + (size_t)p * n + out + g * V + lane;
            wide sum = *sum_at;
#pragma unroll
            for (int z = 0; z < NY; ++z) sum = wide_add(sum, partial[z * V + lane]);
            *sum_at = sum;
          }
          barrier(CLK_LOCAL_MEM_FENCE);
        }
#endif
