"""Random kernel expressions over rows of any size, fitted and checked in long double (tests/fit/test_optimality.py).

An expression is homogeneous by construction: its value is moderate at any scale of the rows, its inner terms are not.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.check import Long, check
from clsvm import SVC, SVR, Kernel

TOL = 1e-3
ROWS, FEATURES = 40, 4
NEAR = 1e-2  # how far decision values of a fit that converged may be from K b + intercept


class Case(NamedTuple):
    """An expression (element-wise where ``element`` is not ""), rows, targets, C."""

    function: str
    element: str
    X: NDArray[np.float64]
    y: NDArray[Any]
    C: float

    @property
    def kernel(self) -> Kernel:
        return Kernel.elementwise(self.element, self.function) if self.element else Kernel(self.function)


class Term(NamedTuple):
    """A text of xx, yy, dot, sqdist that grows as the rows' squared size to the power ``degree``."""

    text: str
    degree: float


def _term(rng: np.random.Generator, depth: int) -> Term:
    if depth == 0:
        return Term(str(rng.choice(["dot", "sqdist", "xx", "yy", "(xx + yy)", "sqrt(xx * yy)"])), 1)
    one, kind = _term(rng, depth - 1), rng.integers(6)
    if kind == 0:
        other = _term(rng, int(rng.integers(depth)))
        return Term(f"({one.text} * {other.text})", one.degree + other.degree)
    if kind == 1:
        power = int(rng.integers(2, 5))
        return Term(f"{one.text} ** {power}", one.degree * power)
    if kind == 2:
        return Term(f"sqrt(abs({one.text}))", one.degree / 2)
    if kind == 3:
        other = _norm(rng, one.degree)
        return Term(f"({one.text} + {rng.uniform(0.5, 2):.3g} * {other})", one.degree)
    if kind == 4:
        return Term(f"where({one.text} > 0, {one.text}, {_norm(rng, one.degree)})", one.degree)
    return one


def _norm(rng: np.random.Generator, degree: float) -> str:
    """A symmetric positive text of this degree, spelled one way or another."""
    return str(
        rng.choice(
            [
                f"(xx * yy) ** {degree / 2}",
                f"(sqrt(xx) * sqrt(yy)) ** {degree}",
                f"sqrt(xx ** {degree} * yy ** {degree})",
                f"(xx + yy) ** {degree}",
            ]
        )
    )


def _bounded(rng: np.random.Generator, text: str) -> str:
    """A function of a number without size."""
    forms = ["{}", "exp(-abs({}))", "tanh({})", "1 / (1 + abs({}))", "log1p(abs({}))", "sin({})", "{} ** 2"]
    return str(rng.choice(forms)).format(f"({text})")


def _exchanged(text: str) -> str:
    return text.replace("xx", "zz").replace("yy", "xx").replace("zz", "yy")


def _function(rng: np.random.Generator) -> str:
    """A symmetric expression whose value does not depend on the rows' scale."""
    if rng.random() < 0.2:  # (this one does, but for its last digits at large scales)
        power = int(rng.integers(2, 25)) * 2
        return f"(1 + dot) ** {power} / (1 + xx) ** {power // 2} / (1 + yy) ** {power // 2}"
    term = _term(rng, int(rng.integers(1, 4)))
    text = _bounded(rng, f"{term.text} / {_norm(rng, term.degree)}")
    text = f"({text}) {rng.choice(['+', '*'])} ({_exchanged(text)})"
    return f"{text} + dot / sqrt(xx) / sqrt(yy)" if rng.random() < 0.5 else text


def _element(rng: np.random.Generator) -> str:
    """A symmetric element-wise expression, moderate at any scale."""
    power = int(rng.integers(1, 6))
    forms = [
        f"(x * y) ** {power} / (1 + abs(x * y) ** {power})",
        f"where(x * y == 0, 0, (x * y) ** {power} / (x ** {2 * power} + y ** {2 * power}))",
        f"where(abs(x) + abs(y) > 0, (x - y) ** {2 * power} / (abs(x) + abs(y)) ** {2 * power}, 0)",
        f"exp(-(x - y) ** 2 / (1 + x ** {2 * power} + y ** {2 * power}))",
        f"where(x * y == 0, 0, x * y / sqrt(x ** {2 * power} * y ** {2 * power}) ** (1 / {power}))",
    ]
    return str(rng.choice(forms))


def case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, FEATURES)) + rng.choice([0.0, 2.0])
    y = (X @ rng.normal(size=FEATURES) + 0.3 * rng.normal(size=ROWS) > np.median(X.sum(axis=1)) / 2).astype(int)
    y[:2] = 0, 1
    spread = rng.choice([0.0, 3.0, 10.0])  # decades between the sizes of rows
    X = X * 10.0 ** (rng.uniform(-30, 30) + rng.uniform(-spread, spread, size=(ROWS, 1)) / 2)
    elementwise = rng.random() < 0.25
    function = str(rng.choice(["s", "exp(-s / 4)", "s / 4"])) if elementwise else _function(rng)
    return Case(function, _element(rng) if elementwise else "", X, y, float(10 ** rng.uniform(-2, 3)))


def gram(one: Case) -> NDArray[Any]:
    """K in long double."""
    X = one.X.astype(Long)
    names = {name: getattr(np, name) for name in ("sqrt", "exp", "tanh", "log1p", "sin", "abs", "where")}
    xx = (X * X).sum(axis=1)
    values = {"xx": xx[:, None], "yy": xx[None], "dot": X @ X.T, "sqdist": ((X[:, None] - X[None]) ** 2).sum(axis=2)}
    with np.errstate(all="ignore"):
        if one.element:
            values = {"s": eval(one.element, names, {"x": X[:, None], "y": X[None]}).sum(axis=2)}
        return np.asarray(np.broadcast_to(eval(one.function, names, values), (ROWS, ROWS)), Long)


def outcome(seed: int, device: str | None, dtype: str = "float32") -> tuple[str, str]:
    """("converged", "refused", "not converged" or "WRONG", words) for a case."""
    one = case(seed)
    K, regression = gram(one), seed % 4 == 0
    made = (SVR if regression else SVC)(C=one.C, tol=TOL, kernel=one.kernel, device=device, dtype=dtype, max_time=20)
    words = f"seed {seed}: {one.kernel!r}, |x| ~ {np.abs(one.X).max():.1g}, C={one.C:.3g}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = made.fit(one.X, one.y)
        except ValueError as error:
            return "refused", f"{words}: {error}"
        report = model.fit_report_
        try:
            values = model.predict(one.X) if regression else model.decision_function(one.X)
        except ValueError as error:
            return ("WRONG" if report.converged else "refused"), f"{words}: {report.status}; predicts: {error}"
    words += f": {report.status} in {report.dtype}"
    if not np.isfinite(values).all():
        return "WRONG", f"{words}; decision values that are not finite"
    if not np.isfinite(K).all():
        return ("WRONG" if report.converged else "not converged"), f"{words}; K is not finite"
    b = np.zeros(ROWS, Long)
    b[model.support_] = model.dual_coef_[0]
    off = np.abs(K @ b + model.intercept_ - values).max()
    found = check(model, K, one.y)
    words += f"; violation {report.violation:.2g}, true {float(found.violation):.2g}; decision values off by {off:.2g}"
    if report.converged and (not found.violation <= 1.2 * TOL or not off <= NEAR):
        return "WRONG", words
    return ("converged" if report.converged else "not converged"), words
