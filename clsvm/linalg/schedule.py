"""Order of work: factors of a matrix in tiles, by any number of workers that share the host's memory.

A worker is a thread with a stream of its own; column j of tiles belongs to worker j mod their number. The matrix stays
where it is, on the host; a worker has three tiles of it on its device at a time (tiles.py).

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

from clsvm.linalg.tiles import DeviceTiles
from clsvm.opencl.stream import Stream

Matrix = NDArray[Any]


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
        """The rows or columns of tile i."""
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
