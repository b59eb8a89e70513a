"""The parameters of Falkon's estimators: those that every estimator has, and their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clsvm.parameters import PARAMETERS, Choice, Flag, Limits, Number, Parameter, Truth

SELECTIONS = ("uniform", "k-means++", "leverage")


@dataclass(frozen=True)
class Selection(Limits):
    """One of SELECTIONS, or rows."""

    expected = f"{', '.join(map(repr, SELECTIONS))} or rows (m, d)"

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, str):
            if value not in SELECTIONS:
                raise ValueError(f"{name} must be {self.expected}, got {value!r}")
        elif value is None or not (hasattr(value, "shape") or isinstance(value, list | tuple)):
            raise TypeError(f"{name} must be {self.expected}, got {value!r}")


@dataclass(frozen=True)
class Called(Limits):
    """A function, or None."""

    expected = "a function or None"

    def check(self, name: str, value: Any) -> None:
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be {self.expected}, got {value!r}")


_OWN = (
    Parameter(
        "n_centers",
        "auto",
        "centres of the machine, m; 'auto': sqrt(n) log2(n), from 100 to 5000; at most the rows",
        Number(least=1, whole=True, or_else=("auto",)),
        flag=Flag("--centers", "How many, or 'auto': sqrt(n) log2(n), from 100 to 5000.", "M"),
    ),
    Parameter(
        "penalty",
        1e-6,
        "lambda of (1 / n) sum loss + (lambda / 2) |f|^2, above 0; scikit-learn's KernelRidge has alpha = lambda n",
        Number(above=0),
        flag=Flag("--penalty", "lambda of (1 / n) sum loss + (lambda / 2) |f|^2."),
    ),
    Parameter(
        "loss",
        "squared",
        "'squared', or 'log_cosh' for targets with outliers: log cosh(f - y), about |f - y| far from y",
        Choice(("squared", "log_cosh")),
    ),
    Parameter(
        "fit_intercept",
        True,
        "whether f has an offset: the constant that alone fits best, of the squared loss y's weighted mean",
        Truth(),
    ),
    Parameter(
        "center_selection",
        "uniform",
        "how centres are drawn from the rows: 'uniform'; 'k-means++', far from one another; 'leverage', by how little "
        "other rows say of them; or rows (m, d) that are the centres",
        Selection(),
        flag=Flag("--selection", "How centres are drawn: uniform, k-means++ or leverage.", "HOW"),
    ),
    Parameter(
        "max_iter",
        500,
        "the most steps of conjugate gradients, each of which is a pass over all rows",
        Number(least=1, whole=True),
        flag=Flag("--max-iter", "Stop after so many steps."),
    ),
    Parameter(
        "tol",
        1e-5,
        "the residual at which the fit ends: the gradient's size, preconditioned, over that at f = 0; "
        "fit_report_.bound says how far the objective is from its least then",
        Number(above=0),
        flag=Flag("--tol", "Stop where the residual is at most this."),
    ),
    Parameter("random_state", None, "a seed or generator: what centres and sampled rows are drawn by"),
    Parameter(
        "warm_start",
        False,
        "go on from the centres and coefficients of the fit before, with another penalty or other rows",
        Truth(),
    ),
    Parameter(
        "callback",
        None,
        "a function of step, coefficients (m, k) and seconds, called after each step, which may evaluate them",
        Called(),
    ),
)
_SHARED = "kernel", "degree", "gamma", "coef0", "device", "memory_limit", "layout", "verbose"
_CHANGED = {
    "class_weight": "what multiplies the weights of each class's rows: a dict, 'balanced' or None",
    "dtype": "'float32' or 'float64', of kernel values; coefficients and gradients are float64 either way. Where K "
    "among the centres is too ill-conditioned for float32, float64 is taken; the report says so",
    "device": PARAMETERS["device"].words + "; or a list of such, among which the rows are shared by their speeds; "
    "prediction goes to the first",
    "kernel": "a name of clsvm.kernels.BUILTIN ('clsvm kernels list') or a clsvm.Kernel",
}
TABLE: Mapping[str, Parameter] = {
    **{name: PARAMETERS[name] for name in _SHARED},
    **{name: replace(PARAMETERS[name], words=words) for name, words in _CHANGED.items()},
    **{one.name: one for one in _OWN},
}
