"""The minimum over free coefficients by a Cholesky factor of K among them, which is made, and extended, block by block.

Solves:   minimise over d: 1/2 d'Md + g'd,  bottom <= d <= top,  the sum of d in each group 0;  M = K_FF + ridge I

    H <- none
    until nothing leaves its bounds:
        d <- the minimum over F, sums unchanged, those of H at their bounds         Schur complement of U'U = M
        H <- H and what d takes beyond its bounds, each at that bound
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.linalg import blas, lapack

from clsvm.solvers import certificate

Vector = NDArray[np.float64]
Matrix = NDArray[Any]  # in the dtype of K
Rows = NDArray[np.intp]
ROUNDS = 10  # of what leaves its bounds
RIDGE = 10.0  # in units of the rounding of K, times the root of the coefficients
STEADIER, TRIES = 30.0, 5  # by how much more the ridge is where K rounded is indefinite, and how often


class Columns(NamedTuple):
    """Columns (m, k) of U'^-1, their inner products (k, k), which are rows and columns of M^-1, and where those are
    that were asked for."""

    all: Matrix
    products: Vector
    at: Rows


class Factor:
    """U'U = K among ``rows`` + ridge I, upper, in the dtype of K: blocks of columns, each of them its part beside the
    rows before and its own triangle. Columns of U'^-1 stay once they were asked for, and grow with it."""

    def __init__(self, dtype: DTypeLike, scale: float, most: int, times: float = 1.0) -> None:
        """scale: the rounding error of K in units of eps. most: of how many rows it will be at first. times: the ridge,
        over that which rounding asks for."""
        self.dtype, self.ridge = np.dtype(dtype), 0.0
        self._scale, self._raised = scale, times * RIDGE * float(np.finfo(self.dtype).eps) * float(np.sqrt(most))
        self.rows: Rows = np.zeros(0, np.intp)
        self._blocks: list[tuple[Matrix, Matrix]] = []
        self.forget()

    def forget(self) -> None:
        """No column of U'^-1 is kept."""
        self._of = np.zeros(0, np.intp)
        self._columns = np.zeros((len(self.rows), 0), self.dtype, order="F")
        self._products = np.zeros((0, 0))

    @property
    def kept(self) -> int:
        """Bytes of the columns of U'^-1."""
        return self._columns.nbytes + self._products.nbytes

    @property
    def nbytes(self) -> int:
        """Of all blocks, and of what is kept beside them."""
        return self.kept + sum(side.nbytes + corner.nbytes for side, corner in self._blocks)

    def extend(self, rows: Rows, beside: Matrix, among: Matrix) -> bool:
        """The same with k further rows, by K beside them (m, k) and among them (k, k), of which the lower triangle is
        there; False where that is not positive definite."""
        if not self._blocks:
            self.ridge = self._raised * max(self._scale, float(among.diagonal().mean()))
        potrf, trsm, syrk, _ = _routines(self.dtype)
        M = np.array(among.T, self.dtype, order="F")
        M[np.diag_indices(len(M))] += self.ridge
        side = self.forward(beside)
        if len(side):
            M = syrk(-1.0, side, 1.0, M, trans=1, lower=0, overwrite_c=1)
        corner, failed = potrf(M, lower=0, clean=0, overwrite_a=1)
        if failed:
            return False
        more = trsm(-1.0, corner, side.T @ self._columns, lower=0, trans_a=1)
        grown, products = _stacked(self._columns, more), self._products + more.T @ more
        self._blocks.append((side, corner))
        self.rows = np.concatenate([self.rows, rows])
        self._columns, self._products = grown, products
        return True

    def forward(self, R: Matrix) -> Matrix:
        """U'^-1 R."""
        _, trsm, _, _ = _routines(self.dtype)
        out, m = np.empty(R.shape, self.dtype, order="F"), 0
        for side, corner in self._blocks:
            new = slice(m, m + len(corner))
            out[new] = trsm(1.0, corner, R[new] - side.T @ out[:m] if m else R[new], lower=0, trans_a=1)
            m = new.stop
        return out

    def back(self, w: Matrix) -> Vector:
        """U^-1 w, of one vector."""
        _, _, _, trsv = _routines(self.dtype)
        left, found = w, []
        for side, corner in reversed(self._blocks):
            found.append(trsv(corner, left[len(side) :]))
            left = left[: len(side)] - side @ found[-1]
        return np.concatenate(found[::-1]).astype(np.float64)

    def columns(self, at: Rows, room: float) -> Columns | None:
        """Columns of U'^-1, those ``at`` among them; None where they take more than ``room`` bytes."""
        m, new = len(self.rows), np.setdiff1d(at, self._of)
        if self._bytes(len(self._of) + len(new), len(new)) > room and len(self._of):
            self.forget()
            new = np.unique(at)
        if self._bytes(len(self._of) + len(new), len(new)) > room:
            return None
        if len(new):
            unit = np.zeros((m, len(new)), self.dtype, order="F")
            unit[new, np.arange(len(new))] = 1
            made = self.forward(unit)
            across, own = self._columns.T @ made, made.T @ made
            columns = np.asfortranarray(np.hstack([self._columns, made]))
            products = np.block([[self._products, across], [across.T, own]])
            self._columns, self._products, self._of = columns, products, np.concatenate([self._of, new])
        order = np.argsort(self._of)
        return Columns(self._columns, self._products, order[np.searchsorted(self._of, at, sorter=order)])

    def _bytes(self, columns: int, new: int) -> int:
        """What so many columns of U'^-1 take, ``new`` ones among them, and what is made of them meanwhile."""
        return self.dtype.itemsize * len(self.rows) * (3 * columns + 2 * new) + 4 * 8 * columns**2


