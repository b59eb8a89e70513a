"""The preconditioner: two Cholesky factors of m x m in one buffer of the host, by LAPACK, or by tiles on a device that
is no CPU (clsvm.linalg).

    T'T = K(C, C) + jitter I              T upper, made once; of r points that span the others where K is singular
    A'A = B' D B + penalty I, B = K_s T^-1    A upper, made for weights D (s,) of s sampled rows and each penalty
    u = T alpha, b = A u                  so that |f|^2 = |u|^2, and in b the objective's Hessian is near the identity

Falkon samples the inducing points alone, s = m (Rudi, Carratino, Rosasco 2017, section 3): then B = T', and no row of
K is needed. Where the effective dimension is near m that is few: a sample of m rows in m dimensions has directions that
it hardly sees, and conjugate gradients take hundreds of iterations. With s = c m rows the condition number is about
((sqrt c + 1) / (sqrt c - 1))^2, whatever the penalty (Marchenko and Pastur 1967), 9 for c = 4; :func:`sampled` says
which c costs least.

Where K(C, C) is singular to rounding (more points than features under a linear kernel, equal points, a wide kernel), a
jitter would leave directions in which rounding is all that there is, and the residual stands still. A Cholesky
factorisation with pivots takes the points that span the others, r of them: K = R'R, R (r, m), up to what rounding
hides; the other coefficients are 0.

Coefficients are rows: alpha is (k, m), u and b are (k, r), where r = m but for singular K. T stands above the diagonal,
A' below it, and the diagonal is the one of whichever is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from clsvm import linalg
from clsvm.threads import all_threads, one_thread

Vector = NDArray[np.float64]
JITTER, GROWTH = 4.0, 10.0  # of eps m mean(diagonal); what a failure multiplies it by
MOST, EXACT = 1e-4, 1e-8  # of the mean of the diagonal: what needs more is not positive definite; of values in float64
SINGULAR = 1e10  # the condition from which on inducing points are left out
SHORT = 1 << 30  # multiply-adds that are too few for threads
_BLOCK, _ROWS = 512, 4096  # columns that are copied at a time, sampled rows
TIMES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # sampled rows over inducing points
MANY = 150  # iterations that are expected where the inducing points alone are the sample
# In multiply-adds of a device's dense products, measured on a CPU: one of the host's float64 algebra; what a value of K
# takes in a pass for each output.
HOST, OUTPUT = 2.0, 3.0
AGAIN = 2.0  # times the steps of exact arithmetic, since each look at the residual begins anew: 1 to 5 on seven sets
SOLVES, MAKES = 3, 8  # of a loss that is not quadratic: steps over those of one solve, preconditioners
STORED = 1 << 30  # bytes of B at most
SMALL, STEEP = 3e-7, 1e6  # the least penalty, over K's diagonal, and the largest condition for B in float32


class Preconditioner:
    """The preconditioner of K(C, C) (m, m), symmetric, in float64, whose memory becomes the factors'.

    least: the least jitter, over the mean of the diagonal. jitter: what was added. off: by how much T'T may differ from
    K in any direction, the jitter or the tolerance of pivots. rank: of K, r; kept (r,): the points that span the others
    where r < m, else None. condition: the ratio of T's diagonal, squared; the condition number of K among the kept
    points is at least that. size: the mean of K's diagonal. reach: the largest |b| of a sampled row b of B. device,
    memory_limit: where the factors are made, as :func:`clsvm.linalg.plan` takes them; the limit may change. Raises
    ValueError where K is indefinite beyond rounding: then the function is no kernel for these points.
    """

    def __init__(
        self, K: NDArray[np.float64], least: float = 0.0, device: Any = None, memory_limit: int | str | None = None
    ) -> None:
        self.m = self.rank = len(K)
        self.device, self.memory_limit = device, memory_limit
        self.kept: NDArray[np.intp] | None = None
        diagonal = K.diagonal().copy()
        size = self.size = float(np.abs(diagonal).mean()) or 1.0
        self.jitter = max(JITTER * float(np.finfo(np.float64).eps) * self.m, least) * size
        both = np.asfortranarray(K.T)  # (symmetric: LAPACK's order without a copy)
        np.fill_diagonal(both, diagonal + self.jitter)
        self._R: Vector | None = None
        self.off = self.jitter
        with _threads(self.m**3 / 3):
            if not self._factored(both, lower=False) or _condition(both) > SINGULAR:
                np.fill_diagonal(both, diagonal)
                both = self._reduced(both, MOST if least else EXACT)  # (below the diagonal K stands still)
        self._both, self._of_T = both, both.diagonal().copy()
        self._of_A = self._of_T
        self._B: NDArray[np.floating] | None = self._R
        self.reach = self._of_diagonal = float(np.sqrt(np.abs(diagonal).max() + self.jitter))
        self.condition = _condition(both)

    @property
    def plan(self) -> linalg.Plan:
        """Return how factors are made."""
        return linalg.plan(self.rank, device=self.device, memory_limit=self.memory_limit)

    def _where(self) -> dict[str, Any]:
        return {"clean": False, "device": self.device, "memory_limit": self.memory_limit}

    def _factored(self, both: Vector, lower: bool) -> bool:
        """Return whether a triangle of ``both`` became its Cholesky factor."""
        try:
            linalg.cholesky(both, lower=lower, overwrite_a=True, **self._where())
        except np.linalg.LinAlgError:
            return False
        return True

    def _reduced(self, K: Vector, most: float) -> Vector:
        """Return T (r, r) of K, which stands in its lower triangle.

        Where the rest without the pivots is more than the tolerance, or negative, K is indefinite by so much at least,
        and the tolerance grows.
        """
        signs = np.random.RandomState(0).choice([-1.0, 1.0], self.m)
        across, tol = blas.dsymv(1.0, K, signs, lower=1), self.jitter
        while tol <= most * self.size:
            L, pivots, rank, _ = lapack.dpstrf(K, tol=tol, lower=1)
            order, L = pivots - 1, np.tril(L[:, :rank])
            left = K.diagonal()[order] - np.square(L).sum(axis=1)
            rest = np.abs(across[order] - L @ (L.T @ signs[order])).max()
            if rank and np.isfinite(L).all() and left.min() >= -GROWTH * tol and rest <= GROWTH * self.m * tol:
                self._R = np.empty((rank, self.m), order="F")
                self._R[:, order] = L.T
                self.rank, self.kept, self.jitter, self.off = int(rank), order[:rank], 0.0, tol
                return np.asfortranarray(L[:rank].T)
            tol *= GROWTH
        words = f"the kernel function is not positive semi-definite on the {self.m} centres: after {rank} pivots of a "
        words += f"Cholesky factor the least diagonal entry is {left.min():.2g}, and was about {self.size:.2g}"
        raise ValueError(f"{words}; Kernel.check(X) says more")

    def sample(self, K: NDArray[np.floating] | None, penalty: float) -> None:
        """Take K (s, m) of the sampled rows in place of the inducing points; None: these again.

        B is in float32, twice as fast, where its rounding is small beside the penalties to come, ``penalty`` or more.
        Raises ValueError where K is not finite.
        """
        self._B, self.reach = self._R, self._of_diagonal
        if K is None:
            return
        K = K if self.kept is None else K[:, self.kept]
        single = penalty >= SMALL * self.size and self.condition <= STEEP
        dtype, solve = (np.float32, lapack.strtrs) if single else (np.float64, lapack.dtrtrs)
        np.fill_diagonal(self._both, self._of_T)
        T = self._both.astype(dtype, copy=False)
        with _threads(K.size * self.rank):
            self._B, _ = solve(T, K.T.astype(dtype, copy=False), lower=0, trans=1)  # (m, s)
        if not np.isfinite(self._B).all():
            raise ValueError(f"kernel values of rows and centres are beyond {K.dtype}: scale X")
        self.reach = float(np.sqrt(np.einsum("is,is->s", self._B, self._B).max()))

    def weigh(self, D: Vector, penalty: float) -> None:
        """Make A of weights D (s,) of the sampled rows, or (m,) of the inducing points, and a penalty above 0."""
        scale = np.sqrt(D)
        np.fill_diagonal(self._both, self._of_T)
        with _threads(len(D) * self.rank**2):
            both = self._of_points(scale) if self._B is None else self._of_rows(self._B, scale)
            np.fill_diagonal(both, both.diagonal() + penalty)
            if not self._factored(both, lower=True):
                raise ValueError(f"penalty={penalty:g} is too small for float64 with these {self.m} centres")
        self._both, self._of_A = both, both.diagonal().copy()

    def _of_points(self, scale: Vector) -> Vector:
        """Return T D T' from the diagonal on down."""
        both = self._both
        for done, rest in _blocks(self.rank):  # (T sqrt(D))' there
            both[rest, done] = both[done, rest].T * scale[rest, None]
            corner = both[done, done]
            both[done, done] = np.triu(corner, 1) + np.triu(corner).T * scale[done, None]
        linalg.lauum(both, lower=True, overwrite=True, **self._where())
        return both

    def _of_rows(self, B: NDArray[np.floating], scale: Vector) -> Vector:
        """Return B' D B there."""
        both = self._both
        own = B.dtype == np.float64
        syrk = blas.dsyrk if own else blas.ssyrk
        sums = both if own else np.zeros(both.shape, B.dtype, order="F")
        for first in range(0, B.shape[1], _ROWS):
            some = slice(first, first + _ROWS)
            weighed = B[:, some] * scale[some].astype(B.dtype)
            sums = syrk(1.0, weighed, beta=float(first > 0), c=sums, lower=1, overwrite_c=1)
        if not own:
            for done, rest in _blocks(self.rank):
                both[rest, done] = sums[rest, done]
                both[done, done] = np.triu(both[done, done], 1) + np.tril(sums[done, done])
        return sums if own else both

    def alpha(self, u: Vector) -> Vector:
        """Return the coefficients (k, m): T^-1 u, 0 for inducing points that are not kept."""
        found = self._solved(u, self._of_T, lower=0, trans=0)
        if self.kept is None:
            return found
        alpha = np.zeros((len(u), self.m))
        alpha[:, self.kept] = found
        return alpha

    def from_alpha(self, g: Vector) -> Vector:
        """Return T^-T g: a gradient with respect to u from one with respect to the coefficients."""
        return self._solved(g if self.kept is None else g[:, self.kept], self._of_T, lower=0, trans=1)

    def u(self, b: Vector) -> Vector:
        """Return A^-1 b."""
        return self._solved(b, self._of_A, lower=1, trans=1)

    def from_u(self, g: Vector) -> Vector:
        """Return A^-T g: a gradient with respect to b from one with respect to u."""
        return self._solved(g, self._of_A, lower=1, trans=0)

    def of_coefficients(self, alpha: Vector) -> Vector:
        """Return u = T alpha, R alpha where K is singular."""
        with _threads(alpha.size * self.rank):
            if self._R is not None:
                return np.asarray(alpha @ self._R.T)
            np.fill_diagonal(self._both, self._of_T)
            return np.stack([blas.dtrmv(self._both, row) for row in alpha])

    def _solved(self, rows: Vector, diagonal: Vector, lower: int, trans: int) -> Vector:
        np.fill_diagonal(self._both, diagonal)
        with _threads(rows.size * len(self._both)):
            if len(rows) == 1:
                found = blas.dtrsv(self._both, rows[0], lower=lower, trans=trans)[None]
            else:
                found = lapack.dtrtrs(self._both, rows.T, lower=lower, trans=trans)[0].T
        return np.asarray(found, np.float64)


