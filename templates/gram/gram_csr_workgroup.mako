<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef UB
#define UB 64  // right-hand rows of a panel block
#endif
#ifndef TEAMS
#define TEAMS 4  // rows that a work-group takes at a time, with UB work-items each
#endif
#ifndef INDEX
#define INDEX int  // type of a column number (ushort, int)
#endif
#ifndef ROWS
#define ROWS 32  // rows that local memory holds at a time, a divisor of V, in TEAMS equal shares
#endif
#define ITEMS (TEAMS * UB)
#define SHARE (ROWS / TEAMS)  // rows of a team in local memory
#define PARTS (ITEMS / ROWS)  // work-items that share a row once its sums are in local memory
// Compute kernel values K[u][i] = f(<x_i, y_u>, |x_i|^2, |y_u|^2) of the kernel function f, for CSR rows x_i and the UB
// right-hand rows y_u of one block of a panel (scatter.cl), u = first .. first + UB - 1.
// An element-wise kernel function is f(s), with a sum s of terms e(x_i[j], y_u[j]) over features j:
//   y_u[j] = block[line * UB + u - first],   line = max(line_of[j] - mark, 0)
//   s = sum e(x_i[j], y_u[j]) + zero(y_u) - sum e(0, y_u[j]), where both sums are over the entries of x_i
//   zero(y_u) = sum e(0, y_u[j]) over all features j (zero_sums.mako)
// The block has a line of UB numbers for each feature that one of its right-hand rows has, and line 0, which is zero.
// scatter.cl writes line_of[j], the sum of ``mark`` and feature j's line. Numbers up to ``mark`` stem from earlier blocks.
// A work-group has TEAMS * UB items and takes V rows, ROWS at a time. Each of its TEAMS teams of UB items takes
// ROWS / TEAMS of these rows, one after another.
// A team copies UB entries of its row, and the numbers of their lines in the block, to local memory.
// Item u of the team multiplies the entries by column u of these lines. Consecutive items read consecutive addresses.
// Local memory transposes the ROWS x UB sums. Then PARTS = TEAMS * UB / ROWS items share a row, and consecutive items
// take consecutive rows.
// Arguments: indptr, indices and data are the rows in CSR; xx and uu are the squared norms of rows and right-hand rows.
// For element-wise functions xx and uu are zero(x) and zero(y_u) instead.
// DENSE_COLUMNS: the sums start with the columns that are stored whole (dense_columns_workgroup.mako).
// LISTED: row r of the launch is row rows[r] of X, for tiles among right-hand rows; otherwise it is row r.
#ifdef LISTED
#define ROW(r) rows[row + (r)]
#else
#define ROW(r) ((int)row + (r))
#endif
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void gram(
    const int group0, const int groups, const int base, global const long *restrict indptr,
    global const INDEX *restrict indices, global const real *restrict data, global const real *restrict dense,
    const int dense_columns, global const int *restrict rows,
    global const real *restrict xx, const int first, const int mark, global const int *restrict count, global const int *restrict line_of,
    global const real *restrict block, global const real *restrict uu STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS) {
  const size_t row = (size_t)(group0 + get_group_id(0)) * V, out = row - base;
  const int total = count[0];
  const int lid = get_local_id(0), lane = lid % UB, team = lid / UB;
  local real tile[ROWS * (UB + 1)], numbers[ITEMS];
  local int lines[ITEMS];
#ifdef UPDATE
  local wide partial[ITEMS];
#endif
  const int u0 = first, valid = min(UB, total - u0);
  block += lane;
#pragma unroll 1  // an unrolled loop would fill the scalar registers with the ends of all rows
  for (int r0 = 0; r0 < V && valid > 0; r0 += ROWS) {
<%include file="dense_columns_workgroup.mako"/>
#pragma unroll 1
    for (int t = 0; t < SHARE; ++t) {
      long begin = 0, end = 0, longest = 0;
      for (int other = 0; other < TEAMS; ++other) {  // all teams must meet at the same barriers
        const int i = ROW(r0 + other * SHARE + t);
        const long from = i >= 0 ? indptr[i] : 0, to = i >= 0 ? indptr[i + 1] : 0;
        if (other == team) begin = from, end = to;
        longest = max(longest, to - from);
      }
      const int r = team * SHARE + t;
#ifdef DENSE_COLUMNS
      real sum = tile[r * (UB + 1) + lane];
#else
      real sum = 0;
#endif
#ifdef ELEMENTWISE
      real zero_terms = 0;
#endif
<%include file="chain_csr_workgroup.mako"/>
#ifdef ELEMENTWISE
      sum += uu[u0 + lane] - zero_terms;
#endif
      tile[r * (UB + 1) + lane] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int r = lid % ROWS, part = lid / ROWS, i = ROW(r0 + r);
    const real x2 = i >= 0 ? xx[i] : (real)0;
<%include file="finish_csr_workgroup.mako"/>
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
