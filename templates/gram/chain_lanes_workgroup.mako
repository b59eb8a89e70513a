<%doc>Continue the inner products of rows x_i of X with rows y_u of U, for a product K(X, U) in a work-group kernel. X
is stored in lane groups g of V rows with interleaved values, and U in blocks b of UB rows:
  component r of k[g][4 * b + v] += x_i[j] * y_u[j],   over the features j < length
  row i = g * V + 4 * tx + r,   row u = b * UB + 4 * ty + v,   r, v = 0 .. 3
The kernel that includes this file defines k, x, y, tx, ty and length.
Local memory holds DEPTH features of the rows x_i and y_u at a time. Values are copied in vectors of four. A feature has
``side`` such vectors: GROUPS * NX for rows of X, and BLOCKS * NY for rows of U. A work-item copies LOADS(side) vectors,
which are ITEMS / side features apart.
</%doc>
#define LOADS(side) ((DEPTH * (side) + ITEMS - 1) / ITEMS)
#define FEATURE(r, side) (((r) * ITEMS + lid) / (side))
#define STAGED(r, side) (DEPTH * (side) % ITEMS == 0 || (r) * ITEMS + lid < DEPTH * (side))
    four next_x[LOADS(GROUPS * NX)], next_y[LOADS(BLOCKS * NY)];
    for (int j0 = -DEPTH, now = 1; j0 < length; j0 += DEPTH, now ^= 1) {
      const bool more = j0 + DEPTH < length;
      if (more) {
#pragma unroll
        for (int r = 0; r < LOADS(GROUPS * NX); ++r) {
          const int j = j0 + DEPTH + FEATURE(r, GROUPS * NX);
          next_x[r] = j < length ? x[(size_t)j * NX] : (four)(real)0;
        }
#pragma unroll
        for (int r = 0; r < LOADS(BLOCKS * NY); ++r) {
          const int j = j0 + DEPTH + FEATURE(r, BLOCKS * NY);
          next_y[r] = j < length ? y[(size_t)COLUMN(j) * NY] : (four)(real)0;
        }
      }
      if (j0 >= 0) {
        local const four *xz = xs + now * (DEPTH * GROUPS * NX) + tx, *yz = us + now * (DEPTH * BLOCKS * NY) + ty;
#ifdef ELEMENTWISE  // leave out padding features, whose term e(0, 0) need not be 0
        const int depth = min(DEPTH, length - j0);
#else
#define depth DEPTH
#endif
#pragma unroll 2
        for (int z = 0; z < depth; ++z, xz += GROUPS * NX, yz += BLOCKS * NY) {
          four a[GROUPS], b[BLOCKS];
#pragma unroll
          for (int g = 0; g < GROUPS; ++g) a[g] = xz[g * NX];
#pragma unroll
          for (int q = 0; q < BLOCKS; ++q) b[q] = yz[q * NY];
#pragma unroll
          for (int g = 0; g < GROUPS; ++g)
#pragma unroll
            for (int q = 0; q < BLOCKS; ++q) {
              k[g][4 * q] = ADD_TERMS(k[g][4 * q], a[g], b[q].s0);
              k[g][4 * q + 1] = ADD_TERMS(k[g][4 * q + 1], a[g], b[q].s1);
              k[g][4 * q + 2] = ADD_TERMS(k[g][4 * q + 2], a[g], b[q].s2);
              k[g][4 * q + 3] = ADD_TERMS(k[g][4 * q + 3], a[g], b[q].s3);
            }
        }
      }
      if (more) {
        const int then = now ^ 1;
#pragma unroll
        for (int r = 0; r < LOADS(GROUPS * NX); ++r)
          if (STAGED(r, GROUPS * NX)) xs[then * (DEPTH * GROUPS * NX) + r * ITEMS + lid] = next_x[r];
#pragma unroll
        for (int r = 0; r < LOADS(BLOCKS * NY); ++r)
          if (STAGED(r, BLOCKS * NY)) us[then * (DEPTH * BLOCKS * NY) + r * ITEMS + lid] = next_y[r];
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
