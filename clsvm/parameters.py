"""The parameters of estimators: one table of names, defaults, limits and words.

Constructors are checked against it and documented from it, fits read their options of the solver from it, and the
command line has its flags from it. Constructors write their signatures out, as scikit-learn reads them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast


def _is_truth(value: Any) -> bool:
    """Return whether a value is Python's or NumPy's True or False (NumPy is slow to import)."""
    return isinstance(value, bool) or (type(value).__module__, type(value).__name__[:4]) == ("numpy", "bool")


class Limits:
    """What values a parameter can have; ``expected``: in words."""

    expected = ""

    def check(self, name: str, value: Any) -> None:
        """Raises TypeError or ValueError for a value outside: what was got, and what was expected."""

    def read(self, text: str) -> Any:
        """Return the value that a word of a command line stands for. Raises ValueError as :meth:`check`."""
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
        upper = f" and <= {self.most}" if self.most is not None else "" if endless else " and finite"
        return bounds + upper

    def check(self, name: str, value: Any) -> None:
        if any(value is word or (isinstance(value, str) and value == word) for word in self.or_else):
            return
        words = "".join(f" or {word!r}" for word in self.or_else)
        if _is_truth(value) or not isinstance(value, Integral if self.whole else Real):
            kind = "an integer" if self.whole else "a number"
            raise TypeError(f"{name} must be {kind} {self.expected.removesuffix(' and finite')}{words}, got {value!r}")
        value = cast(float, value)
        finite = -math.inf < value < math.inf or (self.infinite and value == math.inf)
        inside = (self.above is None or value > self.above) and (self.least is None or value >= self.least)
        if not (finite and inside and (self.most is None or value <= self.most)):
            raise ValueError(f"{name} must be {self.expected}{words}, got {value!r}")

    def read(self, text: str) -> Any:
        try:
            return text if text in self.or_else else int(text) if self.whole else float(text)
        except ValueError:
            kind = "an integer" if self.whole else "a number"
            words = "".join(f" or {word!r}" for word in self.or_else if word is not None)
            raise ValueError(f"got {text!r}, expected {kind} {self.expected}{words}") from None


@dataclass(frozen=True)
class Choice(Limits):
    """One of a fixed set of words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"{', '.join(map(repr, self.words[:-1]))} or {self.words[-1]!r}"

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError(f"{name} must be {self.expected}, got {value!r}")


@dataclass(frozen=True)
class Truth(Limits):
    """True or False."""

    expected = "True or False"

    def check(self, name: str, value: Any) -> None:
        if not _is_truth(value):
            raise TypeError(f"{name} must be True or False, got {value!r}")


@dataclass(frozen=True)
class FileName(Limits):
    """The name of a file, or None."""

    expected = "the name of a file or None"

    def check(self, name: str, value: Any) -> None:
        if value is not None and not isinstance(value, str | os.PathLike):
            raise TypeError(f"{name} must be {self.expected}, got {value!r}")


@dataclass(frozen=True)
class Flag:
    """A parameter on the command line: its flag, what is said of it there, a name for its value."""

    name: str
    help: str
    metavar: str | None = None


@dataclass(frozen=True)
class Parameter:
    """One parameter. words: what it is, for docstrings. limits: its values, where they are checked by themselves alone.
    solver: how a fit reads it; None: fits do not. flag: of the command line."""

    name: str
    default: Any
    words: str
    limits: Limits = field(default_factory=Limits)
    solver: Callable[[Any], Any] | None = None
    flag: Flag | None = None


def _as_it_is(value: Any) -> Any:
    return value


