"""The parameters of Falkon's estimators: those that every estimator has, and their own.

Words of this page stand in place of those in clsvm.parameters.

n_centers
    centres of the machine, m; 'auto': sqrt(n) log2(n), from 100 to 5000; at most the rows
penalty
    lambda of (1 / n) sum loss + (lambda / 2) |f|^2, above 0; scikit-learn's KernelRidge has alpha = lambda n
loss
    'squared', or 'log_cosh' for targets with outliers: log cosh(f - y), about |f - y| far from y
fit_intercept
    whether f has an offset: the constant that alone fits best, of the squared loss y's weighted mean
center_selection
    how centres are drawn from the rows: 'uniform'; 'k-means++', far from one another; 'leverage', by how little other
    rows say of them; or rows (m, d) that are the centres
max_iter
    the most steps of conjugate gradients, each of which is a pass over all rows
tol
    the residual at which the fit ends: the gradient's size, preconditioned, over that at f = 0; fit_report_.bound says
    how far the objective is from its least then
random_state
    a seed or generator: what centres and sampled rows are drawn by
warm_start
    go on from the centres and coefficients of the fit before, with another penalty or other rows
callback
    a function of step, coefficients (m, k) and seconds, called after each step, which may evaluate them
class_weight
    what multiplies the weights of each class's rows: a dict, 'balanced' or None
dtype
    'float32' or 'float64', of kernel values; coefficients and gradients are float64 either way. Where K among the
    centres is too ill-conditioned for float32, float64 is taken; the report says so
kernel
    a name of clsvm.kernels.BUILTIN ('clsvm kernels list') or a clsvm.Kernel
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clsvm.parameters import PARAMETERS, Choice, Flag, Limits, Number, Parameter, Truth, described

SELECTIONS = ("uniform", "k-means++", "leverage")


class Selection(Limits):
    """One of SELECTIONS, or rows."""

    expected = f"{', '.join(map(repr, SELECTIONS))} or rows (m, d)"

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, str) and value not in SELECTIONS:
            raise ValueError(f"{name} must be {self.expected}, got {value!r}")
        super().check(name, value)

    def ok(self, value: Any) -> bool:
        return hasattr(value, "shape") or isinstance(value, str | list | tuple)


class Called(Limits):
    """A function, or None."""

    expected = "a function or None"

    def ok(self, value: Any) -> bool:
        return value is None or callable(value)


_WORDS = described(__doc__)
_FLAGS = {
    "n_centers": Flag("--centers", "How many, or 'auto': sqrt(n) log2(n), from 100 to 5000.", "M"),
    "penalty": Flag("--penalty", "lambda of (1 / n) sum loss + (lambda / 2) |f|^2."),
    "center_selection": Flag("--selection", "How centres are drawn: uniform, k-means++ or leverage.", "HOW"),
    "max_iter": Flag("--max-iter", "Stop after so many steps."),
    "tol": Flag("--tol", "Stop where the residual is at most this."),
}
_OWN: tuple[tuple[str, Any, Limits], ...] = (
    ("n_centers", "auto", Number(least=1, whole=True, or_else=("auto",))),
    ("penalty", 1e-6, Number(above=0)),
    ("loss", "squared", Choice(("squared", "log_cosh"))),
    ("fit_intercept", True, Truth()),
    ("center_selection", "uniform", Selection()),
    ("max_iter", 500, Number(least=1, whole=True)),
    ("tol", 1e-5, Number(above=0)),
    ("random_state", None, Limits()),
    ("warm_start", False, Truth()),
    ("callback", None, Called()),
)
_SHARED = "kernel", "degree", "gamma", "coef0", "device", "memory_limit", "layout", "verbose", "class_weight", "dtype"
_DEVICES = "; or a list of such, among which the rows are shared by their speeds; prediction goes to the first"


def _shared(one: Parameter) -> Parameter:
    words = _WORDS.get(one.name, one.words) + _DEVICES * (one.name == "device")
    return replace(one, words=words)


TABLE: Mapping[str, Parameter] = {
    **{name: _shared(PARAMETERS[name]) for name in _SHARED},
    **{
        name: Parameter(name, default, _WORDS.get(name, ""), limits, None, _FLAGS.get(name))
        for name, default, limits in _OWN
    },
}
