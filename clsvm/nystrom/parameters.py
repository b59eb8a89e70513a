"""Describe the parameters of the Falkon estimators: names, meanings, defaults, limits and command-line flags.

Parameters that are not described below are those of :mod:`clsvm.parameters`. The descriptions become the docstrings of
the estimators.

n_centers
    Number m of inducing points, at most the number n of rows; "auto" takes sqrt(n) log2(n), between 100 and 5000
penalty
    lambda > 0 in (1 / n) sum_i loss(f(x_i), y_i) + (lambda / 2) |f|^2, with the norm of f in the kernel's space.
    scikit-learn's KernelRidge has alpha = lambda n
loss
    "squared", or "log_cosh" for targets with outliers: log cosh(f - y), which is about |f - y| far from y
fit_intercept
    Whether f has a constant part: the constant prediction with the least loss. For the squared loss, this is the
    weighted mean of y
center_selection : str or array of shape (m, d)
    How inducing points are drawn from the rows: "uniform" at random; "k-means++" far from one another; "leverage" by
    approximate ridge leverage scores. An array (m, d) gives the inducing points themselves
max_iter
    Largest number of conjugate gradient steps. Each step is a pass over all rows
tol
    Residual at which the fit ends: the norm of the preconditioned gradient, relative to its norm with all
    coefficients 0. An upper bound of the objective minus its minimum is in fit_report_.bound
random_state : int or RandomState or None
    Seed or generator by which inducing points and sampled rows are drawn
warm_start
    Start from the inducing points and coefficients of the last fit. The penalty and the rows may change
callback : callable or None
    Function of step, coefficients (m, k) and seconds, called after each conjugate gradient step
class_weight : dict or 'balanced' or None
    Factor of the sample weights of each class: a dict from classes to factors, "balanced" or None
dtype
    "float32" or "float64", the dtype of kernel values. Coefficients and gradients are float64 in any case. If the
    kernel matrix of the inducing points is too ill-conditioned for float32, float64 is used, and the report says so
kernel
    Name of a built-in kernel function (``clsvm kernels list``) or a :class:`clsvm.Kernel`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clsvm.parameters import ANY, BOOLEAN, PARAMETERS, Flag, Limits, Number, Parameter, choice, described

SELECTIONS = ("uniform", "k-means++", "leverage")


class _Selection(Limits):
    """Check the parameter center_selection: a name in SELECTIONS, or inducing points (m, d)."""

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, str) and value not in SELECTIONS:
            raise ValueError(f"{name} must be {self.expected}, got {value!r}")
        super().check(name, value)


_SELECTION = _Selection(
    f"{', '.join(map(repr, SELECTIONS))} or rows (m, d)",
    lambda value: hasattr(value, "shape") or isinstance(value, str | list | tuple),
)
_CALLBACK = Limits("a function or None", lambda value: value is None or callable(value))


_DESCRIBED = described(__doc__)
_FLAGS = {
    "n_centers": Flag("--centers", "Inducing points, or 'auto': sqrt(n) log2(n), from 100 to 5000.", "M"),
    "penalty": Flag("--penalty", "lambda of (1 / n) sum loss + (lambda / 2) |f|^2."),
    "center_selection": Flag("--selection", "How inducing points are drawn: uniform, k-means++ or leverage.", "HOW"),
    "max_iter": Flag("--max-iter", "Stop after so many conjugate gradient steps."),
    "tol": Flag("--tol", "Stop when the residual is at most this."),
}
_FALKON: tuple[tuple[str, Any, Limits | Number], ...] = (
    ("n_centers", "auto", Number(least=1, whole=True, alternatives=("auto",))),
    ("penalty", 1e-6, Number(above=0)),
    ("loss", "squared", choice("squared", "log_cosh")),
    ("fit_intercept", True, BOOLEAN),
    ("center_selection", "uniform", _SELECTION),
    ("max_iter", 500, Number(least=1, whole=True)),
    ("tol", 1e-5, Number(above=0)),
    ("random_state", None, ANY),
    ("warm_start", False, BOOLEAN),
    ("callback", None, _CALLBACK),
)
_SHARED = "kernel", "degree", "gamma", "coef0", "device", "memory_limit", "layout", "verbose", "class_weight", "dtype"
_DEVICES = ". Devices in a list share the rows equally; the first one predicts"


def _shared(one: Parameter) -> Parameter:
    own = _DESCRIBED.get(one.name, {"kind": one.kind, "words": one.words})
    return replace(one, **own | {"words": own["words"] + _DEVICES * (one.name == "device")})


TABLE: Mapping[str, Parameter] = {
    **{name: _shared(PARAMETERS[name]) for name in _SHARED},
    **{
        name: Parameter(name, default, limits=limits, flag=_FLAGS.get(name), **_DESCRIBED.get(name, {}))
        for name, default, limits in _FALKON
    },
}
