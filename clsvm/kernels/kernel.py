"""Kernel functions with their numbers: built-ins by name, a user's own by one expression, sums and products of both."""

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
from scipy.spatial.distance import cdist

from clsvm import arrays
from clsvm.kernels.expression import BROKEN, Evaluation, Extent, between, elements, evaluated, inner_products, summary
from clsvm.kernels.records import BUILTIN, Matrix, Parameter, Spec, own

_TINY, _SMALLEST = float(np.finfo(np.float64).tiny), float(np.finfo(np.float64).smallest_subnormal)
_DIGITS = 1e-3  # share of the largest value up to which errors in float32 are in proportion to its eps
_CELLS = 1 << 18  # of a block of the host's evaluation
_SAMPLE = 500  # rows that check looks at
_STEPS = np.linspace(1, 0, 200), np.linspace(1, 0, 1000)  # of a grid that looks for rounding: over two sizes, over one
_SIZES = np.concatenate([[1.0], np.geomspace(1e-6, 0.9, 9)])  # of that grid


class Check(NamedTuple):
    """What :meth:`Kernel.check` found on ``rows`` rows: |K - K'| at most ``asymmetry``; eigenvalues of (K + K') / 2."""

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
        """Return the check of kernel values K (n, n)."""
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
    """A kernel function with its parameters' values; immutable, hashable, picklable.

    Kernel("rbf", gamma=0.1): a built-in (a name of BUILTIN); parameters that are not given have their defaults.
    Kernel("exp(-gamma * sqdist) + c * dot", gamma=0.1, c=0.5): any expression over dot, sqdist, xx, yy, its parameters,
    numbers, + - * / **, comparisons in where(...), and clsvm.expression.FUNCTIONS. See also :meth:`elementwise`.

    ``k1 + k2``, ``k1 * k2``, ``2 * k``, ``k + 1`` and ``k ** 2`` are kernels again: numbers become parameters
    (``scale``, ``offset``), a name that both sides have gets the suffix ``_2`` on the right.
    Raises ValueError (naming token and column) or TypeError for what is not part of the language.
    """

    spec: Spec
    values: tuple[float | int, ...]

    def __init__(self, function: str | Spec, /, **params: Any) -> None:
        if isinstance(function, Spec):
            spec = function
        else:
            spec = BUILTIN[function] if function in BUILTIN else own(function, "", params)
        unknown = params.keys() - {p.name for p in spec.parameters}
        if unknown:
            raise ValueError(f"kernel {spec.name or spec.formula} has no parameter {', '.join(sorted(unknown))}")
        values = tuple(p.check(params.get(p.name, p.default)) for p in spec.parameters)
        object.__setattr__(self, "spec", spec)
        object.__setattr__(self, "values", values)
        self._check_numbers()

    @classmethod
    def elementwise(cls, element: str, function: str = "s", /, *, nonnegative: Any = False, **params: Any) -> Self:
        """Return K(x, y) = function(s), s the sum over the features of element(x, y).

        Kernel.elementwise("abs(x - y)", "exp(-gamma * s)", gamma=1.0) is the laplacian kernel. In sparse rows a missing
        entry is 0 and counts as such; nonnegative: rows with negative values are refused, as the built-in chi2 does.
        Raises as the constructor does, also where element(0, 0) is not finite.
        """
        if not isinstance(nonnegative, bool):
            raise TypeError(f"nonnegative must be True or False, got {nonnegative!r}")
        return cls(replace(own(function, element, params), nonnegative=nonnegative), **params)

    def _check_numbers(self) -> None:
        """Raise ValueError where parameters make a subtree infinite (1 / c at c = 0): on the device it would be NaN."""
        for argument, number in zip(self.spec.arguments, self.numbers, strict=True):
            if not math.isfinite(number):
                given = ", ".join(f"{name}={value:g}" for name, value in self.params.items())
                raise ValueError(f"with {given} a number of {self.spec.formula!r} ({argument.name}) is {number}")
        if self.spec.element and not np.isfinite(at_zero := self._element(0.0, 0.0)):
            text = self.spec.element.text
            raise ValueError(f"{text!r} is {at_zero} at x = y = 0, where padding needs a number; use where(...)")

    @property
    def name(self) -> str:
        """Return the built-in's name, or "expression"."""
        return self.spec.name or "expression"

    @property
    def params(self) -> dict[str, float | int]:
        return dict(zip((p.name for p in self.spec.parameters), self.values, strict=True))

    @cached_property
    def numbers(self) -> tuple[float | int, ...]:
        """Return the values of ``spec.arguments``, computed in float64."""
        with np.errstate(all="ignore"):
            return tuple(argument.value(self.params) for argument in self.spec.arguments)

    def scalars(self, dtype: str) -> tuple[np.generic, ...]:
        """Return the numbers as arguments of kernels whose values are of ``dtype``."""
        types = (np.int32 if argument.type == "int" else np.dtype(dtype).type for argument in self.spec.arguments)
        return tuple(made(value) for made, value in zip(types, self.numbers, strict=True))

    def beyond(self, dtype: str) -> str:
        """Return which of its numbers kernel values in ``dtype`` cannot have, in words; "" where all is well.

        Raises ValueError for a whole number that no dtype helps.
        """
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
        """Return the parameters, for scikit-learn: an estimator then has ``kernel__gamma`` and so on."""
        return self.params

    def set_params(self, /, **params: Any) -> Kernel:
        """Return a kernel with some parameters changed; this one stays. Raises ValueError for unknown names."""
        unknown = params.keys() - self.params.keys()
        if unknown:
            known = ", ".join(self.params) or "none"
            raise ValueError(f"{self!r} has no parameter {', '.join(sorted(unknown))} (it has {known})")
        return Kernel(self.spec, **{**self.params, **params})

    def __sklearn_clone__(self) -> Self:
        return self  # nothing in it changes

    def __call__(self, X: Any, Y: Any = None) -> Matrix:
        """Return K (n, m) in float64, from the host: X (n, d), Y (m, d), dense or sparse; Y=None is X.

        The oracle has it if there is one, else the expressions. Raises ValueError for negative values where the kernel
        function has none.
        """
        X, Y, empty = arrays.both_dense(X, X if Y is None else Y)
        self.check_domain(X)
        self.check_domain(Y)
        if self.spec.oracle:  # (of two zeros every element of theirs is 0)
            with np.errstate(all="ignore"):
                return self.spec.oracle(X, Y, **self.params)
        return self.evaluate(X, Y, empty)

    def evaluate(self, X: Matrix, Y: Matrix, empty: int = 0) -> Matrix:
        """Return K (n, m) by the expressions, X (n, d) and Y (m, d) dense float64 without so many columns of zeros."""
        names, values = self.spec.expression.names, dict[str, Any](self.params)
        if self.spec.element:
            values["s"] = self._sums(X, Y) + (empty * self._element(0.0, 0.0) if empty else 0.0)
        else:
            values |= {"xx": np.square(X).sum(axis=1)[:, None], "yy": np.square(Y).sum(axis=1)[None, :]}
            values["dot"] = X @ Y.T if "dot" in names else None
            values["sqdist"] = cdist(X, Y, "sqeuclidean") if "sqdist" in names else None
        with np.errstate(all="ignore"):
            value = self.spec.expression.evaluate(values)
        return np.array(np.broadcast_to(value, (len(X), len(Y))), np.float64)

    @property
    def of_entries(self) -> bool:
        """Return whether columns of zeros change no value."""
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
        """Raise ValueError where X (n, d) has negative values and the kernel function is not made for them."""
        if self.spec.nonnegative:
            data = X.data if sp.issparse(X) else X
            least = data.min(initial=0.0)
            if least < 0:
                raise ValueError(f"kernel {self.name} is for rows without negative values, got {least:g}")

    def check(self, X: Any, rows: int = _SAMPLE, seed: int = 0) -> Check:
        """Look at symmetry, finite values and eigenvalues of K in float64 on ``rows`` of X (n, d), drawn by ``seed``.

        Positive semi-definite to rounding, 1e-10 times the largest eigenvalue; on a sample, which can show that a
        function is not a kernel but never that it is. Raises ValueError for what is not rows of features.
        """
        X = arrays.checked(X)
        X = X if sp.issparse(X) else np.asarray(X, np.float64)
        if X.ndim != 2:
            raise ValueError(f"X must be rows of features, got the shape {X.shape}")
        n = X.shape[0]
        picked = np.sort(np.random.default_rng(seed).choice(n, min(rows, n), replace=False))
        return Check.of(self(X[picked]))

    def sizes(self, X: Any) -> NDArray[np.float64]:
        """Return the largest size that an inner product or an element-wise sum of each row can have.

        A row (of X (n, d), dense or sparse) that is not zero has a size above 0, however small its entries are.
        """
        with np.errstate(over="ignore", under="ignore"):
            if not self.spec.element:
                if sp.issparse(X):
                    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
                    found = np.bincount(rows, np.square(X.data, dtype=np.float64), X.shape[0])
                    found = found.astype(np.float64, copy=False)  # (of no entries it counts in ints)
                    there = np.bincount(rows, X.data != 0, X.shape[0]) > 0
                else:
                    found = np.asarray(np.square(X, dtype=np.float64).sum(axis=1))
                    there = (X != 0).any(axis=1)
                return np.maximum(found, _SMALLEST, out=found, where=(found < _TINY) & there)
            x, _, empty = arrays.both_dense(X, X)
            rest = empty * self._element(0.0, 0.0) if empty else 0.0
            sums = [np.abs(np.broadcast_to(self._element(a, x), x.shape).sum(axis=1) + rest) for a in (0.0, x)]
        return np.asarray(2 * np.maximum(*sums))

    @lru_cache(maxsize=64)  # noqa: B019  (nothing in a kernel changes; fits to the same rows ask the same)
    def rounding(
        self, size: float, eps: float, least: float | None = None, floor: float = 0.0, terms: int = 0
    ) -> float:
        """Return the largest rounding error of K(x, y) in units of ``eps``, for rows of that size or smaller ones.

        The value itself has one (with terms twice: it takes several operations), and so have its arguments: <x,y>,
        <x,x> and <y,y> are off by eps times the norms that they are of, |x-y|^2 by twice, s by four times eps * size.
        Beside that they are off by ``floor``, which is what can be lost of an inner product where its terms are too
        small for the dtype (:func:`underflow`); least: the smallest size but 0 of a row, where that counts. terms: how
        many a sum has, where its own roundings shall count: they add up as the square root does, unless most terms are
        alike. Looked for on a grid. Infinite where K is finite nowhere.
        """
        many = 1 + 0.75 * math.sqrt(terms)
        used = self.spec.expression.names & {"xx", "yy", "dot", "sqdist"}
        alone = used == {"sqdist"}  # two rows of the largest norm have every distance, and the largest errors
        near = np.concatenate([[0.0], 2 * (eps / 2) ** _STEPS[alone]])
        if self.spec.element:
            grid = np.concatenate([near, -near]) * size / 2
            grid = grid[(grid >= min(0.0, self._sign)) if self._sign >= 0 else (grid <= 0)]
            value = self.at(s=grid)
            there = [self.at(s=grid + (max(4, many) * eps * size + floor) * (self._sign or 1))]
        else:
            norms = _SIZES[: 1 if alone else None] * size
            if least and least < norms.min() and not alone:
                norms = np.concatenate([norms, np.geomspace(least, norms.min(), 5)[:-1]])
            i, j = np.triu_indices(len(norms))  # (K is symmetric)
            xx, yy = norms[i, None], norms[j, None]
            both = np.where(xx == yy, xx, np.sqrt(xx) * np.sqrt(yy))  # (a row's distance from itself is 0)
            dot = both * (1 - near)
            value = self.at(xx, yy, dot)
            there = [self.at(xx, yy, dot - many * eps * both - floor)]
            if used & {"xx", "yy"}:
                there += [self.at(xx * (1 + many * eps), yy, dot), self.at(xx, yy * (1 + many * eps), dot)]
            if floor and used & {"xx", "yy", "sqdist"}:
                lost = np.maximum(norms - floor, 0.0)
                there += [self.at(lost[i, None], yy, dot), self.at(xx, lost[j, None], dot)]
        with np.errstate(all="ignore"):
            found = np.maximum(min(2.0, many) * np.abs(value), sum(np.abs(moved - value) for moved in there) / eps)
        found = found[~np.isnan(found)]
        return float(found.max()) if found.size else math.inf

    @lru_cache(maxsize=64)  # noqa: B019  (as above)
    def evaluation(self, rows: Extent, others: Extent, dtype: str, d: int) -> Evaluation:
        """Return the errors of K(x, y) that come from evaluating the expressions in ``dtype``, inner value by value.

        rows, others: the sizes of x and of y, of d features. Arguments are taken as exact but for their own type: see
        :meth:`rounding` for the rest. Looked for at the extremes of the sizes and a few points between them.
        """
        if dtype == "float64":
            single = self.evaluation(rows, others, "float32", d)
            if not single.left and single.error <= _DIGITS * single.largest:  # float64 then only has more digits
                return single._replace(error=single.error * float(np.finfo(np.float64).eps / np.finfo(np.float32).eps))
        if dtype == "float32":
            found = self._evaluation(rows, others, dtype, d, np.float64)
            if not found.left:
                return found
        return self._evaluation(rows, others, dtype, d, np.longdouble)

    def _evaluation(self, rows: Extent, others: Extent, dtype: str, d: int, wide: type) -> Evaluation:
        """Return :meth:`evaluation` beside a wider type, which has to hold every inner value."""
        expression = self.spec.expression.tree
        if not self.spec.element:
            given = {**inner_products(rows, others, wide), **self.params}
            return summary(*evaluated(expression, given, dtype))
        given = {**elements(rows, others, (1,) if self.spec.nonnegative else (1, -1), wide), **self.params}
        terms = summary(*evaluated(self.spec.element.tree, given, dtype))
        sums = between(min(rows.least, others.least) / 2, max(rows.largest, others.largest) / 2, wide)
        sums = np.concatenate([sums * sign for sign in ((self._sign,) if self._sign else (1, -1))] + [[0.0]])
        whole = summary(*evaluated(expression, {"s": sums, **self.params}, dtype))
        eps = float(np.finfo(dtype).eps)
        value, least = self.at(s=np.asarray(sums, np.float64)), 8 * eps * terms.largest
        entries = max(terms.error, self._entry_error(max(rows.high, others.high), eps))

        def moved(error: float) -> float:  # by errors of the terms beyond their rounding, for which rounding stands
            if error >= BROKEN or error <= least:
                return BROKEN if error > least else 0.0
            change = [np.abs(self.at(s=np.asarray(sums + sign * d * error, np.float64)) - value) for sign in (1, -1)]
            return min(BROKEN, float(np.nan_to_num(np.maximum(*change), nan=0.0, posinf=BROKEN).max()))

        error, outside = moved(entries), moved(terms.outside)
        errors = max(whole.error, error), max(whole.outside, outside)
        return Evaluation(whole.largest, *errors, whole.left or terms.left)

    def _entry_error(self, high: float, eps: float) -> float:
        """Return how much the rounding of an entry of size ``high`` can change a term with entries near or far."""
        farthest = 1 if self.spec.nonnegative else 2
        y = high * (1 - farthest * np.concatenate([[0.0], eps ** np.linspace(1, 0, 40)]))
        change = np.abs(self._element(high * (1 - eps), y) - self._element(high, y))
        return float(np.nan_to_num(change, nan=0.0, posinf=0.0).max(initial=0.0))

    def at(self, xx: Any = 0.0, yy: Any = 0.0, dot: Any = 0.0, s: Any = 0.0) -> Matrix:
        """Return the function of these inner products, or sums (s): norms xx and yy, all of shapes that go together."""
        values = {"xx": xx, "yy": yy, "dot": dot, "sqdist": np.maximum(xx + yy - 2 * dot, 0), "s": s, **self.params}
        with np.errstate(all="ignore"):
            return np.asarray(self.spec.expression.evaluate(values), np.float64)

    @cached_property
    def _sign(self) -> int:
        """Return 1 or -1 where the element-wise terms have one sign on a grid, 0 where both occur."""
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
        """Return this kernel and another, or a number, which becomes a parameter called ``number``."""
        if isinstance(other, Real) and not isinstance(other, bool):  # type: ignore[unreachable]
            if operator == "+" and other == 0:
                return self  # what sum() begins with
            name = _free(number, self.params)
            text = f"{name} {operator} ({self.spec.text})"
            return self._made(text, (*self._parameters(), Parameter(name, Parameter(name, 1.0).check(other))))
        if not isinstance(other, Kernel):
            return NotImplemented
        element, params = self.spec.element, other.params
        shared = element.names & params.keys() if element else frozenset()
        same = self.spec.element_text == other.spec.element_text
        if not same or any(self.params[name] != params[name] for name in shared):
            words = "with an element-wise kernel go numbers and kernels of the same sum"
            raise ValueError(f"{self!r} and {other!r} do not compose: {words}")
        new: dict[str, str] = {}
        for name in (name for name in params if name not in shared):
            taken = {*self.params, *new.values(), *(params if name in self.params else ())}
            new[name] = _free(name, taken) if name in self.params else name
        theirs = tuple(replace(p, name=new[p.name]) for p in other._parameters() if p.name in new)
        tree = ast.parse(other.spec.text, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = new.get(node.id, node.id)
        text = f"({self.spec.text}) {operator} ({ast.unparse(tree)})"
        return self._made(text, (*self._parameters(), *theirs), other.spec.nonnegative)

    def _parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters with this kernel's values as defaults and, as in :meth:`record`, without limits."""
        pairs = zip(self.spec.parameters, self.values, strict=True)
        return tuple(Parameter(p.name, value, integer=p.integer) for p, value in pairs)

    def _made(self, text: str, parameters: tuple[Parameter, ...], nonnegative: bool = False) -> Kernel:
        text = ast.unparse(ast.parse(text, mode="eval"))  # without the brackets that were only there to be safe
        nonnegative = nonnegative or self.spec.nonnegative
        return Kernel(Spec("", parameters, text, self.spec.element_text, nonnegative=nonnegative))

    def __repr__(self) -> str:
        spec, params = self.spec, "".join(f", {name}={value!r}" for name, value in self.params.items())
        if spec.element_text and not spec.name:
            params = ", nonnegative=True" * spec.nonnegative + params
            return f"Kernel.elementwise({spec.element_text!r}, {spec.text!r}{params})"
        return f"Kernel({(spec.name or spec.text)!r}{params})"

    def record(self) -> dict[str, Any]:
        """Return text and numbers from which :meth:`from_record` makes this kernel again, for JSON and model files."""
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
        """Return the kernel of :meth:`record`, through the same checks as the constructor's.

        Raises ValueError or TypeError for what is not a record, an expression outside the language, or a built-in's
        name with another expression than the built-in's.
        """
        texts = dict.fromkeys(("name", "expression", "element"), str)
        for key, kind in (texts | {"params": dict, "integers": list, "nonnegative": bool}).items():
            if not isinstance(record, Mapping) or not isinstance(record.get(key), kind):
                raise ValueError(f"a kernel's record needs {key} ({kind.__name__}), got {str(record)[:80]!r}")
        name, params = record["name"], record["params"]
        if not all(isinstance(key, str) for key in params):
            raise ValueError(f"a kernel's parameters are called by text, got {list(params)!r}")
        if name:
            kernel = make(name, **params)
        elif record["element"]:
            element, function = record["element"], record["expression"]
            kernel = cls.elementwise(element, function, nonnegative=record["nonnegative"], **params)
        else:
            kernel = cls(record["expression"], **params)
        if any(record[key] != value for key, value in kernel.record().items()):
            whose = f"the built-in's {name!r}" if name else "what its expression makes"
            raise ValueError(f"a kernel's record is not {whose}: {str(record)[:200]}")
        return kernel

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.record(),)


def _free(name: str, taken: Any) -> str:
    """Return ``name``, or name_2, name_3, ... where it is taken."""
    return next(n for n in chain([name], (f"{name}_{i}" for i in count(2))) if n not in taken)


def _restored(record: Mapping[str, Any]) -> Kernel:
    return Kernel.from_record(record)


def underflow(dtype: str, d: int) -> float:
    """Return what an inner product of d terms can lose where they are too small for ``dtype``: devices may take what is
    below its smallest normal number for 0."""
    return d * float(np.finfo(dtype).tiny)


@dataclass(frozen=True)
class Precomputed:
    """In place of a kernel function where its values are given: column j of a row x of X holds K(x, row j)."""

    name: ClassVar[str] = "precomputed"


PRECOMPUTED = Precomputed()


def make(name: str, **params: Any) -> Kernel:
    """Return the built-in kernel function ``name`` with its parameters, the others at their defaults.

    Raises ValueError for an unknown name or parameter or a value outside its limits, TypeError for a non-number.
    """
    if not isinstance(name, str) or name not in BUILTIN:
        raise ValueError(f"unknown kernel {name!r}; expected one of {', '.join(BUILTIN)}, or a Kernel")
    return Kernel(BUILTIN[name], **params)