def _threads(work: float) -> AbstractContextManager[None]:
    """Fix the threads for so many multiply-adds: nobody else in this process changes their number, and so the bits."""
    return one_thread() if work < SHORT else all_threads()


def _condition(T: Vector) -> float:
    diagonal = np.abs(T.diagonal())
    return float((diagonal.max() / diagonal.min()) ** 2)


def _blocks(m: int) -> Iterator[tuple[slice, slice]]:
    """Yield some columns of a matrix, and the columns after them."""
    for first in range(0, m, _BLOCK):
        end = min(first + _BLOCK, m)
        yield slice(first, end), slice(end, m)


def sampled(n: int, m: int, k: int, each: float, tol: float, quadratic: bool = True, tasks: int = 1) -> int:
    """Return how many of n rows to sample for m inducing points and k outputs: all where these save what they cost.

    each: the multiply-adds of a value of K in a pass. quadratic: whether one solve is all of a task.
    """
    value = each + OUTPUT * k
    solves, makes = (tasks, tasks) if quadratic else (SOLVES * tasks, MAKES * tasks)

    def cost(c: int) -> float:
        if c == 1:
            return HOST * m**2 / 3 * makes + MANY * n * value * solves
        root = np.sqrt(c)
        steps = AGAIN * (root + 1) / (root - 1) * np.log(2 / tol) / 2 if c * m < n else 2.0
        return float(HOST * min(c * m, n) * m * (1 + makes) / 2 + steps * n * value * solves)

    best = min(TIMES, key=cost)
    return m if best == 1 else min(n, best * m, max(m, STORED // (8 * m)))
