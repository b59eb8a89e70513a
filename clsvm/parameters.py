"""Define the parameters of estimators in a table of names, defaults, valid values and command-line flags.

Constructors check their arguments against the table. Fits read the solver's options from the table. The command line
reads its flags from the table. The descriptions below become part of the estimators' docstrings. If the annotation of a
parameter in a constructor does not say the parameter's type, the type stands after the name below.

C
    Weight of the loss, above 0. Infinity gives a hard margin; NuSVR refuses it
nu
    Number above 0 and at most 1. At most this share of the rows are errors: rows inside the margin, outside the tube of
    a regression, or outside the boundary of a one-class model. At least this share are support vectors
epsilon
    Half the width of the tube within which errors cost nothing
kernel : str or Kernel or callable
    Name of a built-in kernel function (``clsvm kernels list``); a :class:`clsvm.Kernel`; "precomputed", for which X is
    K (n, n) in fit and (rows, n) in predict; or a Python function of two row sets that returns K between them, which
    runs on the host
degree
    Integer parameter of kernel functions that have a degree and are given by name
gamma
    Parameter of kernel functions that have a gamma and are given by name: "scale" for 1 / (d var(X)), "auto" for 1 / d,
    or a number above 0
coef0
    Parameter of kernel functions that have a coef0 and are given by name
shrinking
    Accepted for compatibility with scikit-learn; it has no effect
tol
    KKT violation at which the solver stops
cache_size
    Size in MB of the cache for rows of the kernel matrix; "auto" takes what memory_limit leaves, if a cache is expected
    to save time
class_weight : dict or 'balanced' or None
    Factor for each class: a dict, "balanced" for factors that are inverse to the classes' numbers of rows, or None for
    1. The factor multiplies C, or in NuSVC the bounds of the coefficients. A class of weight 0 is left out
verbose
    Show progress on stderr: a bar on a terminal, else a line every ten seconds
max_iter
    Most SMO iterations of each binary problem, -1 for no limit. With multi_class="crammer_singer", one iteration solves
    for the coefficients of one row
decision_function_shape
    For more than two classes: "ovr" gives a column for each class, "ovo" one for each pair
break_ties
    With "ovr": among classes with equally many votes, predict the one with the largest decision value
random_state : int or RandomState or None
    Accepted for compatibility with scikit-learn; it has no effect, since an SVM fit draws no random numbers
device : str or int or Device or CommandQueue or list or None
    Device to use: "gpu", "cpu", a number from ``clsvm devices``, part of a platform's or device's name, "name:1" for
    the second device of that name, or a pyopencl Device or CommandQueue. A list of these divides the rows, or the
    binary problems, among several devices. None takes the environment variable CLSVM_DEVICE, else a usable GPU, else a
    usable CPU
working_set_size
    Number of rows in a working set, the rows whose coefficients are optimised together; "auto" takes the size with the
    least estimated cost
gap_tol
    Relative duality gap at which the solver stops, even if the KKT violation exceeds tol. If gap_tol is None, the
    solver does not stop by the gap
dtype
    "float32" or "float64", the dtype of kernel values; sums and coefficients are always float64. If float32 values
    cannot reach tol, float64 is used, and the report says so. A CPU also uses float64 for small fits, because it is
    faster there than a check of float32. A device without double precision refuses "float64". If float32 is too coarse
    on such a device, the host solves problems of at most 4096 coefficients, or 600 coefficients with "crammer_singer".
    Larger problems do not converge, and the report says so
precision
    "float32", or "fast" to compute large products of dense rows by the device's matrix units (tensor cores). A fit uses
    matrix units if the device has them, a trial product on them is right, and rounding errors are small enough for tol.
    The report says what was used. Final checks in float64 and predictions never use matrix units
memory_limit
    Bytes, or text such as "2GB"; None takes half of the device's free memory
layout
    Layout of the rows on the device: "dense"; "bits", rows of 0 and 1 with a bit for each feature, for SVMs on one
    device; "clustered", similar sparse rows stored together; "csr", only the entries of sparse rows; "hybrid", columns
    with many entries stored densely, the others as entries; "inverted", as "hybrid" with an index from columns to
    rows, on CPUs; "auto" takes the layout with the least estimated cost
multi_class
    For more than two classes: "ovo", a binary classifier for each pair; "ovr", a binary classifier for each class
    against the rest; "crammer_singer", one problem for all classes without offsets (Cotter, Srebro, Keshet 2011,
    equation 3). "ovr" and "crammer_singer" have dual_coef_ (k, n_SV), intercept_ (k,) and decision values (n, k) for k
    classes
bias
    Whether the decision function has an offset (Cotter, Srebro, Keshet 2011, section 2)
max_time
    Seconds after which the solver stops, None for no limit
warm_start
    Start from the coefficients of the last fit. C and kernel may change, and rows may be added after those of the last
    fit. Each binary problem starts from its own coefficients. If the classes changed, fits of two classes and of
    "crammer_singer" raise ValueError; others start anew
checkpoint : str or path or None
    File from which a fit continues if it exists. The file is written every checkpoint_every seconds, at the end and on
    Ctrl-C. A checkpoint of other data, another C or another kernel raises CheckpointError. The file holds coefficients,
    so binary problems that were solved begin at their optimum
checkpoint_every
    Seconds between two writes of the checkpoint
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Any, cast


def _is_bool(value: Any) -> bool:
    """Return whether a value is a bool of Python or NumPy, without importing NumPy."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


