"""Define kernel functions with parameter values: built-in functions, functions of users, and their sums and products.

:class:`Kernel` is the public class. It evaluates a kernel function K on the host, provides the arguments of OpenCL
kernels, and estimates the rounding errors of K (:meth:`Kernel.rounding`, :meth:`Kernel.evaluation`). :func:`make`
returns a built-in function.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, count
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import arrays
from clsvm.kernels.expression import INVALID, Evaluation, Extent, between, compare, elements, inner_products, summary
from clsvm.kernels.records import BUILTIN, Matrix, Parameter, Spec, distances, user_spec

_TINY, _SMALLEST = float(np.finfo(np.float64).tiny), float(np.finfo(np.float64).smallest_subnormal)
# The float64 error of K is estimated from its float32 error, if the float32 error is at most _DIGITS * max |K|.
_DIGITS = 1e-3
_CELLS = 1 << 18  # the host computes about this many terms e(x_j, y_j) of f(sum_j e(x_j, y_j)) at a time
_SAMPLE = 500  # number of rows on which Kernel.check tests a kernel function
# Kernel.rounding tests angles of x and y with the cosines 1 and 1 - 2 (eps / 2)^s, s in _STEPS: from 1 - eps to -1.
_STEPS = np.linspace(1, 0, 200), np.linspace(1, 0, 1000)  # exponents s: 1000 for K of |x - y| alone, else 200
# Kernel.rounding estimates errors for rows with the squared norms f * N: f from _SIZES, N the largest squared norm.
_SIZES = np.concatenate([[1.0], np.geomspace(1e-6, 0.9, 9)])


class Check(NamedTuple):
    """Report the properties of a kernel matrix K that :meth:`Kernel.check` found on a sample of rows.

    Attributes
    ----------
    rows
        number of rows of the sample.
    symmetric
        whether K is symmetric up to rounding.
    asymmetry
        the largest absolute value in K - K'.
    finite
        whether all values of K are finite.
    smallest_eigenvalue
        the smallest eigenvalue of (K + K') / 2.
    largest_eigenvalue
        the largest eigenvalue of (K + K') / 2.
    positive_semidefinite
        whether K is symmetric and has no negative eigenvalue, up to rounding.
    """

    rows: int
    symmetric: bool
    asymmetry: float
    finite: bool
    smallest_eigenvalue: float
    largest_eigenvalue: float
    positive_semidefinite: bool

    def __str__(self) -> str:
        if not self.finite:
            return f"not finite on {self.rows} rows"
        words = f"on {self.rows} rows: {'' if self.symmetric else 'not '}symmetric (to {self.asymmetry:.1e}), "
        words += f"eigenvalues {self.smallest_eigenvalue:.3g} to {self.largest_eigenvalue:.3g}: "
        return words + ("positive semi-definite" if self.positive_semidefinite else "not positive semi-definite")

    @classmethod
    def of(cls, K: Matrix) -> Check:
        """Return a report on a kernel matrix K (n, n): its symmetry, its eigenvalues, and whether it is finite."""
        if not np.isfinite(K).all():
            return cls(len(K), False, math.inf, False, -math.inf, math.inf, False)
        asymmetry, scale = float(np.abs(K - K.T).max(initial=0.0)), float(np.abs(K).max(initial=0.0))
        spectrum = np.linalg.eigvalsh((K + K.T) / 2) if len(K) else np.zeros(1)
        smallest, largest = float(spectrum[0]), float(spectrum[-1])
        semidefinite = smallest >= -1e-10 * max(abs(largest), abs(smallest))
        symmetric = asymmetry <= 1e-12 * scale
        return cls(len(K), symmetric, asymmetry, True, smallest, largest, symmetric and semidefinite)


@dataclass(frozen=True, init=False, repr=False)
class Kernel:
    """Represent a kernel function K(x, y) with the values of its parameters.

    A kernel is immutable and hashable, and can be pickled. If k and l are kernels, so are ``k + l``, ``k * l``,
    ``k + 1``, ``2 * k`` and ``k ** 2``. In ``k + 1`` the 1 becomes a parameter ``offset``. In ``2 * k`` the 2 becomes a
    parameter ``scale``. If both operands have a parameter of the same name, the right operand's parameter gets the
    suffix ``_2``. :meth:`elementwise` makes kernels of sums over features.

    Parameters
    ----------
    function : str
        Name of a built-in kernel function (``clsvm kernels list``), or an expression. An expression contains dot =
        <x,y>, sqdist = |x - y|^2, xx = <x,x>, yy = <y,y>, parameters and numbers. They are combined by ``+ - * / **``,
        the functions in clsvm.expression.FUNCTIONS, and comparisons in ``where(...)``.
    **params : float or int
        Values of the parameters. Parameters of a built-in function that are not given have their defaults.

    Raises
    ------
    ValueError
        If the text is outside the expression language, a parameter is unknown or has no value, or a value is outside
        its limits. The message names the token and its column.
    TypeError
        If an argument has a wrong type.

    Examples
    --------
    >>> from clsvm import Kernel
    >>> Kernel("rbf", gamma=0.1)
    Kernel('rbf', gamma=0.1)
    >>> kernel = Kernel("exp(-gamma * sqdist) + c * dot", gamma=0.1, c=0.5)
    """

    spec: Spec
    values: tuple[float | int, ...]

    def __init__(self, function: str | Spec, /, **params: Any) -> None:
        if isinstance(function, Spec):
            spec = function
        else:
            spec = BUILTIN[function] if function in BUILTIN else user_spec(function, "", params)
        known = [p.name for p in spec.parameters]
        if unknown := ", ".join(sorted(params.keys() - set(known))):
            words = f"kernel {spec.name or spec.formula} has no parameter {unknown}"
            raise ValueError(f"{words} (it has {', '.join(known) or 'none'})")
        values = tuple(p.check(params.get(p.name, p.default)) for p in spec.parameters)
        object.__setattr__(self, "spec", spec)
        object.__setattr__(self, "values", values)
        self._check_numbers()

    @classmethod
    def elementwise(cls, element: str, function: str = "s", /, *, nonnegative: Any = False, **params: Any) -> Self:
        """Return the kernel K(x, y) = f(s), where s is the sum over all features j of e(x_j, y_j).

        Parameters
        ----------
        element : str
            Expression e in x and y. An entry that a sparse row does not store counts as 0.
        function : str, default="s"
            Expression f in s.
        nonnegative : bool, default=False
            Whether rows with negative entries are refused, as by the built-in chi2.
        **params : float or int
            Values of the parameters.

        Returns
        -------
        Kernel
            The kernel K. For example, ("abs(x - y)", "exp(-gamma * s)", gamma=1.0) gives the laplacian kernel.

        Raises
        ------
        ValueError, TypeError
            If an argument is invalid, as for the constructor. ValueError also if e(0, 0) is not finite."""
        if not isinstance(nonnegative, bool):
            raise TypeError(f"nonnegative must be True or False, got {nonnegative!r}")
        return cls(replace(user_spec(function, element, params), nonnegative=nonnegative), **params)

    def _check_numbers(self) -> None:
        """Raise ValueError unless all numbers that OpenCL code gets for the kernel function K, such as -gamma, are
        finite. If K(x, y) = f(sum_j e(x_j, y_j)), raise ValueError also if e(0, 0) is not finite."""
        for number in self.numbers:
            if not math.isfinite(number):
                given = ", ".join(f"{name}={value:g}" for name, value in self.params.items())
                part = f"a part of {self.spec.formula!r} that depends only on parameters"
                raise ValueError(f"for {given}, {part} has the value {number}, expected a finite value")
        if self.spec.element and not np.isfinite(at_zero := self._element(0.0, 0.0)):
            words = f"{self.spec.element.text!r} is {at_zero} at x = y = 0, expected a finite value"
            raise ValueError(f"{words}; to set the value there, use where, as in where(x + y > 0, 1 / (x + y), 0)")

    @property
    def name(self) -> str:
        """Return the name of the built-in function, or "expression"."""
        return self.spec.name or "expression"

    @property
    def params(self) -> dict[str, float | int]:
        return dict(zip((p.name for p in self.spec.parameters), self.values, strict=True))

    @cached_property
    def numbers(self) -> tuple[float | int, ...]:
        """Return the numbers that OpenCL kernels get as arguments, such as -gamma in exp(-gamma * sqdist)."""
        with np.errstate(all="ignore"):
            return tuple(argument.value(self.params) for argument in self.spec.arguments)

    def scalars(self, dtype: str) -> tuple[np.generic, ...]:
        """Return the numbers that OpenCL kernels get as arguments to compute K, such as -gamma, as NumPy scalars.
        The values of integer parameters, such as a degree, are int32. All other numbers have the type ``dtype``."""
        types = (np.int32 if argument.type == "int" else np.dtype(dtype).type for argument in self.spec.arguments)
        return tuple(made(value) for made, value in zip(types, self.numbers, strict=True))

    def beyond(self, dtype: str) -> str:
        """Return a message that names a number too large or too small for ``dtype``, or "" if there is none.

        The numbers are the parameters, the arguments of OpenCL kernels (:attr:`numbers`) and the constants in the
        expressions. Raises ValueError for an integer parameter of 2^31 or more."""
        tiny, most = float(np.finfo(dtype).tiny), float(np.finfo(dtype).max)
        for name, value in self.params.items():
            if isinstance(value, float) and value and not tiny <= abs(value) <= most:
                return f"{name}={value:g} is outside the range {tiny:g} to {most:g}"
        for number in self.numbers:
            if isinstance(number, int) and abs(number) >= 2**31:
                name = next(name for name, value in self.params.items() if value == number)
                raise ValueError(f"{name} must be less than {2**31}, got {number}")
            if abs(number) > most:
                return f"a number of {self!r}, {number:g}, is too large"
        for number in self.spec.constants:
            if number and not abs(number) >= tiny:
                return f"the constant {number:g} of {self!r} is too small"
        return ""

    def get_params(self, deep: bool = True) -> dict[str, float | int]:
        """Return the parameters. scikit-learn calls this to give estimators parameters like ``kernel__gamma``."""
        return self.params

    def set_params(self, /, **params: Any) -> Kernel:
        """Return a kernel with the given parameters changed. Raises ValueError for unknown names."""
        return Kernel(self.spec, **{**self.params, **params})

    def __sklearn_clone__(self) -> Self:
        return self  # a kernel is immutable

    def __call__(self, X: Any, Y: Any = None) -> Matrix:
        """Compute the kernel matrix on the host in float64.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Rows of the result.
        Y : array or sparse matrix of shape (m, d), default=None
            Columns of the result. None means X.

        Returns
        -------
        ndarray of shape (n, m)
            The values K(x_i, y_j): by a NumPy function for most built-in kernels, else from the expression.

        Raises
        ------
        ValueError
            If the kernel function is for nonnegative rows and an entry is negative."""
        X, Y, empty = arrays.both_dense(X, X if Y is None else Y)
        self.check_domain(X)
        self.check_domain(Y)
        if self.spec.oracle:  # a NumPy function, whose value stays the same without the columns that are 0 in X and Y
            with np.errstate(all="ignore"):
                return self.spec.oracle(X, Y, **self.params)
        return self.evaluate(X, Y, empty)

    def evaluate(self, X: Matrix, Y: Matrix, empty: int = 0) -> Matrix:
        """Compute the kernel matrix (n, m) of dense float64 X (n, d) and Y (m, d) from the function's expressions.

        ``empty`` is the number of columns that were left out because they are 0 in X and in Y. If the kernel function
        is f(sum_j e(x_j, y_j)), each column left out adds e(0, 0) to the sum."""
        names, values = self.spec.expression.names, dict[str, Any](self.params)
        if self.spec.element:
            values["s"] = self._sums(X, Y) + (empty * self._element(0.0, 0.0) if empty else 0.0)
        else:
            values |= {"xx": np.square(X).sum(axis=1)[:, None], "yy": np.square(Y).sum(axis=1)[None, :]}
            values["dot"] = X @ Y.T if "dot" in names else None
            values["sqdist"] = distances(X, Y, "sqeuclidean") if "sqdist" in names else None
        with np.errstate(all="ignore"):
            value = np.asarray(self.spec.expression.evaluate(values), np.float64)
        whole = len(X), len(Y)
        return value if value.shape == whole else np.broadcast_to(value, whole).copy()

    @property
    def of_entries(self) -> bool:
        """Return whether the kernel matrix of X and Y stays the same if columns that are 0 in both are removed."""
        return not self.spec.element or self._element(0.0, 0.0) == 0

    def _element(self, x: Any, y: Any) -> Any:
        assert self.spec.element
        with np.errstate(all="ignore"):
            return self.spec.element.evaluate({"x": x, "y": y, **self.params})

    def _sums(self, X: Matrix, Y: Matrix) -> Matrix:
        out = np.empty((len(X), len(Y)), X.dtype)
        step = max(1, _CELLS // max(1, Y.size))
        for start in range(0, len(X), step):
            block = X[start : start + step, None, :]
            terms = np.broadcast_to(self._element(block, Y[None]), (len(block), *Y.shape))
            out[start : start + step] = terms.sum(axis=2)
        return out

    def check_domain(self, X: Any) -> None:
        """Raise ValueError if the kernel function is for nonnegative rows and X (n, d) has a negative entry."""
        if self.spec.nonnegative:
            data = X.data if sp.issparse(X) else X
            least = data.min(initial=0.0)
            if least < 0:
                raise ValueError(f"kernel {self.name} is for rows without negative values, got {least:g}")

    def check(self, X: Any, rows: int = _SAMPLE, seed: int = 0) -> Check:
        """Test whether the function is a kernel: symmetry, finite values and eigenvalues of K on a sample of rows.

        A sample can show that a function is not positive semi-definite, but cannot prove that it is.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Rows from which the sample is drawn.
        rows : int, default=500
            Number of rows of the sample.
        seed : int, default=0
            Seed of the sample.

        Returns
        -------
        Check
            The properties of K. Eigenvalues above -1e-10 times the largest absolute eigenvalue count as nonnegative.

        Raises
        ------
        ValueError
            If X is not a matrix of numbers, or the sample has a negative entry and the kernel is for nonnegative rows.
        """
        X = arrays.checked(X)
        X = X if sp.issparse(X) else np.asarray(X, np.float64)
        if X.ndim != 2:
            raise ValueError(f"X must be rows of features, got the shape {X.shape}")
        n = X.shape[0]
        picked = np.sort(np.random.default_rng(seed).choice(n, min(rows, n), replace=False))
        return Check.of(self(X[picked]))

    def sizes(self, X: Any) -> NDArray[np.float64]:
        """Return the size of each row (n,), from which :meth:`rounding` derives the rounding errors of K.

        If K(x, y) = f(sum_j e(x_j, y_j)), the size of x is 2 * max(|sum_j e(0, x_j)|, |sum_j e(x_j, x_j)|). Otherwise
        the size is the squared norm of x. If x is nonzero, a squared norm that underflows to 0 is replaced by the
        smallest positive float64."""
        with np.errstate(over="ignore", under="ignore"):
            if not self.spec.element:
                if sp.issparse(X):
                    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
                    found = np.bincount(rows, np.square(X.data, dtype=np.float64), X.shape[0])
                    found = found.astype(np.float64, copy=False)  # bincount returns ints if there are no entries
                    nonzero = np.bincount(rows, X.data != 0, X.shape[0]) > 0
                else:
                    found = np.asarray(np.square(X, dtype=np.float64).sum(axis=1))
                    nonzero = (X != 0).any(axis=1)
                return np.maximum(found, _SMALLEST, out=found, where=(found < _TINY) & nonzero)
            x, _, empty = arrays.both_dense(X, X)
            constant = empty * self._element(0.0, 0.0) if empty else 0.0
            sums = [np.abs(np.broadcast_to(self._element(a, x), x.shape).sum(axis=1) + constant) for a in (0.0, x)]
        return np.asarray(2 * np.maximum(*sums))

    @lru_cache(maxsize=64)  # noqa: B019  a kernel is immutable, and fits to the same rows repeat the call
    def rounding(
        self, size: float, eps: float, least: float | None = None, floor: float = 0.0, terms: int = 0
    ) -> float:
        """Return an estimate r of rounding errors: K(x, y) has an error of at most r * ``eps``.

        ``eps`` is the relative rounding error of the arithmetic. ``size`` is the largest size of a row. ``least`` is a
        lower limit of the nonzero sizes, or None. Sizes are squared norms for most kernel functions (:meth:`sizes`).
        K depends on inner products <a,b> of the rows x and y, or on one sum S = sum_j e(x_j, y_j) over the features j.
        Each of these inputs has ``terms`` summands. Let m = 1 + 0.75 * sqrt(terms). The expected error of <a,b> is
        m * ``eps`` * |a| |b| + ``floor``. The expected error of S is max(4, m) * ``eps`` * ``size`` + ``floor``. The
        number ``floor`` is an error from underflow.
        K is computed on a grid of possible inputs. At each grid point, one input at a time is changed by its
        expected error, and c is the sum of the absolute changes of K. The estimate at the point is the larger of
        c / ``eps`` and min(2, m) * |K|, where the second number is for the rounding of K itself. r is the largest
        estimate of all grid points. If K is finite at no grid point, r is inf."""
        many = 1 + 0.75 * math.sqrt(terms)
        used = self.spec.expression.names & {"xx", "yy", "dot", "sqdist"}
        # A function of |x - y| alone has its largest errors for rows of the largest norm, so no other norm is tested.
        distance_only = used == {"sqdist"}
        near = np.concatenate([[0.0], 2 * (eps / 2) ** _STEPS[distance_only]])
        if self.spec.element:
            grid = np.concatenate([near, -near]) * size / 2
            grid = grid[(grid >= min(0.0, self._sign)) if self._sign >= 0 else (grid <= 0)]
            value = self.at(s=grid)
            shifted = [self.at(s=grid + (max(4, many) * eps * size + floor) * (self._sign or 1))]
        else:
            norms = _SIZES[: 1 if distance_only else None] * size
            if least and least < norms.min() and not distance_only:
                norms = np.concatenate([norms, np.geomspace(least, norms.min(), 5)[:-1]])
            i, j = np.triu_indices(len(norms))  # pairs i <= j suffice, because K is symmetric
            xx, yy = norms[i, None], norms[j, None]
            # If xx = <x,x> equals yy = <y,y>, |x| |y| is xx without rounding, and xx + yy - 2 |x| |y| is exactly 0.
            both = np.where(xx == yy, xx, np.sqrt(xx) * np.sqrt(yy))
            dot = both * (1 - near)
            value = self.at(xx, yy, dot)
            shifted = [self.at(xx, yy, dot - many * eps * both - floor)]
            if used & {"xx", "yy"}:
                shifted += [self.at(xx * (1 + many * eps), yy, dot), self.at(xx, yy * (1 + many * eps), dot)]
            if floor and used & {"xx", "yy", "sqdist"}:
                lost = np.maximum(norms - floor, 0.0)
                shifted += [self.at(lost[i, None], yy, dot), self.at(xx, lost[j, None], dot)]
        with np.errstate(all="ignore"):
            found = np.maximum(min(2.0, many) * np.abs(value), sum(np.abs(moved - value) for moved in shifted) / eps)
        found = found[~np.isnan(found)]
        return float(found.max()) if found.size else math.inf

    @lru_cache(maxsize=64)  # noqa: B019  a kernel is immutable, and fits to the same rows repeat the call
    def evaluation(self, rows: Extent, others: Extent, dtype: str, d: int) -> Evaluation:
        """Return the largest errors of K(x, y) that arise when the expressions of K are evaluated in ``dtype``.

        ``rows`` has the largest and smallest nonzero size of rows x, and their largest and smallest nonzero absolute
        entry. ``others`` has the corresponding four numbers for rows y. Rows have d features. The size of a row is
        usually its squared norm. K is evaluated at a few sizes and entries between the limits, with inner products and
        entries rounded to ``dtype``. Errors of computing inner products are estimated by :meth:`rounding` instead."""
        if dtype == "float64":
            single = self.evaluation(rows, others, "float32", d)
            # Without overflow and underflow, the float64 error is the float32 error times the ratio of the two eps.
            if not single.out_of_range and single.error <= _DIGITS * single.largest:
                return single._replace(error=single.error * float(np.finfo(np.float64).eps / np.finfo(np.float32).eps))
        if dtype == "float32":
            found = self._evaluation(rows, others, dtype, d, np.float64)
            if not found.out_of_range:
                return found
        return self._evaluation(rows, others, dtype, d, np.longdouble)

    def _evaluation(self, rows: Extent, others: Extent, dtype: str, d: int, wide: type) -> Evaluation:
        """Return the largest errors of K in ``dtype``. Values computed in the wider type ``wide`` count as exact."""
        expression = self.spec.expression.tree
        if not self.spec.element:
            given = {**inner_products(rows, others, wide), **self.params}
            return summary(*compare(expression, given, dtype))
        given = {**elements(rows, others, (1,) if self.spec.nonnegative else (1, -1), wide), **self.params}
        terms = summary(*compare(self.spec.element.tree, given, dtype))
        sums = between(min(rows.least, others.least) / 2, max(rows.largest, others.largest) / 2, wide)
        sums = np.concatenate([sums * sign for sign in ((self._sign,) if self._sign else (1, -1))] + [[0.0]])
        whole = summary(*compare(expression, {"s": sums, **self.params}, dtype))
        eps = float(np.finfo(dtype).eps)
        value, least = self.at(s=np.asarray(sums, np.float64)), 8 * eps * terms.largest
        entries = max(terms.error, self._entry_error(max(rows.high, others.high), eps))

        def moved(error: float) -> float:
            """Return the largest change of K = f(s), among several sums s of d terms, if each term is too large by
            ``error``, or each term is too small by ``error``. If ``error`` is at most 8 eps times the largest term,
            return 0, because :meth:`rounding` estimates such errors. Here eps is the relative rounding error. If
            ``error`` is INVALID, which stands for inf or nan, return INVALID."""
            if error >= INVALID or error <= least:
                return INVALID if error > least else 0.0
            change = [np.abs(self.at(s=np.asarray(sums + sign * d * error, np.float64)) - value) for sign in (1, -1)]
            return min(INVALID, float(np.nan_to_num(np.maximum(*change), nan=0.0, posinf=INVALID).max()))

        error, outside = moved(entries), moved(terms.outside)
        errors = max(whole.error, error), max(whole.outside, outside)
        return Evaluation(whole.largest, *errors, whole.out_of_range or terms.out_of_range)

    def _entry_error(self, high: float, eps: float) -> float:
        """Return an estimate of the error of a term e(x_j, y_j) if x_j has the relative rounding error ``eps``.
        K is f(sum_j e(x_j, y_j)), and ``high`` is the largest absolute entry of the rows. The estimate is the largest
        change of e(x_j, y_j) when x_j changes from ``high`` to high * (1 - eps), for several numbers y_j. The numbers
        y_j lie between -high and high, or between 0 and high if K is for nonnegative rows."""
        farthest = 1 if self.spec.nonnegative else 2
        y = high * (1 - farthest * np.concatenate([[0.0], eps ** np.linspace(1, 0, 40)]))
        change = np.abs(self._element(high * (1 - eps), y) - self._element(high, y))
        return float(np.nan_to_num(change, nan=0.0, posinf=0.0).max(initial=0.0))

    def at(self, xx: Any = 0.0, yy: Any = 0.0, dot: Any = 0.0, s: Any = 0.0) -> Matrix:
        """Return K(x, y), computed from the numbers on which it depends. Arrays broadcast.

        xx, yy, dot: the squared norms <x,x> and <y,y> and the inner product <x,y>, for most kernel functions.
        s: the sum of e(x_j, y_j) over all features j, for a kernel function f(sum_j e(x_j, y_j)) such as laplacian."""
        values = {"xx": xx, "yy": yy, "dot": dot, "sqdist": np.maximum(xx + yy - 2 * dot, 0), "s": s, **self.params}
        with np.errstate(all="ignore"):
            return np.asarray(self.spec.expression.evaluate(values), np.float64)

    @cached_property
    def _sign(self) -> int:
        """Return the sign of the terms e(x_j, y_j) if K = f(sum_j e(x_j, y_j)). The sign is 1 if no term is negative,
        and -1 if no term is positive. It is 0 if both signs occur. Several entries x_j and y_j are tried."""
        axis = np.geomspace(1e-3, 1e3, 13)
        axis = np.concatenate([[0.0], axis] if self.spec.nonnegative else [-axis, [0.0], axis])
        terms = np.asarray(self._element(axis[:, None], axis[None, :]))
        return 1 if (terms >= 0).all() else -1 if (terms <= 0).all() else 0

    def __add__(self, other: Any) -> Kernel:
        return self._composed("+", other, "offset")

    def __mul__(self, other: Any) -> Kernel:
        return self._composed("*", other, "scale")

    __radd__, __rmul__ = __add__, __mul__

    def __pow__(self, exponent: Any) -> Kernel:
        if isinstance(exponent, bool) or not isinstance(exponent, Integral) or exponent < 1:
            raise ValueError(f"a kernel's power must be a whole number, 1 or more, got {exponent!r}")
        return self._made(f"({self.spec.text}) ** {int(exponent)}", self._parameters())

    def _composed(self, operator: str, other: Any, number: str) -> Kernel:
        """Return the kernel ``self operator other``, where ``operator`` is "+" or "*". If ``other`` is a number, it
        becomes the value of a new parameter. The argument ``number`` is the parameter's name, such as "scale"."""
        if isinstance(other, Real) and not isinstance(other, bool):  # type: ignore[unreachable]
            if operator == "+" and other == 0:
                return self  # Python's sum() of kernels begins with 0 + the first kernel
            name = _unused_name(number, self.params)
            text = f"{name} {operator} ({self.spec.text})"
            return self._made(text, (*self._parameters(), Parameter(name, Parameter(name, 1.0).check(other))))
        if not isinstance(other, Kernel):
            return NotImplemented
        if self.spec.element or other.spec.element:
            raise ValueError(f"an element-wise kernel combines only with a number, got {self!r} and {other!r}")
        new: dict[str, str] = {}
        for name in (name for name in other.params if name in self.params):
            new[name] = _unused_name(name, {*self.params, *other.params, *new.values()})
        theirs = tuple(replace(p, name=new.get(p.name, p.name)) for p in other._parameters())
        tree = ast.parse(other.spec.text, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = new.get(node.id, node.id)
        text = f"({self.spec.text}) {operator} ({ast.unparse(tree)})"
        return self._made(text, (*self._parameters(), *theirs))

    def _parameters(self) -> tuple[Parameter, ...]:
        """Return declarations of this kernel's parameters. The default of each parameter is the value that it has in
        this kernel. The declarations have no lower limits."""
        pairs = zip(self.spec.parameters, self.values, strict=True)
        return tuple(Parameter(p.name, value, integer=p.integer) for p, value in pairs)

    def _made(self, text: str, parameters: tuple[Parameter, ...]) -> Kernel:
        text = ast.unparse(ast.parse(text, mode="eval"))  # removes redundant brackets
        return Kernel(Spec("", parameters, text, self.spec.element_text, nonnegative=self.spec.nonnegative))

    def __repr__(self) -> str:
        spec, params = self.spec, "".join(f", {name}={value!r}" for name, value in self.params.items())
        if spec.element_text and not spec.name:
            params = ", nonnegative=True" * spec.nonnegative + params
            return f"Kernel.elementwise({spec.element_text!r}, {spec.text!r}{params})"
        return f"Kernel({(spec.name or spec.text)!r}{params})"

    def record(self) -> dict[str, Any]:
        """Return a dictionary for JSON and model files, from which :meth:`from_record` makes the kernel again."""
        spec = self.spec
        return {
            "name": spec.name,
            "expression": spec.text,
            "element": spec.element_text,
            "params": self.params,
            "integers": [p.name for p in spec.parameters if p.integer],
            "nonnegative": spec.nonnegative,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Kernel:
        """Return the kernel of a dictionary that :meth:`record` returned, with the checks of the constructor.

        Raises ValueError or TypeError if the dictionary is incomplete, an expression is not valid, or the entries
        contradict each other. An example is a built-in name with the expression of another function."""
        try:
            name, text, element, params = (record[key] for key in ("name", "expression", "element", "params"))
            if name:
                kernel = make(name, **params)
            elif element:
                kernel = cls.elementwise(element, text, nonnegative=record["nonnegative"], **params)
            else:
                kernel = cls(text, **params)
        except KeyError as error:
            raise ValueError(f"a saved kernel's dictionary lacks the key {error}, got {str(record)[:80]!r}") from None
        if kernel.record() != record:
            words = f"a saved kernel's dictionary must equal the record() of {kernel!r}, the kernel that it describes"
            raise ValueError(f"{words}, got {str(record)[:200]}")
        return kernel

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.record(),)


def _unused_name(name: str, taken: Any) -> str:
    """Return the first of ``name``, name_2, name_3, ... that is not in ``taken``."""
    return next(n for n in chain([name], (f"{name}_{i}" for i in count(2))) if n not in taken)


def _restored(record: Mapping[str, Any]) -> Kernel:
    return Kernel.from_record(record)


def underflow(dtype: str, d: int) -> float:
    """Return the largest error in an inner product of d terms of ``dtype`` if each subnormal term is flushed to 0."""
    return d * float(np.finfo(dtype).tiny)


@dataclass(frozen=True)
class Precomputed:
    """Mark a matrix X that has kernel values in place of features: entry j of row x is K(x, j-th training row)."""

    name: ClassVar[str] = "precomputed"


PRECOMPUTED = Precomputed()


def make(name: str, **params: Any) -> Kernel:
    """Return the built-in kernel function ``name``. Parameters that are not given have their defaults.

    Raises ValueError for an unknown name, an unknown parameter or a value outside its limits. Raises TypeError for a
    value of a wrong type."""
    if not isinstance(name, str) or name not in BUILTIN:
        raise ValueError(f"unknown kernel {name!r}; expected one of {', '.join(BUILTIN)}, or a Kernel")
    return Kernel(BUILTIN[name], **params)