def _routines(dtype: Any) -> tuple[Any, Any, Any, Any]:
    """LAPACK's potrf and the BLAS's trsm, syrk and trsv for numbers of a dtype."""
    if dtype == np.float64:
        return lapack.dpotrf, blas.dtrsm, blas.dsyrk, blas.dtrsv
    return lapack.spotrf, blas.strsm, blas.ssyrk, blas.strsv


def _stacked(above: Matrix, below: Matrix) -> Matrix:
    """Both, one above the other, column after column in memory."""
    out = np.empty((len(above) + len(below), above.shape[1]), above.dtype, order="F")
    out[: len(above)], out[len(above) :] = above, below
    return out


def steadied(dtype: DTypeLike, scale: float, rows: int, grow: Callable[[Factor], bool]) -> Factor | None:
    """The first factor of so many ``rows`` that ``grow`` makes whole, of those with larger and larger ridges, since K
    as it is rounded may be indefinite; None where it makes none so."""
    for k in range(TRIES):
        factor = Factor(dtype, scale, rows, STEADIER**k)
        if grow(factor):
            return factor
    return None


def minimum(
    factor: Factor, g: Vector, bottom: Vector, top: Vector, group: Rows, groups: int, gone: Rows, room: float = np.inf
) -> Vector | None:
    """d (m,), see module: g, bottom, top (m,) of the factor's rows, these bounds less b; group (m,) of ``groups`` sums,
    none where nothing is held. gone: those that are not free any more, of which d is 0. room: bytes that all of it may
    take. None where there is no such minimum, or it takes more."""
    m, dtype = len(g), factor.dtype
    sums = np.arange(groups)[:, None] == group
    sums = sums[sums.any(axis=1)]
    held, at, d, taken = np.zeros(m, bool), np.zeros(m), np.zeros(m), len(sums)
    held[gone] = True
    down, *sides = factor.forward(np.array(np.vstack([g, sums]).T, dtype, order="F")).T
    W = np.array(sides, dtype).reshape(taken, m).T
    for _ in range(ROUNDS):
        order = np.flatnonzero(held)
        known = factor.columns(order, room)
        if known is None:
            return None
        forces, pull = np.zeros(taken + len(order)), np.zeros(len(known.products), dtype)
        if len(forces):
            across = (W.T @ known.all)[:, known.at]
            S = np.block([[W.T @ W, across], [across.T, known.products[np.ix_(known.at, known.at)]]])
            S, failed = lapack.dpotrf(S.astype(np.float64), lower=0)
            if failed:
                return None
            wanted = np.concatenate([W.T @ down, (known.all.T @ down)[known.at] + at[order]])
            forces, _ = lapack.dpotrs(S, -wanted, lower=0)
        pull[known.at] = forces[taken:]
        d = -factor.back(down + W @ forces[:taken].astype(dtype) + known.all @ pull)
        d[held] = at[held]
        out = ~held & ((d < bottom) | (d > top))
        if not out.any():
            break
        held |= out
        at[out] = np.where(d[out] < bottom[out], bottom[out], top[out])
    return _kept(np.clip(d, bottom, top), sums, bottom, top, held) if np.isfinite(d).all() else None


def _kept(d: Vector, sums: NDArray[np.bool_], bottom: Vector, top: Vector, held: NDArray[np.bool_]) -> Vector | None:
    """d with what rounding left of its sums taken from those that are not held; None where they cannot take it."""
    for one in sums:
        for _ in range(ROUNDS):
            excess = d[one].sum()
            free = one & ~held & (d > bottom) & (d < top)
            if abs(excess) <= certificate.EPS * np.abs(d[one]).sum() or not free.any():
                break
            d[free] = np.clip(d[free] - excess / free.sum(), bottom[free], top[free])
        if abs(d[one].sum()) > certificate.SLACK * certificate.EPS * np.abs(d[one]).sum():
            return None
    return d
