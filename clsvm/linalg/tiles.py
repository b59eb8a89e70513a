"""Compute the Cholesky factor U of a matrix, and U U' of an upper triangular U, tile by tile on a device.

The matrix stays on the host, divided into square tiles. The tile in row i and column j of a matrix A is written A_ij.
The device computes for i = 0, 1, ...:

    Cholesky, U' U = A:   U_ii = chol(A_ii);   for each j > i:  U_ij = U_ii^-T A_ij,
                                                                A_yj -= U_iy' U_ij for each y with i < y <= j
    Product, B = U U':    B_ij = sum_{k >= j} U_ik U_jk' for each j >= i

Three tiles are on the device at a time (:class:`DeviceTiles`):

    C   the tile that is computed. It is row-major. The starts of consecutive rows are ``ld`` numbers apart.
    M   a second tile. It is column-major if the tile is column-major on the host, and otherwise row-major.
    X   a third tile. Its rows or its columns are stored as vectors, interleaved in groups of V vectors (lane groups).
        A lane group stores element 0 of all its V vectors, then element 1 of all V vectors, and so on. The device and
        the dtype determine V.

Source: Meanti, Carratino, Rosasco, Rudi 2020, appendix C, Algorithms 3 and 4, there for lower triangular factors.

Each number of C is computed by one chain of multiply-adds in a fixed order. So the result has the same bits for any
size of the tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts.lanes import DENSE
from clsvm.gram.layouts.record import lanes, options, padded
from clsvm.gram.products import Store
from clsvm.kernels.records import Parameter, Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Buffer, Stream

Matrix = NDArray[Any]
STRIP = 512  # a product C[u][i] += <x_i, y_u> is computed for at most this many rows y_u at a time
SQUARE = 16  # a work-group transposes squares of 16 x 16 numbers (SIDE in transpose_tile.cl)
SCALED = Spec("", (Parameter("scale", 1.0),), "scale * dot")
FILES = ("pack", "transpose_tile", "solve", "factor")  # kernel files in cl_kernels/linalg


def programs(profile: Profile, dtype: str) -> list[sources.Variant]:
    """Return the OpenCL programs for tiles of matrices: one for a product, and one for each kernel file in FILES.

    The product is C[u][i] += scale * <x_i, y_u>, for rows x_i of one tile and rows y_u of another. Its program is made
    from the template of programs for kernel matrices, with the kernel function scale * <x, y>.
    """
    text, extra = DENSE.program(SCALED, profile, dtype, "many", False)
    shared = options(profile, dtype)
    summed = *shared, f"-DUB={DENSE.width(profile, dtype, 'many')}", "-DSTORE", "-DSUM", *extra
    others = [(name, sources.cl(f"linalg/{name}"), (*shared, f"-DWG={profile.group}"), name) for name in FILES]
    made = [("sum", text, summed, "gram"), *others]
    return [sources.Variant(f"{name} {dtype}", text, given, entry) for name, text, given, entry in made]


class TileSizes(NamedTuple):
    """Hold the sizes of the buffers for tiles of a matrix on a device.

    Attributes
    ----------
    t
        largest number of rows, and of columns, of a tile.
    pad
        ``t`` rounded up to a multiple of V and of 8. V depends on the device and the dtype. One of the tiles stores its
        rows or columns in groups of V: element 0 of all V rows, then element 1 of all V rows, and so on.
    ld
        distance between the starts of two consecutive rows of a row-major tile in its buffer, counted in numbers.
        For a column-major tile, distance between the starts of two consecutive columns.
    block
        number of rows of a tile that one kernel launch factors or solves.
    strip
        capacity of the buffer of vectors y_u, counted in vectors. A product C[u][i] += scale * <x_i, y_u> takes at most
        ``strip`` vectors y_u at a time. They are rows or columns of a tile, and are copied to this buffer first.
    """

    t: int
    pad: int
    ld: int
    block: int
    strip: int

    @classmethod
    def of(cls, profile: Profile, dtype: str, t: int) -> TileSizes:
        block = 128 if profile.style == "simd" else lanes(profile, dtype)
        pad = padded(t, lanes(profile, dtype))
        # If ld, the distance of rows, were a multiple of 256, many rows would begin in one cache set and evict others.
        ld = pad + lanes(profile, dtype) * (pad % 256 == 0)
        return cls(t, pad, ld, block, min(STRIP, padded(t, lanes(profile, dtype))))

    def nbytes(self, dtype: str) -> list[int]:
        """Return the sizes in bytes of the five buffers of :class:`DeviceTiles`.

        Three buffers hold the tile C of results and the tiles M and X of operands. A product C[u][i] += <x_i, y_u>
        reads the vectors x_i from X. The vectors y_u are rows or columns of M. In :meth:`DeviceTiles.factor`, they are
        parts of columns of C that are computed already. Before the product, they are copied to the fourth buffer.

        The product's OpenCL kernel also has arguments for the squared norms of rows. This product does not depend on
        norms, so the fifth buffer, which is passed for the norms, holds zeros.
        """
        numbers = self.t * self.ld, self.t * self.ld, self.pad * self.t, self.strip * self.t, max(self.pad, self.strip)
        return [np.dtype(dtype).itemsize * number for number in numbers]


class View(NamedTuple):
    """Describe how a tile of a matrix is stored in a buffer.

    Attributes
    ----------
    buffer
        the buffer, which begins with the tile.
    down
        distance in the buffer from a number to the number below it in the tile, counted in numbers.
    right
        distance in the buffer from a number to the number right of it in the tile, counted in numbers.
    """

    buffer: Buffer
    down: int
    right: int

    def rows(self, i: int, j: int = 0) -> tuple[Any, ...]:
        """Return the arguments by which an OpenCL kernel reads rows i, i + 1, ... of the tile, each from column j on.

        The arguments are the buffer, the index of the first number, and two distances: to the next row, and to the next
        number of a row.
        """
        return self.buffer, *map(np.int64, (i * self.down + j * self.right, self.down, self.right))

    def columns(self, j: int, i: int = 0) -> tuple[Any, ...]:
        """Return the arguments by which an OpenCL kernel reads columns j, j + 1, ... of the tile, each from row i on.

        The arguments are the buffer, the index of the first number, and two distances: to the next column, and to the
        next number of a column.
        """
        return View(self.buffer, self.right, self.down).rows(j, i)


class DeviceTiles:
    """Hold three tiles of a matrix on one device, and compute with them. A tile has at most t x t numbers.

    C is the tile of results, stored by rows. M is an operand, stored by rows or by columns. X is an operand, stored in
    lane groups: V rows or columns whose numbers are interleaved.

    Raises MemoryLimitError if the memory limit of ``stream`` is too small.
    """

    def __init__(self, stream: Stream, dtype: str, t: int) -> None:
        self.stream, self.real = stream, np.dtype(dtype)
        self.shape = shape = TileSizes.of(stream.profile, dtype, t)
        self.V = lanes(stream.profile, dtype)
        *tiles, norms = shape.nbytes(dtype)
        self.C, self.M, self.X, self._strip = map(stream.buffer, tiles)
        self._norms = stream.zeros(norms)
        self._failed = stream.zeros(4)
        product, *others = programs(stream.profile, dtype)
        self._product, self._numbers = stream.variant(product), product.numbers
        self._pack, self._transpose_tile, self._solve, self._factor = map(stream.variant, others)
        self._of_M = View(self.M, shape.ld, 1)
        self._uploads: dict[tuple[str, int, int], Buffer] = {}

    # -- copies

    def load_c(self, tile: Matrix) -> None:
        """Copy ``tile`` from the host to the device's tile C.

        If ``tile`` is column-major, its transpose is copied to the device's tile M first. The device then transposes M
        into C.
        """
        if _in_columns(tile):
            self.stream.write_rows(self.M, _rows_of(tile.T), self.shape.ld)
            self._transpose(self.M, self.C, *tile.T.shape)
        else:
            self.stream.write_rows(self.C, _rows_of(tile), self.shape.ld)

    def load_m(self, tile: Matrix) -> None:
        """Copy ``tile`` from the host to the device's tile M. M is column-major if ``tile`` is, and else row-major."""
        transposed = _in_columns(tile)
        self.stream.write_rows(self.M, _rows_of(tile.T if transposed else tile), self.shape.ld)
        self._of_M = View(self.M, 1, self.shape.ld) if transposed else View(self.M, self.shape.ld, 1)

    def load_rows(self, tile: Matrix, triangle: bool = False) -> None:
        """Copy ``tile`` from the host to the device's tiles M and X.

        M gets the tile unchanged. X gets the tile's rows in groups of V rows, where V is the number of rows that OpenCL
        kernels compute side by side. A group stores element 0 of its V rows, then element 1 of its V rows, and so on.

        triangle: whether to set the elements below the diagonal of X to zero.
        """
        self.load_m(tile)
        h, w = tile.shape
        self._packed(self._of_M.rows(0), h, w, 0, triangle)

    def store(self, tile: Matrix, triangle: bool = False) -> None:
        """Copy the device's tile C to ``tile`` on the host.

        If ``tile`` is column-major, the device first transposes C into its tile M, and M is copied to the host.

        triangle: whether to copy only the diagonal and the entries above the diagonal.
        """
        h, w = tile.shape
        source, transposed = self.C, _in_columns(tile)
        if transposed:
            self._transpose(self.C, self.M, h, w)
            source, tile = self.M, tile.T
        whole = _in_rows(tile) and not triangle
        to = tile if whole else np.empty(tile.shape, self.real)
        self.stream.read_rows(source, to, self.shape.ld)
        if whole:
            return
        for i in range(len(tile)):
            some = slice(None) if not triangle else slice(i + 1) if transposed else slice(i, None)
            tile[i, some] = to[i, some]

    def clear(self) -> None:
        """Set all numbers of the device's tile C to zero."""
        self.stream.clear(self.C, self.real.itemsize * self.shape.t * self.shape.ld)

    # -- algebra

    def factor(self, w: int) -> int:
        """Replace the upper triangle of the device's tile C (w, w) by the Cholesky factor U, where U'U = C.

        Return 0 if all pivots are positive and finite. Otherwise return the row number, counted from 1, of the first
        pivot that is not positive and finite.
        """
        s, of_C = self.shape, View(self.C, self.shape.ld, 1)
        for k in range(0, w, s.block):
            b = min(s.block, w - k)
            self._subtract_solved(of_C, k, b, w, k)
            size = 1 if self.stream.profile.style == "simd" else self.stream.profile.group
            self._factor((size,), (size,), self.C, np.int64(k * s.ld + k), np.int64(s.ld), b, k, self._failed)
            if k + b < w:
                self._packed(of_C.columns(k, k), b, b, k // self.V * s.t + k)
                self._substitute(of_C, k, b, w, k + b)
        failed = int(self.stream.read(self._failed, np.int32, 1)[0])
        if failed:
            self.stream.clear(self._failed, 4)
        return failed

    def solve(self, h: int, w: int) -> None:
        """Solve U' Y = C for Y (h, w), and write Y over the device's tile C (h, w).

        U (h, h) is the upper triangle of the device's tile M, and U' is its transpose. All of Y is also written to the
        device's tile X, in another order: X stores the numbers of V neighbouring columns interleaved.
        """
        for k in range(0, h, self.shape.block):
            b = min(self.shape.block, h - k)
            self._subtract_solved(self._of_M, k, b, w, 0)
            self._substitute(self._of_M, k, b, w, 0)

    def add(self, h: int, w: int, d: int, scale: float = 1.0, symmetric: bool = False, triangle: bool = False) -> None:
        """Add scale * <m_u, x_i> to the entry C[u][i] of the device's tile C, for all u < h and all i < w.

        m_u is row u of the device's tile M. x_i is vector i of the device's tile X, which stores a matrix by rows or by
        columns. The vectors m_u and x_i have d numbers each.

        symmetric: whether the caller needs only the entries of C on and above the diagonal. Entries below the diagonal
        may then stay unchanged.
        triangle: whether entries of M below the diagonal count as zero, whatever numbers M has there. X is used as it
        is.
        """
        for u in range(0, h, self.shape.strip):
            some, first = min(self.shape.strip, h - u), u if triangle else 0
            self._packed(self._of_M.rows(u, first), some, d - first, triangle=triangle)
            self._sum(scale, u, some, d - first, u if symmetric else 0, w, first)

    def _subtract_solved(self, U: View, k: int, b: int, w: int, column: int) -> None:
        """Subtract sum_{r < k} U[r][i] * Y[r] from each row i = k, ..., k + b - 1 of the device's tile C.

        This is a step of the forward substitution that solves U' Y = C for Y, where U is upper triangular. Rows Y[r]
        with r < k are solved already, and are in the device's tile X.

        w: number of columns of C.
        column: first column to compute. The method rounds it down to a multiple of V, the number of columns that are
        computed side by side.
        """
        if k:
            self._packed(U.columns(k), b, k)
            self._sum(-1.0, k, b, k, column, w)

    def _substitute(self, U: View, k: int, b: int, w: int, column: int) -> None:
        """Compute rows k to k + b - 1 of the solution Y of U' Y = C. Write them over the same rows of the device's C.

        U is upper triangular. Rows 0 to k - 1 of Y are solved already, and :meth:`_subtract_solved` has subtracted
        their terms from C.

        w: number of columns of C.
        column: first column to compute. The method rounds it down to a multiple of V, the number of columns that are
        computed side by side.
        """
        s, simd = self.shape, self.stream.profile.style == "simd"
        group = column // self.V
        groups = -(-w // self.V) - group
        size, local = (groups, 1) if simd else (groups * self.V, self.V)
        self._solve((size,), (local,), group, b, k, U.rows(k, k), self.C, np.int64(s.ld), s.t, self.X)

    def _transpose(self, source: Buffer, to: Buffer, h: int, w: int) -> None:
        """Transpose a tile of h rows and w columns from the buffer ``source`` to the buffer ``to``."""
        simd = self.stream.profile.style == "simd"
        size, local = (-(-w // self.V), -(-h // self.V)), (1, 1)
        if not simd:
            size, local = (-(-w // SQUARE) * SQUARE, -(-h // SQUARE) * SQUARE // 4), (SQUARE, SQUARE // 4)
        self._transpose_tile(size, local, h, w, np.int64(self.shape.ld), source, to)

    def _packed(self, vectors: tuple[Any, ...], n: int, d: int, at: int | None = None, triangle: bool = False) -> None:
        """Copy n vectors of d numbers from a tile to another buffer, in groups of V interleaved vectors (lane groups).

        A lane group stores number 0 of all its V vectors, then number 1 of all V vectors, and so on.

        vectors: rows or columns of the tile, as :meth:`View.rows` or :meth:`View.columns` describes them.
        at: place of the copy in the buffer X. The copy begins at the number X[at * V]. If ``at`` is None, the vectors
        are copied to the buffer from which :meth:`_sum` reads the vectors y_u of the products <x_i, y_u>.
        triangle: if True, number k of vector i is set to zero for all k < i.
        """
        items = 1 if self.stream.profile.style == "simd" else 64
        to = (0, d, self._strip) if at is None else (at, self.shape.t, self.X)
        source, *numbers = vectors
        self._pack((items, -(-n // self.V)), (items, 1), source, (*numbers, n, d, int(triangle), *to[:2]), to[2])

    def _sum(self, scale: float, row: int, n: int, d: int, column: int, w: int, first: int = 0) -> None:
        """Add scale * <x_i, y_u> to C[row + u][i], for u = 0, ..., n - 1 and i = column, ..., w - 1.

        C is the device's tile of results. x_i is vector i of the device's tile X. y_u are the n vectors that the last
        call of :meth:`_packed` with ``at=None`` copied to a buffer.

        row: row of C for u = 0.
        d: number of entries of y_u.
        column: first column of C to compute. The method rounds it down to a multiple of V, the number of columns that
        are computed side by side.
        w: number of columns of C.
        first: number of entries at the start of each x_i that are skipped. Entry first + j of x_i is multiplied by
        entry j of y_u.
        """
        stream, s = self.stream, self.shape
        group = column // self.V
        groups = -(-w // self.V) - group
        if stream.profile.style == "simd":
            size: tuple[int, ...] = (DENSE.size(stream, self._numbers, False, groups, n * d * self.V),)
            local: tuple[int, ...] = (1,)
        else:
            size, local = DENSE.grid(self._numbers, groups, -(-n // self.V))
        places = np.arange(s.pad // self.V, dtype=np.int64) * (s.t * self.V) + first * self.V
        at, count = self._uploaded("at", first, places), self._uploaded("count", n, np.array([n], np.int32))
        slot = self._uploaded("slot", row, np.arange(row, row + n, dtype=np.int32))
        store = Store((self.C,), s.t, s.ld, slot)
        arguments = self.X, at, at, at, self._norms, d, count, self._strip, self._norms
        self._product(size, local, group, groups, 0, arguments, store.arguments(), self.real.type(scale))

    def _uploaded(self, name: str, number: int, array: NDArray[Any]) -> Buffer:
        """Return a device buffer with a copy of a small array.

        The buffer is kept under the key (name, number, length of the array). A later call with the same key returns the
        same buffer, and does not compare the arrays. So all arrays of one key must be equal.

        name: says what the array holds, such as "count".
        number: the number from which the entries of the array are computed.
        """
        key = name, number, len(array)
        if key not in self._uploads:
            self._uploads[key] = self.stream.upload(array)
        return self._uploads[key]


def _in_rows(tile: Matrix) -> bool:
    """Return whether the tile is row-major: each row is contiguous, and begins after the end of the row before."""
    return tile.strides[1] == tile.itemsize and tile.strides[0] >= tile.shape[1] * tile.itemsize


def _in_columns(tile: Matrix) -> bool:
    """Return whether the tile is column-major: neighbours in a column are closer in memory than neighbours in a row."""
    return abs(tile.strides[0]) < abs(tile.strides[1])


def _rows_of(tile: Matrix) -> Matrix:
    """Return ``tile`` itself if it is row-major, else a row-major copy."""
    return tile if _in_rows(tile) else np.ascontiguousarray(tile)


@dataclass(frozen=True)
class Plan:
    """Describe how a Cholesky factor will be computed, or the product U U' of a triangular matrix U.

    Attributes
    ----------
    method
        "lapack" (SciPy's LAPACK on the host, in place) or "tiles" (square tiles of the matrix, on a device).
    tile
        number of rows of a tile. For "lapack", number of rows of the matrix.
    device
        the device, as the caller named it.
    memory_limit
        bytes that may be allocated on the device.
    nbytes
        bytes that will be allocated on the device.
    reason
        why this method was chosen, in words.
    """

    method: str
    tile: int
    device: Any
    memory_limit: int
    nbytes: int
    reason: str

    def __str__(self) -> str:
        where = "LAPACK on the host" if self.method == "lapack" else f"tiles of {self.tile} rows"
        return f"{where}: {self.reason}"


def _tiles(A: Matrix, t: int) -> list[list[Matrix]]:
    """Divide A into tiles of t x t numbers. Item [i][j] of the result is a view of the tile in row i and column j.

    The last tiles of rows and columns may be smaller.
    """
    starts = range(0, len(A), t)
    return [[A[i : i + t, j : j + t] for j in starts] for i in starts]


def cholesky(A: Matrix, plan: Plan) -> None:
    """Replace the upper triangle of A by its Cholesky factor U, where U'U = A.

    Raises LinAlgError if A is not positive definite.
    """
    T = _tiles(A, plan.tile)
    with Stream(plan.device, plan.memory_limit) as stream:
        on = DeviceTiles(stream, str(A.dtype), len(T[0][0]))
        for i in range(len(T)):
            on.load_c(T[i][i])
            if failed := on.factor(len(T[i][i])):
                order, among = i * plan.tile + failed, f" (in diagonal tile {i + 1} of {len(T)})" * (len(T) > 1)
                raise np.linalg.LinAlgError(f"the leading minor of order {order}{among} is not positive definite")
            on.store(T[i][i], triangle=True)
            for j in range(i + 1, len(T)):
                _eliminate(on, T, i, j)


def _eliminate(on: DeviceTiles, T: list[list[Matrix]], i: int, j: int) -> None:
    """Compute the tile U_ij of a Cholesky factor U, and subtract U_iy' U_ij from each tile (y, j) with i < y <= j.

    T[i][j] is the tile in row i and column j of the matrix. The rows of tiles before row i, and the tiles (i, i) to
    (i, j - 1), hold tiles of U already.
    """
    h, w = T[i][j].shape
    on.load_c(T[i][j])
    on.load_m(T[i][i])
    on.solve(h, w)
    on.store(T[i][j])
    for y in range(i + 1, j + 1):
        on.load_c(T[y][j])
        on.load_m(T[i][y].T)
        on.add(len(T[y][j]), w, h, -1.0, symmetric=y == j)
        on.store(T[y][j], triangle=y == j)


def lauum(U: Matrix, plan: Plan) -> None:
    """Replace the upper triangle of U by the upper triangle of U U'."""
    T = _tiles(U, plan.tile)
    with Stream(plan.device, plan.memory_limit) as stream:
        on = DeviceTiles(stream, str(U.dtype), len(T[0][0]))
        for i in range(len(T)):
            for j in range(i, len(T)):
                on.clear()
                for k in range(j, len(T)):
                    on.load_rows(T[j][k], triangle=j == k)
                    if i != j:
                        on.load_m(T[i][k])
                    w, d = T[j][k].shape
                    on.add(len(T[i][i]), w, d, symmetric=i == j, triangle=i == j == k)
                on.store(T[i][j], triangle=i == j)
