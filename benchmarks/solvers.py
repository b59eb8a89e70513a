"""Solvers as records, the forms of their rows, interleaved timed fits, and processes with a time limit."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

TOL = 1e-3  # the KKT tolerance of every solver
CACHE_MB = 2000.0  # the size of every solver's kernel cache
EPSILON = 0.1  # of SVR, for targets of deviation 1
THIN = 0.025  # the density above which LIBSVM is faster on an array than on CSR rows
SPARSE = 0.5  # an upper bound of the same density for oneDAL
Reply = Callable[[Any], Any]


@dataclass(frozen=True)
class Solver:
    """A library whose fits are timed.

    module: the module of its estimators. dtypes: the number types that it computes with, the fastest first, or none if
    it takes rows of any type. sparse: the density below which it gets CSR rows.
    """

    module: str = ""
    dtypes: tuple[str, ...] = ("float32", "float64")
    sparse: float = THIN


SOLVERS = {
    "clsvm": Solver("clsvm", ()),
    "onedal": Solver("sklearnex.svm", sparse=SPARSE),  # (imported by name)
    "libsvm": Solver("sklearn.svm", ("float64",)),
    "nystroem": Solver(),
}


def nonzeros(X: Any) -> int:
    """Return the number of non-zero entries."""
    return int(X.count_nonzero() if sp.issparse(X) else np.count_nonzero(X))


def dense(X: Any) -> Any:
    """Return rows as an array."""
    return X.toarray() if sp.issparse(X) else X


def native(X: Any) -> str:
    """Return the form of rows, for example "CSR float64"."""
    return f"{'CSR' if sp.issparse(X) else 'dense'} {X.dtype}"


def forms(solver: str, X: Any) -> tuple[str, ...]:
    """Return the forms of rows with which a solver is tried, for example "dense float32".

    A benchmark counts the fastest form with a correct result. clsvm gets the rows without a conversion.
    """
    one, share = SOLVERS[solver], nonzeros(X) / max(1, X.shape[0] * X.shape[1])
    layouts = ["dense"] * (share >= THIN) + ["CSR"] * (share < one.sparse)
    return tuple(f"{layout} {dtype}" for dtype in one.dtypes for layout in layouts) or (native(X),)


def formed(X: Any, form: str) -> Any:
    """Return rows in one of the forms, so that a fit converts nothing."""
    layout, dtype = form.split()
    return sp.csr_matrix(X, dtype=dtype) if layout == "CSR" else np.ascontiguousarray(dense(X), dtype)


def parameters(problem: Any, tol: float = TOL, cache_mb: float = CACHE_MB) -> dict[str, Any]:
    """Return the parameters of any library's SVC or SVR for a problem as of sets.Problem."""
    given = {"C": problem.C, "gamma": problem.gamma, "tol": tol, "cache_size": cache_mb}
    return given | ({"epsilon": EPSILON} if problem.numbers else {})


def made(solver: str, kind: str, given: Mapping[str, Any], **ours: Any) -> Any:
    """Return an estimator of the class ``kind``. ours: parameters for clsvm alone."""
    module = importlib.import_module(SOLVERS[solver].module)  # (scikit-learn itself stays unpatched)
    return getattr(module, kind)(**{**given, **(ours if solver == "clsvm" else {})})


def own(solver: str, model: Any) -> None:
    """Raise RuntimeError if scikit-learn-intelex left a fit to scikit-learn."""
    if solver == "onedal" and not hasattr(model, "_onedal_estimator"):
        raise RuntimeError("scikit-learn-intelex fell back to scikit-learn")


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds and the value of a call, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = perf_counter()
        value = call()
        return perf_counter() - began, value


def interleaved(calls: Mapping[Any, Callable[[], Any]], repeats: int) -> dict[Any, tuple[list[float], Any]]:
    """Return the seconds and the last value of each call, which is made ``repeats`` times, interleaved with the others.

    The time of garbage collection before a call does not count.
    """
    spent: dict[Any, list[float]] = {name: [] for name in calls}
    last: dict[Any, Any] = {}
    for _ in range(repeats):
        for name, call in calls.items():
            last.pop(name, None)
            gc.collect()
            seconds, last[name] = timed(call)
            spent[name].append(seconds)
            print(f"{name} {seconds:.3f} s", file=sys.stderr, flush=True)
    return {name: (spent[name], last[name]) for name in calls}


