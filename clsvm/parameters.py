"""The parameters of estimators: one table of names, defaults, limits, options of the solver and flags.

Constructors are checked against it, fits read their options of the solver from it, and the command line has its flags
from it. Constructors write their signatures out, as scikit-learn reads them. Their docstrings have the words below.

C
    the weight of the loss, above 0; infinity is a hard margin (not of NuSVR)
nu
    above 0 and at most 1: at most that share of the rows errs (of a regression lies outside the tube, of one class
    outside the boundary), at least that share are support vectors
epsilon
    half the width of the tube in which errors are free
kernel
    a name of clsvm.kernels.BUILTIN ('clsvm kernels list'); a clsvm.Kernel; 'precomputed': X is K (n, n), in predict
    (rows, n); or a function of two sets of rows that returns K between them, evaluated on the host
degree
    of the kernels that have one, given by name: a whole number
gamma
    of the kernels that have one, given by name: 'scale', 1 / (d var(X)); 'auto', 1 / d; or a number above 0
coef0
    of the kernels that have one, given by name: a number
shrinking
    taken for scikit-learn's sake, without effect
tol
    the KKT violation at which the solver stops
cache_size
    MB of kernel rows that are kept, or 'auto': what memory_limit has room for, where keeping rows pays
class_weight
    what multiplies C (of NuSVC the bounds) for each class: a dict, 'balanced' or None; a class of weight 0 is left out
verbose
    show progress on stderr: a bar on a terminal, else a line now and then and one at the end
max_iter
    the most pair steps of a machine; of 'crammer_singer' a step solves one row; -1: no limit
decision_function_shape
    of more than two classes: 'ovr', a column for each class, or 'ovo', one for each pair
break_ties
    with 'ovr', of classes with as many votes take the one with the largest decision value
random_state
    taken for scikit-learn's sake; nothing is drawn
device
    None (CLSVM_DEVICE, else a usable GPU, else a usable CPU), 'gpu', 'cpu', a number of 'clsvm devices', part of a
    platform's or device's name, 'name:1' for the second of those that such a part names, or a pyopencl Device or
    CommandQueue; or a list of such: rows are then split over them, and machines of several classes dealt to them
working_set_size
    rows that are solved at a time, or 'auto': what costs least by the device's measured rates
gap_tol
    stop as soon as the relative duality gap is this small; None: tol alone decides
dtype
    'float32' or 'float64', of kernel values; sums and coefficients are float64 either way. Where float32 values cannot
    reach tol, float64 is taken; the report says so. Where the device has no double precision, the host solves problems
    of up to 4096 coefficients (of 'crammer_singer' 600) in float64
precision
    'float32', or 'fast': large products of dense rows by the device's matrix units, where it has such (NVIDIA: three
    products of tf32, eight times float32's rounding at most; AMD: float32), a trial product is right, and that rounding
    hides less than 100 tol; the report says what was used. It is of float32 kernel values in fits: sums, coefficients,
    what is evaluated in float64, and predictions are the same either way
memory_limit
    bytes, or text such as '2GB'; None: half of what is free on the device
layout
    how rows stand on the device: 'dense'; 'clustered', rows of like columns side by side; 'csr', entries alone;
    'hybrid', the dense columns whole and the rest as entries; 'inverted', the rest by column, on a CPU; or 'auto': what
    costs least by the device's rates
multi_class
    of more than two classes: 'ovo', a machine for each pair; 'ovr', one for each class against the rest, the largest
    value wins: dual_coef_ (k, n_SV), intercept_ (k,), decision_function (n, k); or 'crammer_singer', all classes in one
    problem without offsets (GTSVM, equation 3): dual_coef_ (k, n_SV), intercept_ zeros (k,), decision_function (n, k),
    of two classes their difference (n,)
bias
    whether there is an offset; without one every row is by itself (GTSVM, section 2)
max_time
    seconds after which the solver stops; None: no limit
warm_start
    go on from the coefficients of the fit before, with another C, another kernel or further rows after those that it
    had; each pair of classes, or each class against the rest, goes on from its own, and these begin anew where the
    classes are others
checkpoint
    a file to go on from, where it exists, and to write to every checkpoint_every seconds, at the end and when
    interrupted; one of other data, C or kernel is refused with a CheckpointError; pairs of classes, or classes against
    the rest, that are solved are not solved again for the same tol, gap_tol and dtype
checkpoint_every
    seconds from one writing of the checkpoint to the next
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast


def _is_truth(value: Any) -> bool:
    """Return whether a value is Python's or NumPy's True or False (NumPy is slow to import)."""
    return isinstance(value, bool) or (type(value).__module__, type(value).__name__[:4]) == ("numpy", "bool")


class Limits:
    """Say which values a parameter can have: ``expected`` in words, ``ok`` by a test; other ones raise ``error``."""

    expected = ""
    error: type[Exception] = TypeError

    def ok(self, value: Any) -> bool:
        return True

    def check(self, name: str, value: Any) -> None:
        """Raise TypeError or ValueError for a value outside: what was got, and what was expected."""
        if not self.ok(value):
            raise self.error(f"{name} must be {self.expected}, got {value!r}")

    def read(self, text: str) -> Any:
        """Return the value that a word of a command line stands for. Raise ValueError as :meth:`check`."""
        return text


@dataclass(frozen=True)
class Number(Limits):
    """A number above a limit, or at least it, and at most another. or_else: None, or a word, that may stand for it."""

    above: float | None = None
    least: float | None = None
    most: float | None = None
    whole: bool = False
    infinite: bool = False
    or_else: tuple[str | None, ...] = ()

    @property
    def expected(self) -> str:  # type: ignore[override]
        bounds = f"> {self.above}" if self.above is not None else f">= {self.least}"
        endless = self.infinite or self.whole
        return bounds + (f" and <= {self.most}" if self.most is not None else "" if endless else " and finite")

    @property
    def _kind(self) -> str:
        return "an integer" if self.whole else "a number"

    def check(self, name: str, value: Any) -> None:
        if any(value is word or (isinstance(value, str) and value == word) for word in self.or_else):
            return
        words = "".join(f" or {word!r}" for word in self.or_else)
        if _is_truth(value) or not isinstance(value, Integral if self.whole else Real):
            expected = f"{self._kind} {self.expected.removesuffix(' and finite')}"
            raise TypeError(f"{name} must be {expected}{words}, got {value!r}")
        value = cast(float, value)
        finite = -math.inf < value < math.inf or (self.infinite and value == math.inf)
        inside = (self.above is None or value > self.above) and (self.least is None or value >= self.least)
        if not (finite and inside and (self.most is None or value <= self.most)):
            raise ValueError(f"{name} must be {self.expected}{words}, got {value!r}")

    def read(self, text: str) -> Any:
        try:
            return text if text in self.or_else else int(text) if self.whole else float(text)
        except ValueError:
            words = "".join(f" or {word!r}" for word in self.or_else if word is not None)
            raise ValueError(f"got {text!r}, expected {self._kind} {self.expected}{words}") from None


@dataclass(frozen=True)
class Choice(Limits):
    """One of a fixed set of words."""

    words: tuple[str, ...]
    error = ValueError

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"{', '.join(map(repr, self.words[:-1]))} or {self.words[-1]!r}"

    def ok(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.words


class Truth(Limits):
    """True or False."""

    expected = "True or False"

    def ok(self, value: Any) -> bool:
        return _is_truth(value)


class FileName(Limits):
    """The name of a file, or None."""

    expected = "the name of a file or None"

    def ok(self, value: Any) -> bool:
        return value is None or isinstance(value, str | os.PathLike)


@dataclass(frozen=True)
class Flag:
    """A parameter on the command line: its flag, its help text, and a name for its value."""

    name: str
    help: str
    metavar: str | None = None


@dataclass(frozen=True)
class Parameter:
    """One parameter of estimators.

    words: its description for docstrings. limits: its values, where they are checked by themselves alone. solver: how a
    fit reads it; None: fits do not. flag: of the command line.
    """

    name: str
    default: Any
    words: str
    limits: Limits = field(default_factory=Limits)
    solver: Callable[[Any], Any] | None = None
    flag: Flag | None = None


def described(doc: str | None) -> dict[str, str]:
    """Return the descriptions of parameters in a module's docstring, by their names; none under python -OO."""
    found = re.findall(r"^(\w+)\n((?:    .*\n)+)", doc or "", re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def _same(value: Any) -> Any:
    return value


_ANY, _TRUTH, _AUTO = Limits(), Truth(), ("auto",)
_WORDS = described(__doc__)
_LAYOUTS = Choice(("auto", "dense", "csr", "clustered", "hybrid", "inverted"))
_FLAGS = {
    "C": Flag("-c", "C: the weight of the loss."),
    "nu": Flag("-n", "nu of nu-SVC, one-class SVM and nu-SVR: about the share that err."),
    "epsilon": Flag("-p", "epsilon of epsilon-SVR: errors up to it are free."),
    "tol": Flag("-e", "Stop where the KKT violation is at most this."),
    "cache_size": Flag("-m", "Kernel cache in MB, or 'auto': a share of the memory limit.", "MB"),
    "max_iter": Flag("--max-iter", "Stop after so many steps; -1: no limit."),
    "working_set_size": Flag("--working-set-size", "Rows of one step, or 'auto'."),
    "gap_tol": Flag("--gap-tol", "Stop as soon as the relative duality gap is this small."),
    "dtype": Flag("--dtype", "float32 or float64: kernel values."),
    "precision": Flag("--precision", "float32 or fast: by the device's matrix units, where that is fine enough."),
    "layout": Flag("--layout", "auto, dense, csr, clustered, hybrid or inverted: rows on the device."),
    "max_time": Flag("--max-time", "Stop after so many seconds."),
    "checkpoint_every": Flag("--checkpoint-every", "How often the checkpoint is written.", "SECONDS"),
}


def _listed(name: str, default: Any, limits: Limits = _ANY, solver: Callable[[Any], Any] | None = None) -> Parameter:
    """Return a parameter with the words above and its flag, if it has one."""
    return Parameter(name, default, _WORDS.get(name, ""), limits, solver, _FLAGS.get(name))


PARAMETERS: dict[str, Parameter] = {
    one.name: one
    for one in (
        _listed("C", 1.0, Number(above=0, infinite=True)),
        _listed("nu", 0.5, Number(above=0, most=1)),
        _listed("epsilon", 0.1, Number(least=0)),
        _listed("kernel", "rbf"),
        _listed("degree", 3),
        _listed("gamma", "scale"),
        _listed("coef0", 0.0),
        _listed("shrinking", True, _TRUTH),
        _listed("tol", 1e-3, Number(above=0), float),
        _listed("cache_size", "auto", Number(least=0, or_else=_AUTO), _same),
        _listed("class_weight", None),
        _listed("verbose", False, solver=_same),
        _listed("max_iter", -1, Number(least=-1, whole=True), lambda value: min(int(value), 2**62)),
        _listed("decision_function_shape", "ovr", Choice(("ovr", "ovo"))),
        _listed("break_ties", False, _TRUTH),
        _listed("random_state", None),
        _listed("device", None, solver=_same),
        _listed("working_set_size", "auto", Number(least=2, whole=True, or_else=_AUTO), _same),
        _listed("gap_tol", None, Number(above=0, or_else=(None,)), _same),
        _listed("dtype", "float32", Choice(("float32", "float64")), _same),
        _listed("precision", "float32", Choice(("float32", "fast")), _same),
        _listed("memory_limit", None, solver=_same),
        _listed("layout", "auto", _LAYOUTS, _same),
        _listed("multi_class", "ovo", Choice(("ovo", "ovr", "crammer_singer"))),
        _listed("bias", True, _TRUTH),
        _listed("max_time", None, Number(above=0, or_else=(None,)), _same),
        _listed("warm_start", False, _TRUTH),
        _listed("checkpoint", None, FileName(), _same),
        _listed("checkpoint_every", 60.0, Number(least=0), float),
    )
}


def check(given: Mapping[str, Any], table: Mapping[str, Parameter] = PARAMETERS) -> None:
    """Raise TypeError or ValueError for a parameter of the table, by its name, that is outside of its limits."""
    for name, one in table.items():
        if name in given:
            one.limits.check(name, given[name])


class Options:
    """Hold a value for each parameter of the solver and the machine, by its name.

    Parameters that are not given have their defaults. Raises TypeError for one that is not theirs.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **given: Any) -> None:
        of_solver = {name: one for name, one in PARAMETERS.items() if one.solver}
        if stray := sorted(given.keys() - of_solver.keys()):
            raise TypeError(f"got {', '.join(stray)}, expected {', '.join(of_solver)}")
        for name, one in of_solver.items():
            assert one.solver
            self.__dict__[name] = one.solver(given.get(name, one.default))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"options do not change: other ones are made by but({name}={value!r})")

    def __repr__(self) -> str:
        return f"Options({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def but(self, **changed: Any) -> Options:
        """Return the same with other values."""
        return Options(**{**self.__dict__, **changed})

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Return those among some parameters."""
        return cls(**{name: value for name, value in given.items() if name in PARAMETERS and PARAMETERS[name].solver})