@dataclass(frozen=True)
class Limits:
    """Describe the valid values of a parameter. By default all values are valid.

    expected: description of the valid values.
    ok: function that returns whether a value is valid.
    error: class of the exception for invalid values.
    """

    expected: str = ""
    ok: Callable[[Any], bool] = lambda value: True
    error: type[Exception] = TypeError

    def check(self, name: str, value: Any) -> None:
        """Raise TypeError or ValueError for an invalid value of the parameter ``name``."""
        if not self.ok(value):
            raise self.error(f"{name} must be {self.expected}, got {value!r}")

    def read(self, text: str) -> Any:
        """Return the text of a command-line flag unchanged, as the value of the parameter."""
        return text


@dataclass(frozen=True)
class Number:
    """Describe a parameter whose valid values are numbers within bounds.

    Attributes
    ----------
    above
        exclusive lower bound, or None.
    least, most
        inclusive bounds, or None.
    whole
        whether the number must be an integer.
    infinite
        whether infinity is valid.
    alternatives
        words, or None, that are valid in place of a number.
    """

    above: float | None = None
    least: float | None = None
    most: float | None = None
    whole: bool = False
    infinite: bool = False
    alternatives: tuple[str | None, ...] = ()

    @property
    def expected(self) -> str:
        bounds = f"> {self.above}" if self.above is not None else f">= {self.least}"
        endless = self.infinite or self.whole
        return bounds + (f" and <= {self.most}" if self.most is not None else "" if endless else " and finite")

    @property
    def _kind(self) -> str:
        return "an integer" if self.whole else "a number"

    def check(self, name: str, value: Any) -> None:
        """Raise TypeError or ValueError for an invalid value of the parameter ``name``."""
        if any(value is word or (isinstance(value, str) and value == word) for word in self.alternatives):
            return
        words = "".join(f" or {word!r}" for word in self.alternatives)
        if _is_bool(value) or not isinstance(value, Integral if self.whole else Real):
            expected = f"{self._kind} {self.expected.removesuffix(' and finite')}"
            raise TypeError(f"{name} must be {expected}{words}, got {value!r}")
        value = cast(float, value)
        finite = -math.inf < value < math.inf or (self.infinite and value == math.inf)
        inside = (self.above is None or value > self.above) and (self.least is None or value >= self.least)
        if not (finite and inside and (self.most is None or value <= self.most)):
            raise ValueError(f"{name} must be {self.expected}{words}, got {value!r}")

    def read(self, text: str) -> Any:
        """Convert the text of a command-line flag to a number. Return a word in ``alternatives`` unchanged.

        Raises ValueError for other text.
        """
        try:
            return text if text in self.alternatives else int(text) if self.whole else float(text)
        except ValueError:
            words = "".join(f" or {word!r}" for word in self.alternatives if word is not None)
            raise ValueError(f"got {text!r}, expected {self._kind} {self.expected}{words}") from None


def choice(*words: str) -> Limits:
    """Return :class:`Limits` that allow only the given ``words``."""
    expected = f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"
    return Limits(expected, lambda value: isinstance(value, str) and value in words, ValueError)


ANY, BOOLEAN = Limits(), Limits("True or False", _is_bool)
_FILE_NAME = Limits("the name of a file or None", lambda value: value is None or isinstance(value, str | os.PathLike))


@dataclass(frozen=True)
class Flag:
    """Describe a parameter's flag on the command line: name, help text, and the value's placeholder, such as FILE."""

    name: str
    help: str
    metavar: str | None = None


@dataclass(frozen=True)
class Parameter:
    """Describe one parameter of estimators.

    Attributes
    ----------
    name, default
        name and default value.
    words
        description for docstrings.
    limits
        valid values.
    solver
        function that converts a value for the solver, or None if the solver does not use the parameter.
    flag
        flag on the command line, or None.
    kind
        type for docstrings, "" if the constructor's annotation says it.
    """

    name: str
    default: Any
    words: str = ""
    limits: Limits | Number = ANY
    solver: Callable[[Any], Any] | None = None
    flag: Flag | None = None
    kind: str = ""


def described(doc: str | None) -> dict[str, dict[str, Any]]:
    """Return the types and descriptions of the parameters that the docstring ``doc`` describes, as a dict by name.

    Each value is a dict with the keys "kind" for the type and "words" for the description. The result is empty under
    python -OO, which drops docstrings.
    """
    found = re.findall(r"^(\w+)(?: : (.+))?\n((?:    .*\n)+)", doc or "", re.MULTILINE)
    return {name: {"kind": kind, "words": " ".join(words.split())} for name, kind, words in found}