def fields_of(report: Any, *names: str) -> dict[str, Any]:
    """Return attributes of a report by name."""
    return {name: getattr(report, name) for name in names}


def fitted(solver: str, model: Any, X: Any, y: Any) -> float:
    """Return the seconds of a fit, and print them."""
    seconds, _ = timed(lambda: model.fit(X, y))
    own(solver, model)
    print(f"{solver} {X.shape[0]}x{X.shape[1]} {seconds:.3f} s", file=sys.stderr, flush=True)
    return seconds


def fitting(
    load: Callable[[], Any], solver: str, form: str, given: Mapping[str, Any], ours: Mapping[str, Any], first: int = 0
) -> Reply:
    """Return a function that fits the SVC or SVR of a problem in one form of its rows, and answers requests.

    The requests "fit", a number of first rows and a dictionary of changed parameters give the seconds of a fit. A pair
    of training and test rows gives the seconds of a fit to the former and the score on the latter. "model" gives the
    last model, and "solution" the attributes that the checks read. first: rows of an untimed fit before all requests.
    """
    problem = load()
    X, y, kind = formed(problem.X, form), problem.y, "SVR" if problem.numbers else "SVC"
    model: Any = None

    def fit(rows: Any, **changed: Any) -> float:
        nonlocal model
        model, one = None, made(solver, kind, {**given, **changed}, **ours)
        seconds, model = fitted(solver, one, X[rows], y[rows]), one
        return seconds

    def reply(request: Any) -> Any:
        if isinstance(request, tuple):
            train, test = request
            seconds, found = fit(train), model.predict(X[test])
            return seconds, float(np.mean((found - y[test]) ** 2 if problem.numbers else found == y[test]))
        if isinstance(request, dict):
            return fit(slice(None), **request)
        if request in ("model", "solution"):
            return model if request == "model" else solution(model)
        return fit(slice(None if request == "fit" else request))

    if first:
        fit(slice(first))
    return reply


def solution(model: Any) -> SimpleNamespace:
    """Return the attributes of a model that the checks read, and clsvm's report, in a form that can be pickled."""
    coef = np.asarray(dense(model.dual_coef_), np.float64)
    names = ("support_", "intercept_", "classes_", "epsilon")
    found = SimpleNamespace(dual_coef_=coef, **{one: getattr(model, one) for one in names if hasattr(model, one)})
    found.report = model.fit_report_.to_dict() | {"trace": []} if hasattr(model, "fit_report_") else {}
    return found


class TooLongError(Exception):
    """No reply came within the limit."""


class Worker:
    """Reply requests in a fresh process by the function that ``make(*given)`` returns.

    limit: seconds of a reply, without those of ``make``; 0: no limit, and no process. The first error in the process
    ends it, and is raised as RuntimeError.
    """

    def __init__(self, limit: float, make: Callable[..., Reply], *given: Any, **more: Any) -> None:
        self.limit = limit
        if not limit:
            self._reply = make(*given, **more)
            return
        context = multiprocessing.get_context("spawn")
        self._line, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, make, given), daemon=True)
        self._process.start()
        other.close()
        self._received()

    def ask(self, request: Any) -> Any:
        """Return the reply; end the process and raise TooLongError if the reply takes longer than the limit."""
        if not self.limit:
            return self._reply(request)
        began = perf_counter()
        self._line.send(request)
        in_time = self._line.poll(self.limit) and perf_counter() - began <= self.limit  # (this process may sleep too)
        if not in_time:
            self.end()
            raise TooLongError(f"> {self.limit:g} s")
        return self._received()

    def _received(self) -> Any:
        try:
            right, reply = self._line.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the process ended with code {self._process.exitcode}") from None
        if not right:
            raise RuntimeError(reply)
        return reply

    def end(self) -> None:
        """End the process."""
        if self.limit:
            self._process.kill()
            self._process.join()
            self._line.close()


