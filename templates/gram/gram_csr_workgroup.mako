<%include file="kernel_function.mako"/>
<%include file="epilogue.mako"/>
#ifndef UB
#define UB 64  // right-hand rows of a block
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
#define PARTS (ITEMS / ROWS)  // work-items that share a row when its sums in local memory become kernel values
// Compute the kernel values K[u][i] = f(<x_i, y_u>, |x_i|^2, |y_u|^2) of a kernel function f. x_i are CSR rows of a
// matrix X. y_u are the rows u = first .. first + UB - 1 of a matrix U, called a block of U.
// In:
//   indptr, indices, data    the rows x_i in CSR
//   xx, uu                   squared norms: xx[i] = |x_i|^2, uu[u] = |y_u|^2
//   block, line_of, mark     the rows y_u, as scatter.cl has written them (see below)
//   count                    count[0] is the number of rows of U
//   dense, dense_columns     only with the macro DENSE_COLUMNS: the densely stored columns of X, and their number
//   rows                     only with the macro LISTED: row r of the launch is the row i = rows[r] of X. Without
//                            LISTED, row r of the launch is the row i = r of X.
// Out:
//   K    stored (macro STORE) or added to weighted sums (macro UPDATE), see epilogue.mako
// The array ``block`` has lines of UB values. A line has the values y_u[j] of one feature j for the UB rows y_u. A
// feature that occurs in any of the rows y_u has its own line. All other features share line 0, which is zero:
//   y_u[j] = block[line * UB + u - first],   line = max(line_of[j] - mark, 0)
// The array line_of also has numbers from earlier blocks of U. These numbers are at most ``mark``, so they give line 0.
// ELEMENTWISE: an element-wise kernel function is f(s) with s = sum_j e(x_i[j], y_u[j]), where e is a function of two
// values. With zero(y) = sum_j e(0, y[j]), only the features j of the entries of x_i have to be read:
//   s = zero(y_u) + sum_j (e(x_i[j], y_u[j]) - e(0, y_u[j])),   over the entries of x_i
// For element-wise functions, uu[u] is zero(y_u) in place of the squared norm (zero_sums.mako).
// DENSE_COLUMNS: further columns of X and U are stored densely, zeros included. The sums over j start with the terms of
// these columns (dense_columns_workgroup.mako).
// Work-groups: a work-group has TEAMS teams of UB work-items. The work-group takes V rows x_i, where V is a macro, in
// portions of ROWS rows. Each team takes ROWS / TEAMS rows of a portion, one row after another. Item k of a team
// computes the inner products <x_i, y_u> for the row y_u with u = first + k. It computes the sums s in
// their place for an element-wise kernel function.
// Steps for ROWS rows x_i:
//   1. A team copies UB entries of its row x_i to local memory. The team also copies the number of the line that
//      each entry's feature has in ``block``.
//   2. Item k multiplies each copied entry by y_u[j], value k of the line of the entry's feature j. So consecutive
//      items read consecutive addresses. Steps 1 and 2 are repeated until all entries of x_i are read.
//   3. The inner products of ROWS rows x_i and UB rows y_u are now in local memory. Consecutive items turn the inner
//      products of consecutive rows i into kernel values, and write the kernel values to consecutive addresses.
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
      for (int other = 0; other < TEAMS; ++other) {  // the longest row, so that all teams meet at the same barriers
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