def _same(value: Any) -> Any:
    return value


_AUTO = ("auto",)
_DESCRIBED = described(__doc__)
_LAYOUTS = choice("auto", "dense", "bits", "csr", "clustered", "hybrid", "inverted")
_FLAGS = {
    "C": Flag("-c", "C: the weight of the loss."),
    "nu": Flag("-n", "nu of nu-SVC, one-class SVM and nu-SVR: about the share of rows that are errors."),
    "epsilon": Flag("-p", "epsilon of epsilon-SVR: errors up to it cost nothing."),
    "tol": Flag("-e", "Stop when the KKT violation is at most this."),
    "cache_size": Flag("-m", "Kernel cache in MB, or 'auto': a share of the memory limit.", "MB"),
    "max_iter": Flag("--max-iter", "Stop after so many SMO iterations; -1: no limit."),
    "working_set_size": Flag("--working-set-size", "Rows solved at a time, or 'auto'."),
    "gap_tol": Flag("--gap-tol", "Stop as soon as the relative duality gap is this small."),
    "dtype": Flag("--dtype", "float32 or float64: kernel values."),
    "precision": Flag("--precision", "float32 or fast: use the device's matrix units if they are accurate enough."),
    "layout": Flag("--layout", "auto, dense, bits, csr, clustered, hybrid or inverted: rows on the device."),
    "max_time": Flag("--max-time", "Stop after so many seconds."),
    "checkpoint_every": Flag("--checkpoint-every", "Seconds between two writes of the checkpoint.", "SECONDS"),
}


def _parameter(
    name: str, default: Any, limits: Limits | Number = ANY, solver: Callable[[Any], Any] | None = None
) -> Parameter:
    """Return the record of the estimators' parameter ``name``.

    The description comes from this module's docstring, and the command-line flag from _FLAGS.

    solver: function that converts the value for the solver, or None if the solver does not use the parameter.
    """
    return Parameter(name, default, limits=limits, solver=solver, flag=_FLAGS.get(name), **_DESCRIBED.get(name, {}))


PARAMETERS: dict[str, Parameter] = {
    one.name: one
    for one in (
        _parameter("C", 1.0, Number(above=0, infinite=True)),
        _parameter("nu", 0.5, Number(above=0, most=1)),
        _parameter("epsilon", 0.1, Number(least=0)),
        _parameter("kernel", "rbf"),
        _parameter("degree", 3),
        _parameter("gamma", "scale"),
        _parameter("coef0", 0.0),
        _parameter("shrinking", True, BOOLEAN),
        _parameter("tol", 1e-3, Number(above=0), float),
        _parameter("cache_size", "auto", Number(least=0, alternatives=_AUTO), _same),
        _parameter("class_weight", None),
        _parameter("verbose", False, solver=_same),
        _parameter("max_iter", -1, Number(least=-1, whole=True), lambda value: min(int(value), 2**62)),
        _parameter("decision_function_shape", "ovr", choice("ovr", "ovo")),
        _parameter("break_ties", False, BOOLEAN),
        _parameter("random_state", None),
        _parameter("device", None, solver=_same),
        _parameter("working_set_size", "auto", Number(least=2, whole=True, alternatives=_AUTO), _same),
        _parameter("gap_tol", None, Number(above=0, alternatives=(None,)), _same),
        _parameter("dtype", "float32", choice("float32", "float64"), _same),
        _parameter("precision", "float32", choice("float32", "fast"), _same),
        _parameter("memory_limit", None, solver=_same),
        _parameter("layout", "auto", _LAYOUTS, _same),
        _parameter("multi_class", "ovo", choice("ovo", "ovr", "crammer_singer")),
        _parameter("bias", True, BOOLEAN),
        _parameter("max_time", None, Number(above=0, alternatives=(None,)), _same),
        _parameter("warm_start", False, BOOLEAN),
        _parameter("checkpoint", None, _FILE_NAME, _same),
        _parameter("checkpoint_every", 60.0, Number(least=0), float),
    )
}


class Options(SimpleNamespace):
    """Hold the values of the parameters that the solver uses, as attributes of the same names.

    A parameter that is not given has its default value. Raises TypeError for an unknown parameter.
    """

    def __init__(self, **given: Any) -> None:
        readers = {name: one.solver for name, one in PARAMETERS.items() if one.solver}
        if unknown := sorted(given.keys() - readers.keys()):
            raise TypeError(f"got {', '.join(unknown)}, expected {', '.join(readers)}")
        super().__init__(**{name: read(given.get(name, PARAMETERS[name].default)) for name, read in readers.items()})

    def replace(self, **changed: Any) -> Options:
        """Return a copy in which the parameters ``changed`` have new values."""
        return Options(**{**self.__dict__, **changed})