def _serve(line: Connection, make: Callable[..., Reply], given: tuple[Any, ...]) -> None:
    """Serve requests in the process; the first message says whether ``make`` succeeded."""
    try:
        reply = make(*given)
        line.send((True, None))
        while True:
            line.send((True, reply(line.recv())))
    except EOFError:
        return
    except Exception as error:
        line.send((False, f"{type(error).__name__}: {error}"))


@dataclass(eq=False)
class Contestant:
    """A solver with one form of its rows, and the seconds of its fits. failed: why it ended, or an empty string."""

    name: str
    form: str
    repeats: int
    worker: Worker
    seconds: list[float] = field(default_factory=list)
    failed: str = ""
    too_long: bool = False

    def ask(self, request: Any) -> Any:
        """Return the worker's reply, or None if the contestant failed, now or before."""
        if self.failed:
            return None
        try:
            return self.worker.ask(request)
        except Exception as error:
            self.too_long = isinstance(error, TooLongError)
            told = self.too_long or (isinstance(error, RuntimeError) and self.worker.limit)
            self.failed = str(error) if told else f"{type(error).__name__}: {error}"
            return None

    def time(self, request: Any = "fit") -> Any:
        """Return and keep the seconds that the worker answers to a request."""
        if (seconds := self.ask(request)) is not None:
            self.seconds.append(seconds)
        return seconds

    def row(self) -> dict[str, Any]:
        """Return the contestant's names, its state and its seconds, JSON-ready."""
        found = {"solver": self.name, "form": self.form, "failed": self.failed, "too_long": self.too_long}
        return found | (timings(self.seconds) if self.seconds else {})


def later(seconds: Sequence[float]) -> float:
    """Return the median without the first, or the only one."""
    return statistics.median(seconds[1:] or seconds)


def timings(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the seconds of the first fit, the median of the later ones, and all of them."""
    return {"cold": seconds[0], "seconds": later(seconds), "all_seconds": seconds}


@contextmanager
def at_work(
    limit: float, make: Callable[..., Reply], asked: Sequence[tuple[str, str, int, tuple[Any, ...]]]
) -> Iterator[list[Contestant]]:
    """Yield a contestant for each name, form, number of fits and arguments of ``make``; end their processes."""
    contestants: list[Contestant] = []
    try:
        for name, form, repeats, given in asked:
            contestants.append(Contestant(name, form, repeats, Worker(limit, make, *given)))
        yield contestants
    finally:
        for one in contestants:
            one.worker.end()


def turns(contestants: Sequence[Contestant]) -> Iterator[Contestant]:
    """Yield the contestants by turns, so that other load on the computer slows all of them."""
    for turn in range(max((one.repeats for one in contestants), default=0)):
        yield from (one for one in contestants if turn < one.repeats)


def entered(peers: Sequence[str], X: Any, repeats: int, libsvm: int | None = None) -> list[tuple[str, str, int]]:
    """Return name, form and number of fits, of clsvm and of each peer with each form. libsvm: LIBSVM's number."""
    return [
        (solver, form, libsvm if solver == "libsvm" and libsvm else repeats)
        for solver in ("clsvm", *peers)
        for form in forms(solver, X)
    ]


@contextmanager
def entrants(
    load: Callable[[], Any], given: Mapping[str, Any], asked: Any, first: int = 0
) -> Iterator[list[Contestant]]:
    """Yield contestants for the problem that ``load`` returns: clsvm and the requested peers with each form.

    Each contestant has a process if the options have a limit. LIBSVM, which builds no programs, fits once. first: see
    :func:`fitting`.
    """
    every = entered(asked.peers, load().X, asked.repeats, getattr(asked, "repeats_libsvm", 1))
    works = [(*one, (load, *one[:2], given, {"device": asked.device}, first)) for one in every]
    with at_work(getattr(asked, "limit", 0), fitting, works) as made:
        yield made
