<%doc>Define the parameters and macros with which a kernel writes the values of a product K(X, U). K[u][row] is the
kernel value of row u of U and row ``row`` of X. The files finish_*.mako use these macros. Row ``base`` of X has output
index 0.
STORE: the kernel writes K[u][row] to entry row - base of slot slot[u]. With SUM, it adds K[u][row] to this entry. The
slots are in SLABS buffers of slab_rows slots each, together called the store. A slot has ld values.
UPDATE: the kernel adds products of kernel values and factors D to sums c, for each problem p:
  c[p][row - base] += sum_u D[p][u] * K[u][row]
c and D hold doubles, or pairs of floats. D[p] has ``capacity`` numbers, and c[p] has n.
SECTIONS: U is divided into ranges of rows (sections), each with its own array c. Item s of the launch's dimension 2
takes section s. Three numbers from count[SECTIONS * s] on describe a section: its number of rows, its first row in the
buffer of U (``panel``), and the number of its array c.
MATRICES: X is in a panel, too, and the launch computes a matrix K for each index m of dimension 2. The rows X of matrix
m follow those of matrix m - 1, and so do the rows U. With the macro STORE, a matrix has ld rows X and slab_rows rows U,
and the stored matrices follow each other in K0. With the macro UPDATE, it has n rows X and ``capacity`` rows U, and its
own c and D. Two numbers from count[MATRICES * m] on are the numbers of rows U and X that are used.
PAST: if the store is larger than the caches, SIMD kernels write whole cache lines around the caches, so that no cache
line is read before it is written. NEAR turns PAST off for values that are read soon.
</%doc>
#ifdef SUM
#define COMBINED(old, k) ((old) + (k))
#else
#define COMBINED(old, k) (k)
#endif
#ifdef STORE
#define STORE_PARAMETERS , SLABS_GIVEN, const int slab_rows, const long ld, global const int *restrict slot
#else
#define STORE_PARAMETERS
#endif
#ifdef SECTIONS
#define SECTION                                                                        \
  count += SECTIONS * get_global_id(2), panel += (size_t)count[1] * d, uu += count[1]; \
  D += count[1], c += (size_t)count[2] * problems * n;
#elif defined(MATRICES)
#ifdef STORE
#define MATRIX_ROWS ld
#define MATRIX_COLUMNS slab_rows
#define MATRIX_OUTPUT K0 += matrix * slab_rows * ld;
#else
#define MATRIX_ROWS n
#define MATRIX_COLUMNS capacity
#define MATRIX_OUTPUT D += matrix * problems * capacity, c += matrix * problems * n;
#endif
#define SECTION                                                                                             \
  const size_t matrix = get_global_id(2);                                                                       \
  count += MATRICES * matrix, values += matrix * MATRIX_ROWS * d, xx += matrix * MATRIX_ROWS;                              \
  panel += matrix * MATRIX_COLUMNS * d, uu += matrix * MATRIX_COLUMNS;                                                \
  MATRIX_OUTPUT
#else
#define SECTION
#endif
#ifdef MATRICES  // the last lane group of the launch, plus 1
#define GROUPS_END(end) min(end, (count[1] + V - 1) / V)
#else
#define GROUPS_END(end) (end)
#endif
#ifdef UPDATE
#define UPDATE_PARAMETERS , const int problems, const long n, global wide *restrict c, global const wide *restrict D, const int capacity
#else
#define UPDATE_PARAMETERS
#endif
#if defined(STORE) && defined(SIMD) && !defined(SUM) && !defined(NEAR) && defined(__clang__) && !defined(NO_FETCH)
#define FAR (8 << 20)  // bytes; stores larger than this are taken to be larger than a core's own cache
#define PAST (sizeof(realv) == 64 && (size_t)slab_rows * ld * SLABS * sizeof(real) > FAR && ld % V == 0 && to % V == 0 && (size_t)K0 % 64 == 0)
#define store_past(value, p) __builtin_nontemporal_store(value, (global realv *)(p))
#define FENCED __c11_atomic_thread_fence(__ATOMIC_SEQ_CST);  // non-temporal stores are not ordered with others
#else
#define PAST false
#define store_past(value, p)
#define FENCED
#endif
