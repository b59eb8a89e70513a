"""Precondition the fit of a Nyström model by two triangular factors T and A in one buffer on the host.

C are the m inducing points of the model, and alpha their coefficients. S are s rows sampled from the rows of the fit. K
is the kernel function, and ' transposes a matrix. The objective of the fit is a mean loss plus
(penalty / 2) alpha' K(C, C) alpha. The factors are upper triangular matrices (m, m) with

    T'T = K(C, C) + jitter I
    A'A = B' D B + (penalty + shift) I

    B       the matrix K(S, C) T^-1, (s, m)
    D       diagonal matrix of the weights (s,) of the sampled rows
    jitter  small number that outweighs rounding errors of K(C, C)
    shift   0, unless sums are used in place of B (see below). With sums, shift is a number that outweighs the rounding
            errors of B' D B.

T is computed once. A is computed again if the penalty or the weights change. With u = T alpha and b = A u,
alpha' K(C, C) alpha is |u|^2, and the Hessian of the objective with respect to b is near I.

:class:`Preconditioner` makes T. :meth:`Preconditioner.sample` sets the sampled rows, and :meth:`Preconditioner.weigh`
makes A. LAPACK computes the factors if the device is a CPU or lacks float64. Else clsvm.linalg computes them in blocks
on the device.

Sampled rows. Falkon samples only the inducing points, so S = C and s = m (Rudi, Carratino, Rosasco 2017, section 3). B
is then T', and no further kernel values are needed. m rows are too few if the effective dimension d of K(C, C) is near
m: conjugate gradients then take hundreds of steps. With s = c d rows for a factor c > 1, the condition number of the
Hessian with respect to b is about ((sqrt c + 1) / (sqrt c - 1))^2 (Marchenko and Pastur 1967). This is 9 for c = 4.
:func:`sampled` chooses s.

Sums in place of B. B' D B equals T^-T G T^-1 with the sum G = K(S, C)' D K(S, C) over the sampled rows. For large s,
computing T^-T G T^-1 takes half as many multiply-adds as computing B and then B' D B. The reason is that B is the
solution of a triangular system with s right-hand sides, which takes as many multiply-adds as B' D B. The rounding
errors of T^-T G T^-1 grow with the condition number of K(C, C). After a call of :meth:`Preconditioner.sample_sums`, A
is computed from G.

Singular K(C, C). K(C, C) is singular up to rounding if, for example, two inducing points are equal. A Cholesky factor
of the whole matrix would then have rows that are only rounding errors. Therefore a Cholesky factorisation with pivots
selects r points whose rows of K(C, C) span the other rows. T (r, r) is then the factor of the selected points' kernel
matrix, and the coefficients of the other points are 0.

Storage. T is stored above the diagonal of the buffer, and A' below the diagonal. The diagonals of T and A are also
stored separately. Before a factor is used, the factor's diagonal is copied to the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from clsvm import linalg
from clsvm.threads import SMALL_WORK, one_thread, threads_for

Vector = NDArray[np.float64]
Values = Callable[[slice], NDArray[np.floating]]
# JITTER: at least this number is added to the diagonal of the m inducing points' kernel matrix.
# The unit of JITTER is eps * m * (mean diagonal entry).
# GROWTH: after a failed Cholesky factorisation with pivots, its tolerance for zero pivots grows by this factor.
JITTER, GROWTH = 4.0, 10.0
# A Cholesky pivot counts as zero if it is at most t * (mean diagonal entry of the matrix). The number t grows until the
# factorisation succeeds. If it fails even with the largest t that is allowed, the matrix counts as indefinite.
# MAX_PIVOT_TOL: upper limit of t if the devices lack float64.
# MAX_PIVOT_TOL_64: upper limit of t if the devices have float64.
MAX_PIVOT_TOL, MAX_PIVOT_TOL_64 = 1e-4, 1e-8
SINGULAR = 1e10  # if the inducing points' kernel matrix has a larger condition number, points may be left out
# Triangles of a matrix are copied _BLOCK columns at a time.
# Sums over sampled rows take _ROWS rows at a time if the matrix B is stored, else _SUMMED rows at a time.
_BLOCK, _ROWS, _SUMMED = 512, 4096, 1024
RATIOS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # candidates for the ratio of sampled rows to inducing points
FEW_SAMPLE_STEPS = 150  # assumed conjugate gradient steps if the preconditioner is made from the inducing points alone
# HOST: a float64 multiply-add on the host costs as much time as HOST multiply-adds of a dense product on the device.
# OUTPUT: in a pass, using a kernel value for one output costs as much as OUTPUT multiply-adds of a dense product.
HOST, OUTPUT = 2.0, 3.0
# Each Newton step restarts conjugate gradients, so RESTART_FACTOR multiplies the theoretical number of CG steps.
RESTART_FACTOR = 2.0
# With a non-quadratic loss, a fit is assumed to solve SOLVES linear systems and to make MAKES preconditioners.
SOLVES, MAKES = 3, 8
MAX_B_BYTES = 1 << 30  # limit of the bytes of the preconditioner's matrix B, which has a row for each sampled row
# If penalty / (mean diagonal of the kernel matrix) is below MIN_PENALTY, the preconditioner's matrix B is in float64.
# If the condition number of the kernel matrix is above MAX_CONDITION, the preconditioner's matrix B is in float64.
MIN_PENALTY, MAX_CONDITION = 3e-7, 1e6
NOISE = 1 / 25  # constant factor in the estimate of rounding errors, Preconditioner.noise
# A failed Cholesky factorisation is repeated with a larger diagonal shift, if the shift is <= MOST_SHIFT * penalty.
MOST_SHIFT = 1e6
SPREAD = 1.25  # factor on the effective dimension, since rows with large leverage require more sampled rows
PROBED = 512  # number of inducing points from which the effective dimension is estimated


class Spectrum(NamedTuple):
    """Hold two estimates about the kernel matrix of a model's inducing points.

    From them, :func:`sampled` chooses how many rows of the fit the preconditioner samples, and whether the matrix A'A
    is computed as a sum over the sampled rows.

    K (m, m) is the kernel matrix of the m inducing points. A'A is the matrix of which :meth:`Preconditioner.weigh`
    computes the Cholesky factor A.

    Attributes
    ----------
    noise
        rounding error of A'A if A'A is computed as a sum over sampled rows (:meth:`Preconditioner.sample_sums`). The
        error is divided by the penalty. If ``noise`` is infinity, A'A is not computed as a sum.
    dimension
        effective dimension tr(K (K + penalty m I)^-1). If it was not computed, ``dimension`` is infinity, and
        :func:`sampled` uses m in its place.
    """

    noise: float = np.inf
    dimension: float = np.inf


class Preconditioner:
    """Precondition a fit with m inducing points by two upper triangular factors T and A (r, r).

    K (m, m) is the kernel matrix of the inducing points, and ' transposes a matrix. If K is well-conditioned, r = m and
    T'T = K + jitter I. Otherwise a Cholesky factorisation with pivots selects r points whose rows of K span all rows.
    T'T is then the kernel matrix of the selected points, and the coefficients of the other points are 0. Let alpha (r,)
    be the coefficients of the r points. A'A is near the Hessian of the objective with respect to T alpha.

    The argument ``K`` (m, m) is in float64, and is overwritten if it is in C order. The argument ``least`` is the
    smallest number to add to K's diagonal, in units of the mean diagonal entry. Raises ValueError if K is not positive
    semi-definite up to rounding.

    Attributes
    ----------
    m
        number of inducing points.
    jitter
        number that was added to the diagonal of K; 0 if K was factored with pivots.
    error
        estimate of the spectral norm of the factorisation's error. Without pivots, this is ``jitter``. With pivots,
        this is the tolerance of the Cholesky factorisation, up to which a pivot counts as 0.
    rank
        the number r of points for which T is made, also called the rank of K.
    pivots
        indices (r,) of the selected inducing points, in the order of T's rows. None if K was factored without pivots.
    condition
        squared ratio of the largest to the smallest diagonal entry of T, a lower bound of the condition number of T'T.
    size
        mean of K's diagonal.
    reach
        number such that a change v of T alpha changes the decision values of some rows by at most reach * |v|. These
        are the rows whose kernel values the last call of :meth:`sample` got, or the inducing points if it got none.
    shift
        number that the last call of :meth:`weigh` added to the penalty, to outweigh rounding errors of A'A.
    device
        device that computes the factors, with the same values as the argument of :func:`clsvm.linalg.plan`.
    memory_limit
        limit of memory for the factors, as in :func:`clsvm.linalg.plan`; it may change between calls.
    """

    def __init__(
        self, K: NDArray[np.float64], least: float = 0.0, device: Any = None, memory_limit: int | str | None = None
    ) -> None:
        self.m = self.rank = len(K)
        self.device, self.memory_limit = device, memory_limit
        self.pivots: NDArray[np.intp] | None = None
        diagonal = K.diagonal().copy()
        size = self.size = float(np.abs(diagonal).mean()) or 1.0
        self.jitter = max(JITTER * float(np.finfo(np.float64).eps) * self.m, least) * size
        factors = np.asfortranarray(K.T)  # K' equals K, and is in Fortran order, so LAPACK needs no copy
        np.fill_diagonal(factors, diagonal + self.jitter)
        self._R: Vector | None = None
        self.error = self.jitter
        with threads_for(self.m**3 / 3):
            if not self._factor(factors, lower=False) or _condition(factors) > SINGULAR:
                np.fill_diagonal(factors, diagonal)
                # The first factorisation overwrote only the upper triangle. The lower one still has the kernel matrix.
                factors = self._pivoted(factors, MAX_PIVOT_TOL if least else MAX_PIVOT_TOL_64)
        self._factors, self._diagonal_T = factors, factors.diagonal().copy()
        self._diagonal_A = self._diagonal_T
        self._B: NDArray[np.floating] | None = self._R
        self._values: Values | None = None
        self.shift = 0.0
        self.reach = self._points_reach = float(np.sqrt(np.abs(diagonal).max() + self.jitter))
        self.condition = _condition(factors)

    @property
    def plan(self) -> linalg.Plan:
        """Return how the Cholesky factors are computed: by LAPACK on the host, or in blocks on a device."""
        return linalg.plan(self.rank, device=self.device, memory_limit=self.memory_limit)

    def _linalg_options(self) -> dict[str, Any]:
        return {"clean": False, "device": self.device, "memory_limit": self.memory_limit}

    def _factor(self, factors: Vector, lower: bool) -> bool:
        """Replace one triangle of ``factors`` by the Cholesky factor of the symmetric matrix in this triangle.

        Return False if this matrix is not positive definite.

        lower: whether the triangle is the lower one.
        """
        try:
            linalg.cholesky(factors, lower=lower, overwrite_a=True, **self._linalg_options())
        except np.linalg.LinAlgError:
            return False
        return True

    def _pivoted(self, K: Vector, most: float) -> Vector:
        """Factor a singular kernel matrix K (m, m) by Cholesky with pivots. Return the factor T (r, r) of r points.

        The pivots select r of the m inducing points. The rows of K that belong to these r points span the other rows,
        up to rounding. T'T is the kernel matrix of the selected points, where ' transposes. Only the lower triangle of
        ``K`` is read.

        LAPACK computes the pivoted Cholesky factor L (m, r), and stops when no pivot exceeds a tolerance. L L'
        should equal K with the rows and columns in the order of the pivots. If L L' differs too much from this matrix,
        K is factored again with a larger tolerance. T is the transpose of the first r rows of L. Raises ValueError if
        the tolerance exceeds ``most`` times the mean diagonal entry of K. K then counts as indefinite.
        """
        signs = np.random.RandomState(0).choice([-1.0, 1.0], self.m)
        product, tol = blas.dsymv(1.0, K, signs, lower=1), self.jitter
        while tol <= most * self.size:
            L, pivots, rank, _ = lapack.dpstrf(K, tol=tol, lower=1)
            order, L = pivots - 1, np.tril(L[:, :rank])
            left = K.diagonal()[order] - np.square(L).sum(axis=1)
            remainder = np.abs(product[order] - L @ (L.T @ signs[order])).max()
            if rank and np.isfinite(L).all() and left.min() >= -GROWTH * tol and remainder <= GROWTH * self.m * tol:
                self._R = np.empty((rank, self.m))
                self._R[:, order] = L.T
                self.rank, self.pivots, self.jitter, self.error = int(rank), order[:rank], 0.0, tol
                return np.asfortranarray(L[:rank].T)
            tol *= GROWTH
        words = f"the kernel function is not positive semi-definite on the {self.m} inducing points: after {rank} "
        words += (
            f"pivots of a Cholesky factor the least diagonal entry is {left.min():.2g}, and was about {self.size:.2g}"
        )
        raise ValueError(f"{words}; Kernel.check(X) tests more conditions")

    def sample(self, K: NDArray[np.floating] | None, penalty: float) -> None:
        """Compute B = K T^-1 from the kernel values K (s, m) between s sampled rows and the m inducing points.

        T is the triangular factor of the inducing points' kernel matrix, T'T. If ``K`` is None, the inducing points are
        the sample. B may overwrite ``K``.

        penalty: the smallest penalty of later calls of :meth:`weigh`. B is in float32 if rounding errors of B are small
        relative to this penalty. :meth:`weigh` is then twice as fast.

        Raises ValueError if B is not finite.
        """
        self._B, self.reach, self._values = self._R, self._points_reach, None
        if K is None:
            return
        dtype, solve = (np.float32, blas.strsm) if self._single(penalty) else (np.float64, blas.dtrsm)
        K = K if self.pivots is None else K.T[self.pivots].T
        np.fill_diagonal(self._factors, self._diagonal_T)
        T = self._factors.astype(dtype, copy=False)
        with threads_for(K.size * self.rank):
            self._B = solve(1.0, T, np.asarray(K, dtype, order="F"), side=1, overwrite_b=1).T
        if not np.isfinite(self._B).all():
            raise _out_of_range(K.dtype)
        self.reach = float(np.sqrt(np.einsum("is,is->s", self._B, self._B).max()))

    def sample_sums(self, values: Values) -> None:
        """Let later calls of :meth:`weigh` compute a sum over sampled rows, and no longer read a stored matrix.

        Each call of :meth:`weigh` computes the kernel values of the sampled rows again. A later call of :meth:`sample`
        returns to a stored matrix. The attribute ``reach`` does not change.

        values: function that returns the kernel values between a slice of the sampled rows and all inducing points.
        """
        self._B, self._values = None, values

    def _single(self, penalty: float) -> bool:
        return penalty >= MIN_PENALTY * self.size and self.condition <= MAX_CONDITION

    @property
    def noise(self) -> float:
        """Return an estimate of the spectral norm of the rounding error of A'A, the matrix that :meth:`weigh` factors.

        The estimate holds if A'A is computed as a sum over sampled rows (:meth:`sample_sums`) and the weights of these
        rows have the sum 1. In trials, the rounding error was never larger. :meth:`weigh` adds the product of this
        estimate and the sum of the weights to the penalty. If A'A is still not positive definite, weigh adds more.
        """
        return NOISE * float(np.finfo(np.float64).eps) * self.rank * self.size * self.condition

    def spectrum(self, penalty: float, n: int) -> Spectrum:
        """Return two estimates by which :func:`sampled` chooses how many of n rows to sample, and how to use them.

        Sampled rows are used in one of two ways. :meth:`sample` stores a matrix B, which is computed from the kernel
        values of these rows. After :meth:`sample_sums`, each call of :meth:`weigh` computes a sum over these rows.

        By ``noise`` of the result, :func:`sampled` chooses between B and the sum. ``noise`` is the estimated rounding
        error of the sum, divided by the penalty. In two cases, ``noise`` is infinity, so that B is chosen. In the first
        case, B can be in float32, and then takes no more time than the sum. In the second case, the kernel matrix of
        the inducing points was factored with pivots. The matrix is then so ill-conditioned that the rounding error of
        the sum can exceed the estimate.

        By ``dimension`` of the result, :func:`sampled` chooses how many rows to sample. ``dimension`` is the effective
        dimension of the inducing points' kernel matrix. It is computed for at most PROBED evenly spaced points, and for
        every second of these points. From both results, the dimension for all points is extrapolated as a power of the
        number of points. If n times the squared number of points is less than SMALL_WORK, ``dimension`` is not
        computed, but set to infinity.
        """
        noise = np.inf if self._single(penalty) or self.pivots is not None else self.noise / penalty
        q = min(self.rank, PROBED)
        if q < 2 or n * self.rank**2 < SMALL_WORK:
            return Spectrum(noise)
        some = np.linspace(0, self.rank - 1, q).astype(int)  # evenly spaced, since neighbouring points can be similar
        np.fill_diagonal(self._factors, self._diagonal_T)
        T = np.where(np.arange(self.rank)[:, None] <= some, self._factors[:, some], 0.0)
        found = []
        with one_thread():
            K = T.T @ T
            for part in (K[::2, ::2], K):
                values = np.maximum(np.linalg.eigvalsh(part) / len(part), 0.0)
                found.append(max(1.0, float((values / (values + penalty)).sum())))
        return Spectrum(noise, found[1] * (self.rank / q) ** np.log2(max(1.0, found[1] / found[0])))

    def weigh(self, D: Vector, penalty: float) -> None:
        """Compute the Cholesky factor A of A'A = B' D B + (penalty + shift) I, where B = K(S, C) T^-1.

        K(S, C) are the kernel values between s sampled rows S and the m inducing points C. T is the Cholesky factor of
        the inducing points' kernel matrix T'T. The method sets the attribute ``shift``.

        D: weights (s,) of the sampled rows. If no other rows were sampled, S are the inducing points, and s = m.
        penalty: a positive number.

        Raises ValueError if the penalty is too small for A to be computed in float64. After a call of
        :meth:`sample_sums`, also raises ValueError if kernel values exceed the range of their dtype.
        """
        scale, values = np.sqrt(D), self._values
        self.shift = self.noise * float(D.sum()) if values else 0.0
        while True:
            np.fill_diagonal(self._factors, self._diagonal_T)
            if values:
                factors = self._gram_of_sums(values, scale)
            else:
                with threads_for(len(D) * self.rank**2):
                    factors = self._gram_of_points(scale) if self._B is None else self._gram_of_rows(self._B, scale)
            with threads_for(self.rank**3 / 3):
                np.fill_diagonal(factors, factors.diagonal() + (penalty + self.shift))
                if self._factor(factors, lower=True):
                    break
            if not values or self.shift > MOST_SHIFT * penalty:
                raise ValueError(f"penalty={penalty:g} is too small for float64 with these {self.m} inducing points")
            self.shift = max(GROWTH * self.shift, penalty)  # the last shift was below the rounding errors of A'A
        self._factors, self._diagonal_A = factors, factors.diagonal().copy()

    def _gram_of_sums(self, values: Values, scale: Vector) -> Vector:
        """Compute the lower triangle of T^-T G T^-1 in the array ``self._factors`` (r, r), and return the array.

        G is the sum of D_i k_i k_i' over the s sampled rows i. k_i (r,) are the kernel values between row i and the r
        inducing points, D_i is the weight of row i, and ' transposes. T is the upper triangular Cholesky factor of the
        inducing points' kernel matrix T'T. LAPACK's routine sygst multiplies G by T^-T and T^-1. The array keeps the
        entries of T above the diagonal. The diagonal of T is kept in ``self._diagonal_T``.

        values: function that returns the kernel values of a slice of the sampled rows.
        scale: square roots of the weights D_i, (s,).
        """
        factors, G = self._factors, np.zeros((self.rank, self.rank), order="F")
        for first in range(0, len(scale), _SUMMED):
            some = slice(first, first + _SUMMED)
            K = values(some)
            with threads_for(K.size * self.rank):
                G = blas.dsyrk(1.0, K * scale[some, None], beta=1.0, c=G, trans=1, overwrite_c=1)
        if not np.isfinite(G.diagonal()).all():
            raise _out_of_range(K.dtype)
        with threads_for(self.rank**3):
            G, _ = lapack.dsygst(G, factors, overwrite_a=1)
        self._set_lower(G.T)
        return factors

    def _gram_of_points(self, scale: Vector) -> Vector:
        """Compute the lower triangle of T D T' in the array ``self._factors`` (m, m), and return the array.

        D is the diagonal matrix of the weights of the m inducing points. T is the upper triangular Cholesky factor of
        the kernel matrix T'T of these points. The array keeps the entries of T above the diagonal. The diagonal of T is
        kept in ``self._diagonal_T``.

        scale: square roots of the weights of the inducing points, (m,).
        """
        factors = self._factors
        # The upper triangle of ``factors`` keeps T. The transpose of T diag(scale) is written to the lower triangle.
        for done, following in _blocks(self.rank):
            factors[following, done] = factors[done, following].T * scale[following, None]
            corner = factors[done, done]
            factors[done, done] = np.triu(corner, 1) + np.triu(corner).T * scale[done, None]
        linalg.lauum(factors, lower=True, overwrite=True, **self._linalg_options())
        return factors

    def _gram_of_rows(self, B: NDArray[np.floating], scale: Vector) -> Vector:
        """Compute the lower triangle of B D B' in the array ``self._factors`` (r, r), and return the array.

        D is the diagonal matrix of the weights of s sampled rows S. T is the upper triangular Cholesky factor of the
        kernel matrix T'T of r inducing points C. The array keeps the entries of T above the diagonal. The diagonal of T
        is kept in ``self._diagonal_T``.

        B: transpose (r, s) of K(S, C) T^-1, where K(S, C) (s, r) are the kernel values between S and C.
        scale: square roots of the weights of the sampled rows, (s,).
        """
        factors = self._factors
        in_float64 = B.dtype == np.float64
        syrk = blas.dsyrk if in_float64 else blas.ssyrk
        sums = factors if in_float64 else np.zeros(factors.shape, B.dtype, order="F")
        for first in range(0, B.shape[1], _ROWS):
            some = slice(first, first + _ROWS)
            weighed = B[:, some] * scale[some].astype(B.dtype)  # in C order, so its transpose is in Fortran order
            sums = syrk(1.0, weighed.T, beta=float(first > 0), c=sums, trans=1, lower=1, overwrite_c=1)
        if not in_float64:
            self._set_lower(sums)
        return sums if in_float64 else factors

    def _set_lower(self, G: NDArray[np.floating]) -> None:
        """Copy the lower triangle of G (r, r), with G's diagonal, to the array ``self._factors``, block by block."""
        factors = self._factors
        for done, following in _blocks(self.rank):
            factors[following, done] = G[following, done]
            factors[done, done] = np.triu(factors[done, done], 1) + np.tril(G[done, done])

    def alpha(self, u: Vector) -> Vector:
        """Return the coefficients alpha (k, m) of m inducing points for k outputs, given u (k, r).

        r is the rank of the kernel matrix of the m points. T (r, r) is the upper triangular Cholesky factor of the
        kernel matrix of r selected points. For each output, the coefficients a (r,) of these points solve T a = u, with
        u (r,) for the output. The coefficients of the other m - r points are 0.
        """
        found = self._solve(u, self._diagonal_T, lower=0, trans=0)
        if self.pivots is None:
            return found
        alpha = np.zeros((len(u), self.m))
        alpha[:, self.pivots] = found
        return alpha

    def from_alpha(self, g: Vector) -> Vector:
        """Convert a gradient with respect to the coefficients into the gradient with respect to u = T a, (k, r).

        A gradient has one row for each of k outputs. The preconditioner uses r of the m inducing points. T (r, r) is
        the upper triangular Cholesky factor of the kernel matrix of these r points, and a (r,) are their coefficients
        for one output. For each output, the gradient s (r,) with respect to u solves T' s = c. Here T' is the transpose
        of T, and c (r,) are the entries of the output's row of ``g`` that belong to the r points.

        g: gradient with respect to the coefficients of all m inducing points, (k, m).
        """
        return self._solve(g if self.pivots is None else g[:, self.pivots], self._diagonal_T, lower=0, trans=1)

    def u(self, b: Vector) -> Vector:
        """Solve A u = b for each of k outputs, and return u (k, r). Each row of b (k, r) belongs to an output.

        A (r, r) is the upper triangular factor that :meth:`weigh` computed. A'A is near the Hessian of the objective
        with respect to u, so the Hessian with respect to b is near the identity. r is the rank of the inducing points'
        kernel matrix. For an output, u is T a. Here T (r, r) is the Cholesky factor of the kernel matrix of r inducing
        points, and a (r,) are the coefficients of these points.
        """
        return self._solve(b, self._diagonal_A, lower=1, trans=1)

    def from_u(self, g: Vector) -> Vector:
        """Apply A^-T, the inverse of the transpose of A, to each row of the gradient g (k, r), for k outputs.

        g is the gradient of the objective with respect to u. The result is the gradient with respect to b, where
        b = A u for each output. A (r, r) is the upper triangular factor that :meth:`weigh` computed. A'A is near the
        Hessian of the objective with respect to u. r is the rank of the inducing points' kernel matrix.
        """
        return self._solve(g, self._diagonal_A, lower=1, trans=0)

    def of_coefficients(self, alpha: Vector) -> Vector:
        """Return the array u (k, r) for the coefficients ``alpha`` (k, m) of m inducing points and k outputs.

        K (m, m) is the kernel matrix of the inducing points, and r is the rank of K. Row i of u is R alpha_i, where
        alpha_i is row i of ``alpha``. R (r, m) is a factor of K = R'R, up to rounding, where ' transposes. If K was
        factored without pivots, R is the upper triangular Cholesky factor T.
        """
        with threads_for(alpha.size * self.rank):
            if self._R is not None:
                return np.asarray(alpha @ self._R.T)
            np.fill_diagonal(self._factors, self._diagonal_T)
            return np.stack([blas.dtrmv(self._factors, row) for row in alpha])

    def _solve(self, rows: Vector, diagonal: Vector, lower: int, trans: int) -> Vector:
        np.fill_diagonal(self._factors, diagonal)
        with threads_for(rows.size * len(self._factors)):
            if len(rows) == 1:
                found = blas.dtrsv(self._factors, rows[0], lower=lower, trans=trans)[None]
            else:
                found = lapack.dtrtrs(self._factors, rows.T, lower=lower, trans=trans)[0].T
        return np.asarray(found, np.float64)