_LISTED = (
    Parameter(
        "C",
        1.0,
        "the weight of the loss, above 0; infinity is a hard margin (not of NuSVR)",
        Number(above=0, infinite=True),
        flag=Flag("-c", "C: the weight of the loss."),
    ),
    Parameter(
        "nu",
        0.5,
        "above 0 and at most 1: at most that share of the rows errs (of a regression lies outside the tube, of "
        "one class outside the boundary), at least that share are support vectors",
        Number(above=0, most=1),
        flag=Flag("-n", "nu of nu-SVC, one-class SVM and nu-SVR: about the share that err."),
    ),
    Parameter(
        "epsilon",
        0.1,
        "half the width of the tube in which errors are free",
        Number(least=0),
        flag=Flag("-p", "epsilon of epsilon-SVR: errors up to it are free."),
    ),
    Parameter(
        "kernel",
        "rbf",
        "a name of clsvm.kernels.BUILTIN ('clsvm kernels list'); a clsvm.Kernel; 'precomputed': X is K (n, "
        "n), in predict (rows, n); or a function of two sets of rows that returns K between them, evaluated on the "
        "host",
    ),
    Parameter("degree", 3, "of the kernels that have one, given by name: a whole number"),
    Parameter(
        "gamma",
        "scale",
        "of the kernels that have one, given by name: 'scale', 1 / (d var(X)); 'auto', 1 / d; or a number above 0",
    ),
    Parameter("coef0", 0.0, "of the kernels that have one, given by name: a number"),
    Parameter("shrinking", True, "taken for scikit-learn's sake, without effect", Truth()),
    Parameter(
        "tol",
        1e-3,
        "the KKT violation at which the solver stops",
        Number(above=0),
        float,
        Flag("-e", "Stop where the KKT violation is at most this."),
    ),
    Parameter(
        "cache_size",
        "auto",
        "MB of kernel rows that are kept, or 'auto': what memory_limit has room for, where keeping rows pays",
        Number(least=0, or_else=("auto",)),
        _as_it_is,
        Flag("-m", "Kernel cache in MB, or 'auto': a share of the memory limit.", "MB"),
    ),
    Parameter(
        "class_weight",
        None,
        "what multiplies C (of NuSVC the bounds) for each class: a dict, 'balanced' or None; a class of weight 0 is "
        "left out",
    ),
    Parameter(
        "verbose",
        False,
        "show progress on stderr: a bar on a terminal, else a line now and then and one at the end",
        solver=_as_it_is,
    ),
    Parameter(
        "max_iter",
        -1,
        "the most pair steps of a machine; of 'crammer_singer' a step solves one row; -1: no limit",
        Number(least=-1, whole=True),
        lambda value: min(int(value), 2**62),
        Flag("--max-iter", "Stop after so many steps; -1: no limit."),
    ),
    Parameter(
        "decision_function_shape",
        "ovr",
        "of more than two classes: 'ovr', a column for each class, or 'ovo', one for each pair",
        Choice(("ovr", "ovo")),
    ),
    Parameter(
        "break_ties",
        False,
        "with 'ovr', of classes with as many votes take the one with the largest decision value",
        Truth(),
    ),
    Parameter("random_state", None, "taken for scikit-learn's sake; nothing is drawn"),
    Parameter(
        "device",
        None,
        "None (CLSVM_DEVICE, else a usable GPU, else a usable CPU), 'gpu', 'cpu', a number of 'clsvm "
        "devices', part of a platform's or device's name, 'name:1' for the second of those that such a part names, or "
        "a pyopencl Device or CommandQueue; or a list of such: rows are then split over them, and machines of several "
        "classes dealt to them",
        solver=_as_it_is,
    ),
    Parameter(
        "working_set_size",
        "auto",
        "rows that are solved at a time, or 'auto': what costs least by the device's measured rates",
        Number(least=2, whole=True, or_else=("auto",)),
        _as_it_is,
        Flag("--working-set-size", "Rows of one step, or 'auto'."),
    ),
    Parameter(
        "gap_tol",
        None,
        "stop as soon as the relative duality gap is this small; None: tol alone decides",
        Number(above=0, or_else=(None,)),
        _as_it_is,
        Flag("--gap-tol", "Stop as soon as the relative duality gap is this small."),
    ),
    Parameter(
        "dtype",
        "float32",
        "'float32' or 'float64', of kernel values; sums and coefficients are float64 either way. Where "
        "float32 values cannot reach tol, float64 is taken; the report says so. Where the device has no double "
        "precision, the host solves problems of up to 4096 coefficients (of 'crammer_singer' 600) in float64",
        Choice(("float32", "float64")),
        _as_it_is,
        Flag("--dtype", "float32 or float64: kernel values."),
    ),
    Parameter(
        "precision",
        "float32",
        "'float32', or 'fast': large products of dense rows by the device's matrix units, where it has such (NVIDIA: "
        "three products of tf32, eight times float32's rounding at most; AMD: float32), a trial product is right, and "
        "that rounding hides less than 100 tol; the report says what was used. It is of float32 kernel values in fits: "
        "sums, coefficients, what is evaluated in float64, and predictions are the same either way",
        Choice(("float32", "fast")),
        _as_it_is,
        Flag("--precision", "float32 or fast: by the device's matrix units, where that is fine enough."),
    ),
    Parameter(
        "memory_limit",
        None,
        "bytes, or text such as '2GB'; None: half of what is free on the device",
        solver=_as_it_is,
    ),
    Parameter(
        "layout",
        "auto",
        "how rows stand on the device: 'dense'; 'clustered', rows of like columns side by side; 'csr', entries alone; "
        "'hybrid', the dense columns whole and the rest as entries; 'inverted', the rest by column, on a CPU; "
        "or 'auto': what costs least by the device's rates",
        Choice(("auto", "dense", "csr", "clustered", "hybrid", "inverted")),
        _as_it_is,
        Flag("--layout", "auto, dense, csr, clustered, hybrid or inverted: rows on the device."),
    ),
    Parameter(
        "multi_class",
        "ovo",
        "of more than two classes: 'ovo', a machine for each pair; 'ovr', one for each class against "
        "the rest, the largest value wins: dual_coef_ (k, n_SV), intercept_ (k,), decision_function (n, k); or "
        "'crammer_singer', all classes in one problem without offsets (GTSVM, equation 3): dual_coef_ (k, n_SV), "
        "intercept_ zeros (k,), decision_function (n, k), of two classes their difference (n,)",
        Choice(("ovo", "ovr", "crammer_singer")),
    ),
    Parameter(
        "bias",
        True,
        "whether there is an offset; without one every row is by itself (GTSVM, section 2)",
        Truth(),
    ),
    Parameter(
        "max_time",
        None,
        "seconds after which the solver stops; None: no limit",
        Number(above=0, or_else=(None,)),
        _as_it_is,
        Flag("--max-time", "Stop after so many seconds."),
    ),
    Parameter(
        "warm_start",
        False,
        "go on from the coefficients of the fit before, with another C, another kernel or further rows "
        "after those that it had; each pair of classes, or each class against the rest, goes on from its own, and "
        "these begin anew where the classes are others",
        Truth(),
    ),
    Parameter(
        "checkpoint",
        None,
        "a file to go on from, where it exists, and to write to every checkpoint_every seconds, at the "
        "end and when interrupted; one of other data, C or kernel is refused with a CheckpointError; pairs of classes, "
        "or classes against the rest, that are solved are not solved again for the same tol, gap_tol and dtype",
        FileName(),
        _as_it_is,
    ),
    Parameter(
        "checkpoint_every",
        60.0,
        "seconds from one writing of the checkpoint to the next",
        Number(least=0),
        float,
        Flag("--checkpoint-every", "How often the checkpoint is written.", "SECONDS"),
    ),
)
PARAMETERS: dict[str, Parameter] = {one.name: one for one in _LISTED}


def check(given: Mapping[str, Any], table: Mapping[str, Parameter] = PARAMETERS) -> None:
    """Raises TypeError or ValueError for a parameter, by its name, that is outside of its limits. Names
    that are not the table's are left alone."""
    for name in [name for name in table if name in given]:
        table[name].limits.check(name, given[name])


class Options:
    """What a fit asks of the solver and the machine: a value for each parameter that is theirs, by its name.

    Those that are not given have their defaults. Raises TypeError for one that is not theirs.
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
