"""The estimators' parameters: what each is, in words that their docstrings list, and the check of a number."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import wraps
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")

WORDS: Mapping[str, str] = MappingProxyType(
    {
        "C": "the weight of the loss, above 0; infinity is a hard margin (not of NuSVR)",
        "nu": "above 0 and at most 1: at most that share of the rows errs (of a regression lies outside the tube, of "
        "one class outside the boundary), at least that share are support vectors",
        "epsilon": "half the width of the tube in which errors are free",
        "kernel": "a name of clsvm.kernels.BUILTIN ('clsvm kernels list'); a clsvm.Kernel; 'precomputed': X is K (n, "
        "n), in predict (rows, n); or a function of two sets of rows that returns K between them, evaluated on the "
        "host",
        "degree": "of the kernels that have one, given by name: a whole number",
        "gamma": "of the kernels that have one, given by name: 'scale', 1 / (d var(X)); 'auto', 1 / d; or a number "
        "above 0",
        "coef0": "of the kernels that have one, given by name: a number",
        "shrinking": "taken for scikit-learn's sake, without effect",
        "tol": "the KKT violation at which the solver stops",
        "cache_size": "MB of kernel rows that are kept, or 'auto': what memory_limit has room for, where keeping rows"
        " pays",
        "class_weight": "factors of each class's bounds (of SVC of C): a dict, 'balanced' or None; a class of weight "
        "0 is left out",
        "verbose": "show progress on stderr: a bar on a terminal, else a line now and then and one at the end",
        "max_iter": "the most pair steps of a machine; of 'crammer_singer' a step solves one row; -1: no limit",
        "decision_function_shape": "of more than two classes: 'ovr', a column for each class, or 'ovo', one for each "
        "pair",
        "break_ties": "with 'ovr', of classes with as many votes take the one with the largest decision value",
        "random_state": "taken for scikit-learn's sake; nothing is drawn",
        "device": "None (CLSVM_DEVICE, else a usable GPU, else a usable CPU), 'gpu', 'cpu', a number of 'clsvm "
        "devices', part of a platform's or device's name, 'name:index', or a pyopencl Device or CommandQueue",
        "working_set_size": "rows that are solved at a time, or 'auto': what costs least by the device's measured "
        "rates",
        "gap_tol": "stop as soon as the relative duality gap is this small; None: tol alone decides",
        "dtype": "'float32' or 'float64', of kernel values; sums and coefficients are float64 either way. Where "
        "float32 values cannot reach tol, float64 is taken; the report says so",
        "memory_limit": "bytes, or text such as '2GB'; None: half of what is free on the device",
        "multi_class": "of more than two classes: 'ovo', a machine for each pair; 'ovr', one for each class against "
        "the rest, the largest value wins: dual_coef_ (k, n_SV), intercept_ (k,), decision_function (n, k); or "
        "'crammer_singer', all classes in one problem without offsets (GTSVM, equation 3): dual_coef_ (k, n_SV), "
        "intercept_ zeros (k,), decision_function (n, k), of two classes their difference (n,)",
        "bias": "whether there is an offset; without one every row is by itself (GTSVM, section 2)",
        "max_time": "seconds after which the solver stops; None: no limit",
        "warm_start": "go on from the coefficients of the fit before, with another C, another kernel or further rows "
        "after those that it had; of one problem: two classes, 'crammer_singer', or no classes",
        "checkpoint": "a file to go on from, where it exists, and to write to every checkpoint_every seconds, at the "
        "end and when interrupted; one of other data, C or kernel is refused with a CheckpointError; of one "
        "problem, as warm_start",
        "checkpoint_every": "seconds from one writing of the checkpoint to the next",
    }
)


def documented(made: type[T]) -> type[T]:
    """The class, its docstring with a list of its parameters before that of its attributes."""
    if made.__doc__:  # (python -OO has none)
        parameters = list(inspect.signature(made.__init__).parameters.values())[1:]
        listed = [textwrap.fill(f"{one}: {WORDS[one.name]}.", 110, **_INDENTS) for one in map(_plain, parameters)]
        before, attributes, after = inspect.cleandoc(made.__doc__).partition("Attributes after fit:")
        made.__doc__ = "\n".join([f"{before}Parameters:", *listed, "", f"{attributes}{after}"])
    return made


_INDENTS: Mapping[str, Any] = MappingProxyType({"initial_indent": " " * 4, "subsequent_indent": " " * 8})


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(annotation=inspect.Parameter.empty, kind=inspect.Parameter.KEYWORD_ONLY)


def without_probability(init: Callable[P, None]) -> Callable[P, None]:
    """An ``__init__`` that says what there is in place of scikit-learn's probability=True."""

    @wraps(init)
    def checked(*args: P.args, **given: P.kwargs) -> None:
        if "probability" in given:
            raise TypeError(
                f"{type(args[0]).__name__} has no parameter 'probability': wrap the estimator in scikit-learn's "
                "CalibratedClassifierCV, or fit it and use clsvm.probability.calibrated(model, X, y).predict_proba(X)"
            )
        init(*args, **given)

    return checked


def number(
    name: str,
    value: Any,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    kind: type[Any] = Real,
    infinite: bool = False,
) -> None:
    """Raises TypeError or ValueError unless ``value`` is a number in its bounds, and finite or allowed not to be."""
    expected = (f"> {above}" if above is not None else f">= {least}") + (f" and <= {most}" if most is not None else "")
    if isinstance(value, bool | np.bool_) or not isinstance(value, kind):
        word = "an integer" if kind is Integral else "a number"
        raise TypeError(f"{name} must be {word} {expected}, got {value!r}")
    finite = -np.inf < value < np.inf or (infinite and value == np.inf)
    inside = (above is None or value > above) and (least is None or value >= least) and (most is None or value <= most)
    if not (finite and inside):
        raise ValueError(f"{name} must be {expected}{'' if infinite or most else ' and finite'}, got {value!r}")