def _out_of_range(dtype: Any) -> ValueError:
    return ValueError(f"kernel values between rows and inducing points exceed the range of {dtype}: scale X")


def _condition(T: Vector) -> float:
    diagonal = np.abs(T.diagonal())
    return float((diagonal.max() / diagonal.min()) ** 2)


def _blocks(m: int) -> Iterator[tuple[slice, slice]]:
    """Divide the columns of an m x m matrix into blocks.

    Yield for each block the slice of its columns, and the slice of all columns after it.
    """
    for first in range(0, m, _BLOCK):
        end = min(first + _BLOCK, m)
        yield slice(first, end), slice(end, m)


def sampled(
    n: int,
    m: int,
    k: int,
    value_cost: float,
    tol: float,
    quadratic: bool = True,
    tasks: int = 1,
    spectrum: Spectrum | None = None,
) -> tuple[int, bool]:
    """Choose how the preconditioner samples rows of a fit with n rows, m inducing points and k outputs.

    Sampled rows are used by one of two methods. :meth:`Preconditioner.sample` computes a matrix from them once, and
    stores it. After :meth:`Preconditioner.sample_sums`, each call of :meth:`Preconditioner.weigh` computes a sum over
    them. Return the number of sampled rows, and True for :meth:`Preconditioner.sample_sums` or False for
    :meth:`Preconditioner.sample`. The choice has the least estimated time of the preconditioner and the solves
    together. The result (m, False) means that the inducing points are the sample.

    value_cost: cost of computing one kernel value in a pass over the rows, in multiply-adds.
    tol: residual at which a solve ends.
    quadratic: whether the loss is quadratic. If so, a task needs one linear solve.
    tasks: number of tasks that share the sample. A task is a loss with targets, weights and a penalty.
    spectrum: estimates for the inducing points' kernel matrix. With :meth:`Preconditioner.sample_sums`, conjugate
        gradients are assumed to take sqrt(1 + 2 * spectrum.noise) times as many steps as with
        :meth:`Preconditioner.sample`. If ``spectrum`` is None or the loss is not quadratic,
        :meth:`Preconditioner.sample_sums` is not chosen.
    """
    noise, dimension = spectrum or Spectrum()
    value = value_cost + OUTPUT * k
    solves, makes = (tasks, tasks) if quadratic else (SOLVES * tasks, MAKES * tasks)

    def cost(choice: tuple[int, bool]) -> float:
        c, by_sums = choice
        if c == 1:
            return HOST * m**2 / 3 * makes + FEW_SAMPLE_STEPS * n * value * solves
        s = min(c * m, n)
        root = np.sqrt(s / min(m, SPREAD * dimension))
        steps = RESTART_FACTOR * (root + 1) / (root - 1) * np.log(2 / tol) / 2 if c * m < n else 2.0
        if by_sums:
            made, steps = makes * (HOST * (s * m / 2 + m**2) + s * value_cost), steps * np.sqrt(1 + 2 * noise)
        else:
            made = HOST * s * m * (1 + makes) / 2 + s * value_cost
        return float(made + steps * n * value * solves)

    ways = (False, True) if np.isfinite(noise) and quadratic else (False,)
    best, by_sums = min(((c, way) for c in RATIOS for way in ways), key=cost)
    if best == 1:
        return m, False
    return min(n, best * m, n if by_sums else max(m, MAX_B_BYTES // (8 * m))), by_sums
