"""Factors of a matrix in tiles, by any number of workers that share the host's memory.

A device works on three tiles at a time:

    C   the tile that changes, in rows of ``ld`` numbers
    M   another one as it lies in the matrix, in rows or in columns
    X   the columns of a third, or its rows, as lane groups (gram/layouts/lanes.py)

Every number of C is one chain of multiply-adds in the order of the rows of the factors, whatever the device's cores and
whichever tile came first: the same bits.

A worker is a thread with a stream of its own; column j of tiles belongs to worker j mod their number. The matrix stays
where it is, on the host; a worker has three tiles of it on its device at a time.

    Cholesky, U' U = A:   U_ii = chol(A_ii);   U_ij = U_ii^-T A_ij;   A_yj -= U_iy' U_ij,  i < y <= j
    LAUUM, B = U U':      B_ij = sum_{k >= j} U_ik U_jk'

(Meanti, Carratino, Rosasco, Rudi 2020, appendix C, Algorithms 3 and 4, for lower factors.) Theirs keeps two block rows
on a device for LAUUM; here the host keeps a copy of the row at hand, so that three tiles are enough for both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
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
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream

Matrix = NDArray[Any]
STRIP = 512  # working vectors that are packed at a time
SIDE = 16  # of what a work-group turns at a time: that of turn.cl
SCALED = Spec("", (Parameter("scale", 1.0),), "scale * dot")
FILES = ("pack", "turn", "solve", "factor")  # of cl_kernels/linalg


def programs(profile: Profile, dtype: str) -> list[Variant]:
    """Return the programs of tiles: C[u][i] += scale <x_i, u>, from the family of products with a kernel function, and
    one for each of FILES."""
    text, own = DENSE.program(SCALED, profile, dtype, "many", False)
    shared = options(profile, dtype)
    summed = *shared, f"-DUB={DENSE.width(profile, dtype, 'many')}", "-DSTORE", "-DSUM", *own
    others = [(name, sources.cl(f"linalg/{name}"), (*shared, f"-DWG={profile.group}"), name) for name in FILES]
    made = [("sum", text, summed, "gram"), *others]
    return [Variant(f"{name} {dtype}", text, given, entry) for name, text, given, entry in made]


class Shape(NamedTuple):
    """Sizes of the tiles of a profile: t rows and columns at most, pad: columns in whole lane groups, ld: numbers of a
    row, block: rows that are factored at a time, strip: working vectors of a product."""

    t: int
    pad: int
    ld: int
    block: int
    strip: int

    @classmethod
    def of(cls, profile: Profile, dtype: str, t: int) -> Shape:
        block = 128 if profile.shape == "vector" else lanes(profile, dtype)
        pad = padded(t, lanes(profile, dtype))
        ld = pad + lanes(profile, dtype) * (pad % 256 == 0)  # (rows that begin in the same set of a cache evict others)
        return cls(t, pad, ld, block, min(STRIP, padded(t, lanes(profile, dtype))))

    def nbytes(self, dtype: str) -> list[int]:
        """Return the bytes of the buffers: C, M, X, a strip of working vectors, norms."""
        numbers = self.t * self.ld, self.t * self.ld, self.pad * self.t, self.strip * self.t, max(self.pad, self.strip)
        return [np.dtype(dtype).itemsize * number for number in numbers]


class In(NamedTuple):
    """A tile in a buffer. down, right: numbers from one row to the next, and from one column to the next."""

    buffer: Buffer
    down: int
    right: int

    def rows(self, i: int, j: int = 0) -> tuple[Any, ...]:
        """Return rows i onward, from column j on, as kernels take vectors: buffer, place of the first number, step to
        the next vector, step to the next number of a vector."""
        return self.buffer, *map(np.int64, (i * self.down + j * self.right, self.down, self.right))

    def columns(self, j: int, i: int = 0) -> tuple[Any, ...]:
        """Return columns j onward, from row i on, as kernels take vectors."""
        return In(self.buffer, self.right, self.down).rows(j, i)


class DeviceTiles:
    """Buffers for three tiles of at most t x t on a stream, and what is computed with them. Raises ValueError where the
    memory limit is too small."""

    def __init__(self, stream: Stream, dtype: str, t: int) -> None:
        self.stream, self.real = stream, np.dtype(dtype)
        self.shape = shape = Shape.of(stream.profile, dtype, t)
        self.V = lanes(stream.profile, dtype)
        *tiles, norms = shape.nbytes(dtype)
        self.C, self.M, self.X, self._strip = map(stream.buffer, tiles)
        self._norms = stream.zeros(norms)
        self._failed = stream.zeros(4)
        product, *others = programs(stream.profile, dtype)
        self._product, self._numbers = stream.variant(product), product.numbers
        self._pack, self._turn, self._solve, self._factor = map(stream.variant, others)
        self._of_M = In(self.M, shape.ld, 1)
        self._tables: dict[tuple[str, int, int], Buffer] = {}

    # -- copies

    def load_c(self, tile: Matrix) -> None:
        """Copy a tile to C; what was in M is lost where the tile lies in columns."""
        if _in_columns(tile):
            self.stream.write_rows(self.M, _rows_of(tile.T), self.shape.ld)
            self._turned(self.M, self.C, *tile.T.shape)
        else:
            self.stream.write_rows(self.C, _rows_of(tile), self.shape.ld)

    def load_m(self, tile: Matrix) -> None:
        """Copy a tile to M."""
        turned = _in_columns(tile)
        self.stream.write_rows(self.M, _rows_of(tile.T if turned else tile), self.shape.ld)
        self._of_M = In(self.M, 1, self.shape.ld) if turned else In(self.M, self.shape.ld, 1)

    def load_rows(self, tile: Matrix, triangle: bool = False) -> None:
        """Copy the rows of a tile to X, zero below the diagonal of a triangle, and the tile to M."""
        self.load_m(tile)
        h, w = tile.shape
        self._packed(self._of_M.rows(0), h, w, 0, triangle)

    def store(self, tile: Matrix, triangle: bool = False) -> None:
        """Copy C to a tile, or to the diagonal and above of a triangle. M may lose its tile."""
        h, w = tile.shape
        source, turned = self.C, _in_columns(tile)
        if turned:
            self._turned(self.C, self.M, h, w)
            source, tile = self.M, tile.T
        whole = _in_rows(tile) and not triangle
        to = tile if whole else np.empty(tile.shape, self.real)
        self.stream.read_rows(source, to, self.shape.ld)
        if whole:
            return
        for i in range(len(tile)):
            some = slice(None) if not triangle else slice(i + 1) if turned else slice(i, None)
            tile[i, some] = to[i, some]

    def clear(self) -> None:
        """Make C zero."""
        self.stream.clear(self.C, self.real.itemsize * self.shape.t * self.shape.ld)

    # -- algebra

    def factor(self, w: int) -> int:
        """Put U of U'U = C (w, w) in its place, above the diagonal. Return 0, or the first pivot that is not above 0,
        counted from 1."""
        s, of_C = self.shape, In(self.C, self.shape.ld, 1)
        for k in range(0, w, s.block):
            b = min(s.block, w - k)
            self._rest(of_C, k, b, w, k)
            size = 1 if self.stream.profile.shape == "vector" else self.stream.profile.group
            self._factor((size,), (size,), self.C, np.int64(k * s.ld + k), np.int64(s.ld), b, k, self._failed)
            if k + b < w:
                self._packed(of_C.columns(k, k), b, b, k // self.V * s.t + k)
                self._substitute(of_C, k, b, w, k + b)
        failed = int(self.stream.read(self._failed, np.int32, 1)[0])
        if failed:
            self.stream.clear(self._failed, 4)
        return failed

    def solve(self, h: int, w: int) -> None:
        """Replace C (h, w) by X' of U' X = C, with U (h, h) in M; its columns are in X, too."""
        for k in range(0, h, self.shape.block):
            b = min(self.shape.block, h - k)
            self._rest(self._of_M, k, b, w, 0)
            self._substitute(self._of_M, k, b, w, 0)

    def add(self, h: int, w: int, d: int, scale: float = 1.0, half: bool = False, triangle: bool = False) -> None:
        """Add scale M X to C (h, w), with M (h, d), rows in X; half: what stands above C's diagonal and on it.
        triangle: M is one, and so are the rows in X."""
        for u in range(0, h, self.shape.strip):
            some, first = min(self.shape.strip, h - u), u if triangle else 0
            self._packed(self._of_M.rows(u, first), some, d - first, triangle=triangle)
            self._sum(scale, u, some, d - first, u if half else 0, w, first)

    def _rest(self, U: In, k: int, b: int, w: int, column: int) -> None:
        """Take from rows k .. k + b - 1 of C, from ``column`` on, what X's first k rows and U make of them."""
        if k:
            self._packed(U.columns(k), b, k)
            self._sum(-1.0, k, b, k, column, w)

    def _substitute(self, U: In, k: int, b: int, w: int, column: int) -> None:
        s, vector = self.shape, self.stream.profile.shape == "vector"
        group = column // self.V
        groups = -(-w // self.V) - group
        size, local = (groups, 1) if vector else (groups * self.V, self.V)
        self._solve((size,), (local,), group, b, k, U.rows(k, k), self.C, np.int64(s.ld), s.t, self.X)

    def _turned(self, source: Buffer, to: Buffer, h: int, w: int) -> None:
        vector = self.stream.profile.shape == "vector"
        size, local = (-(-w // self.V), -(-h // self.V)), (1, 1)
        if not vector:
            size, local = (-(-w // SIDE) * SIDE, -(-h // SIDE) * SIDE // 4), (SIDE, SIDE // 4)
        self._turn(size, local, h, w, np.int64(self.shape.ld), source, to)

    def _packed(self, vectors: tuple[Any, ...], n: int, d: int, at: int | None = None, triangle: bool = False) -> None:
        """Pack n vectors of d numbers of a tile into blocks of V: those of X from number ``at`` on, else a strip."""
        items = 1 if self.stream.profile.shape == "vector" else 64
        to = (0, d, self._strip) if at is None else (at, self.shape.t, self.X)
        source, *numbers = vectors
        self._pack((items, -(-n // self.V)), (items, 1), source, (*numbers, n, d, int(triangle), *to[:2]), to[2])

    def _sum(self, scale: float, row: int, n: int, d: int, column: int, w: int, first: int = 0) -> None:
        """Add scale <x_i, u> to C[row + u][i] for n packed vectors u of d numbers, i from the lane group of ``column``
        on; ``first`` numbers of each x_i are left out."""
        stream, s = self.stream, self.shape
        group = column // self.V
        groups = -(-w // self.V) - group
        if stream.profile.shape == "vector":
            size: tuple[int, ...] = (DENSE.size(stream, self._numbers, False, groups, n * d * self.V),)
            local: tuple[int, ...] = (1,)
        else:
            size, local = DENSE.grid(self._numbers, groups, -(-n // self.V))
        places = np.arange(s.pad // self.V, dtype=np.int64) * (s.t * self.V) + first * self.V
        at, count = self._table("at", first, places), self._table("count", n, np.array([n], np.int32))
        slot = self._table("slot", row, np.arange(row, row + n, dtype=np.int32))
        store = Store((self.C,), s.t, s.ld, slot)
        reads = self.X, at, at, at, self._norms, d, count, self._strip, self._norms
        self._product(size, local, group, groups, 0, reads, store.arguments(), self.real.type(scale))

    def _table(self, name: str, number: int, array: NDArray[Any]) -> Buffer:
        """Return a small array that kernels read, kept under its name, a number that it depends on, and its length."""
        key = name, number, len(array)
        if key not in self._tables:
            self._tables[key] = self.stream.upload(array)
        return self._tables[key]


def _in_rows(tile: Matrix) -> bool:
    """Return whether numbers of a row lie side by side, and rows one after another."""
    return tile.strides[1] == tile.itemsize and tile.strides[0] >= tile.shape[1] * tile.itemsize


def _in_columns(tile: Matrix) -> bool:
    """Return whether numbers of a column lie nearer than those of a row."""
    return abs(tile.strides[0]) < abs(tile.strides[1])


def _rows_of(tile: Matrix) -> Matrix:
    """Return a tile, or a copy that lies in rows."""
    return tile if _in_rows(tile) else np.ascontiguousarray(tile)


class Ended(Exception):  # noqa: N818 (not an error: the one that ended the work is another worker's)
    """Another worker failed."""


class Table:
    """Count the steps of each tile. Workers wait for a step of one tile; a failure wakes all that wait."""

    def __init__(self, N: int) -> None:
        self._steps = np.zeros((N, N), np.int64)
        self._changed = threading.Condition()
        self.error: BaseException | None = None

    def wait(self, i: int, j: int, step: int) -> None:
        """Until tile (i, j) has come to ``step``. Raises Ended where a worker failed."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or self._steps[i, j] >= step)
            self.check()

    def done(self, i: int, j: int) -> None:
        """Tile (i, j), which is on the host, has come a step further."""
        with self._changed:
            self._steps[i, j] += 1
            self._changed.notify_all()

    def check(self) -> None:
        """Raise Ended where a worker failed."""
        if self.error is not None:
            raise Ended

    def fail(self, error: BaseException) -> None:
        """End the work of all."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()


class Grid(NamedTuple):
    """The upper triangle of a matrix (n, n) in tiles of t x t; the last ones are smaller."""

    matrix: Matrix
    t: int

    @property
    def tiles(self) -> int:
        """Tiles of a row."""
        return -(-len(self.matrix) // self.t)

    def part(self, i: int) -> slice:
        """Return the rows or columns of tile i."""
        return slice(i * self.t, min((i + 1) * self.t, len(self.matrix)))

    def size(self, i: int) -> int:
        """Return the number of rows or columns of tile i."""
        return self.part(i).stop - self.part(i).start

    def tile(self, i: int, j: int) -> Matrix:
        """Return a view of tile (i, j)."""
        return self.matrix[self.part(i), self.part(j)]


@dataclass(frozen=True)
class Plan:
    """Say how a matrix will be worked on.

    method: "lapack" (SciPy's, on the host, in place) or "tiles". tile: rows of a tile. devices: one for each worker; a
    device may stand there more than once. memory_limit: bytes of each worker. nbytes: bytes that it will hold. reason:
    why, in words.
    """

    method: str
    tile: int
    devices: tuple[Any, ...]
    memory_limit: int
    nbytes: int
    reason: str

    def __str__(self) -> str:
        where = "LAPACK on the host" if self.method == "lapack" else f"tiles of {self.tile} rows"
        return f"{where}: {self.reason}"


Work = Callable[[DeviceTiles, range], None]  # with one's tiles, at one's pieces


def run(work: Work, grid: Grid, pieces: int, plan: Plan, table: Table) -> None:
    """Have each worker do ``work``, at pieces that are dealt in turn; one alone works in the caller's thread (Oclgrind
    21.10 crashes in any other). Raises what the first that failed raised; an interrupt ends all of them."""
    t, workers = min(grid.t, len(grid.matrix)), min(len(plan.devices), pieces)

    def go(one: int) -> None:
        try:
            with Stream(plan.devices[one], plan.memory_limit) as stream:
                work(DeviceTiles(stream, str(grid.matrix.dtype), t), range(one, pieces, workers))
        except Ended:
            pass
        except BaseException as error:
            table.fail(error)

    threads = [threading.Thread(target=go, args=(one,), daemon=True) for one in range(workers)] if workers > 1 else []
    if not threads:
        go(0)
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:  # (an interrupt, which comes to this thread)
        table.fail(error)
        for thread in threads:
            thread.join()
        raise
    if table.error is not None:
        raise table.error


def cholesky(A: Matrix, plan: Plan) -> None:
    """Put U with U'U = A above the diagonal and on it. Raises LinAlgError where A is not positive definite."""
    grid = Grid(A, plan.tile)
    table = Table(grid.tiles)

    def factor(on: DeviceTiles, i: int) -> None:
        table.wait(i, i, i)
        on.load_c(grid.tile(i, i))
        if failed := on.factor(grid.size(i)):
            order, among = i * grid.t + failed, f" (tile {i}, {i} of {grid.tiles})" * (grid.tiles > 1)
            raise np.linalg.LinAlgError(f"the leading minor of order {order}{among} is not positive definite")
        on.store(grid.tile(i, i), triangle=True)
        table.done(i, i)

    def column(on: DeviceTiles, i: int, j: int) -> None:
        """Step i of tiles (i .. j, j)."""
        h, w = grid.size(i), grid.size(j)
        table.wait(i, j, i)
        table.wait(i, i, i + 1)
        on.load_c(grid.tile(i, j))
        on.load_m(grid.tile(i, i))
        on.solve(h, w)
        on.store(grid.tile(i, j))
        table.done(i, j)
        for y in range(i + 1, j + 1):
            table.wait(i, y, i + 1)
            table.wait(y, j, i)
            on.load_c(grid.tile(y, j))
            on.load_m(grid.tile(i, y).T)
            on.add(grid.size(y), w, h, -1.0, half=y == j)
            on.store(grid.tile(y, j), triangle=y == j)
            table.done(y, j)

    def work(on: DeviceTiles, mine: range) -> None:
        if 0 in mine:
            factor(on, 0)
        for i in range(grid.tiles):
            for j in mine:
                if j > i:
                    column(on, i, j)
                if j == i + 1:  # at once: all others wait for it
                    factor(on, j)

    run(work, grid, grid.tiles, plan, table)


def lauum(U: Matrix, plan: Plan) -> None:
    """Put U U' above the diagonal and on it, in the place of U there, by one barrier a row."""
    grid = Grid(U, plan.tile)
    table, N, rows = Table(grid.tiles), grid.tiles, iter(range(grid.tiles))
    row: list[Matrix] = []

    def keep() -> None:
        """Copy the next row, which is about to change: all are done with those before it."""
        i = next(rows)
        row[:] = [grid.tile(i, k).copy() for k in range(i, N)]

    barrier = threading.Barrier(min(len(plan.devices), N), action=keep)

    def entry(on: DeviceTiles, i: int, j: int) -> None:
        on.clear()
        for k in range(j, N):
            table.check()
            on.load_rows(row[k - i] if i == j else grid.tile(j, k), triangle=j == k)
            if i != j:
                on.load_m(row[k - i])
            on.add(grid.size(i), grid.size(j), grid.size(k), half=i == j, triangle=i == j == k)
        on.store(grid.tile(i, j), triangle=i == j)

    def work(on: DeviceTiles, mine: range) -> None:
        try:
            for i in range(N):
                barrier.wait()
                for j in mine:
                    if j >= i:
                        entry(on, i, j)
        except threading.BrokenBarrierError:
            raise Ended from None
        except BaseException:
            barrier.abort()
            raise

    run(work, grid, N, plan, table)


def solve(U: Matrix, B: Matrix, plan: Plan) -> None:
    """Put X of U' X = B (n, k) in its place; columns as wide as a tile are one worker's."""
    grid, table = Grid(U, plan.tile), Table(1)

    def work(on: DeviceTiles, mine: range) -> None:
        for c in mine:
            columns = B[:, c * grid.t : (c + 1) * grid.t]
            w = columns.shape[1]
            for i in range(grid.tiles):
                table.check()
                on.load_c(columns[grid.part(i)])
                for k in range(i):
                    on.load_rows(columns[grid.part(k)].T)
                    on.load_m(grid.tile(k, i).T)
                    on.add(grid.size(i), w, grid.size(k), -1.0)
                on.load_m(grid.tile(i, i))
                on.solve(grid.size(i), w)
                on.store(columns[grid.part(i)])

    run(work, grid, -(-B.shape[1] // grid.t), plan, table)
