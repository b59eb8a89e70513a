"""Fits one data set with clsvm and its peers in turns, times every fit and checks every solution.

Order: ours, peer, peer, ours, peer, ... so that whatever else the machine does falls on all alike. The first fit of
each is its cold one; `warm` is the median of the later ones. LIBSVM has nothing to warm up, so one fit of it is enough.
"""

from __future__ import annotations

import gc
import hashlib
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks import check, solvers
from benchmarks.sets import Problem, load

REPORT_ERROR = 2e-4
"""How far the reported violation and gap may stand from the recomputed ones before a note says so."""
DECISION_DIFFERENCE = 1e-2
"""The same for a test decision and LIBSVM's."""


@dataclass(frozen=True, slots=True)
class Options:
    """What one comparison is asked to do."""

    peers: tuple[str, ...]
    data: Path | None
    repeats: int = 3
    """Fits of each solver in all, the cold one included."""
    repeats_libsvm: int = 1
    tol: float = 1e-3
    cache_mb: float = 2000
    """Kernel cache in MB, the same for everyone."""
    device: str | None = None


@dataclass(slots=True)
class Contestant:
    """One solver with one form of its input."""

    solver: str
    form: str
    """What it is given: one of solvers.forms."""
    repeats: int
    seconds: list[float] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    """Of the bits of support_ and dual_coef_ after each fit: one when the solver repeats itself exactly."""
    model: Any = None
    error: str = ""


def fit_set(name: str, options: Options) -> dict[str, Any]:
    """Times and checks of one data set, JSON-ready. Meant for a process of its own, so that cold is cold."""
    problem = load(name, options.data)
    started = time.perf_counter()
    import clsvm

    _ = clsvm.SVC  # the package loads its parts when they are first named

    imported = time.perf_counter() - started
    made = contestants(problem, options)
    given = rows_of(made, problem.X)
    for turn in range(max(one.repeats for one in made)):
        for one in made:
            if turn < one.repeats:
                fit(one, given, problem, options)
    return head(problem, options) | {"import_seconds": imported, "rows": results(made, problem, options)}


def rows_of(contestants: list[Contestant], X: Any) -> dict[str, Any]:
    """Return the rows in each form of the contestants' inputs."""
    return {form: solvers.formed(X, form) for form in {one.form for one in contestants}}


def head(problem: Problem, options: Options) -> dict[str, Any]:
    """What a result says of its set, and of what was asked."""
    import clsvm

    n, d = problem.X.shape
    return {
        "set": problem.name,
        "n": n,
        "d": d,
        "density": float(sp.csr_matrix(problem.X).nnz / (n * d)),
        "C": problem.C,
        "gamma": problem.gamma,
        "tol": options.tol,
        "cache_mb": options.cache_mb,
        "clsvm": clsvm.__version__,
    }


def contestants(problem: Problem, options: Options) -> list[Contestant]:
    """Return ours first, then the peers in the order given, each with every form of its input."""
    return [
        Contestant(name, form, options.repeats_libsvm if name == "libsvm" else options.repeats)
        for name in ("clsvm", *options.peers)
        for form in solvers.forms(name, problem.X)
    ]


def fit(contestant: Contestant, given: Mapping[str, Any], problem: Problem, options: Options) -> None:
    """One timed fit, unless one failed before. A failure is kept as a row of the table rather than ending the run."""
    if contestant.error:
        return
    contestant.model = None
    gc.collect()
    try:
        common = solvers.parameters(problem.C, problem.gamma, options.tol, options.cache_mb)
        model, X = solvers.made(contestant.solver, "SVC", common, device=options.device), given[contestant.form]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            started = time.perf_counter()
            model.fit(X, problem.y)
            seconds = time.perf_counter() - started
        solvers.own(contestant.solver, model)
    except Exception as error:
        contestant.error = f"{type(error).__name__}: {error}"
        traceback.print_exc()
        return
    contestant.model = model
    contestant.seconds.append(seconds)
    bits = model.support_.tobytes() + check.full_coef(model, len(problem.y)).tobytes()
    contestant.digests.add(hashlib.sha256(bits).hexdigest())
    said = "".join(f"; {warning.message}" for warning in caught)
    print(f"{problem.name}: {contestant.solver} {contestant.form} {seconds:.3f} s{said}", file=sys.stderr, flush=True)


def results(contestants: list[Contestant], problem: Problem, options: Options) -> list[dict[str, Any]]:
    """One JSON-ready row for each contestant, judged against the best feasible dual among them."""
    kernel_fn = check.kernel("rbf", gamma=problem.gamma)
    checks, decisions = {}, {}
    for i, contestant in enumerate(contestants):
        if contestant.model is not None:
            coef, b = check.full_coef(contestant.model, len(problem.y)), float(contestant.model.intercept_[0])
            checks[i] = check.recompute(problem.X, problem.y, problem.C, coef, b, kernel_fn)
            support = np.flatnonzero(coef)
            decisions[i] = check.responses(problem.X_test, problem.X[support], coef[support], kernel_fn) + b
    misses = dict(zip(checks, check.judged([*checks.values()], problem.C, options.tol), strict=True))
    libsvm = next((decisions[i] for i in decisions if contestants[i].solver == "libsvm"), None)

    rows = []
    for i, contestant in enumerate(contestants):
        row: dict[str, Any] = {"solver": contestant.solver, "form": contestant.form, "error": contestant.error}
        if i in checks:
            row |= {
                "cold": contestant.seconds[0],
                "warm": statistics.median(contestant.seconds[1:] or contestant.seconds),
                "seconds": contestant.seconds,
                "same_bits": len(contestant.digests) == 1,
                **asdict(checks[i]),
                "misses": misses[i],
            }
            if contestant.solver == "clsvm":
                exact, started = decisions[i], time.perf_counter()
                decisions[i] = np.asarray(contestant.model.decision_function(problem.X_test), np.float64)
                row["predict_seconds"] = time.perf_counter() - started
                row["decision_error"] = _largest(decisions[i] - exact)
                row["report"] = _report(contestant.model.fit_report_)
            row["accuracy"] = float(np.mean((decisions[i] > 0) == (problem.y_test > 0)))
            row["decision_difference"] = None
            if libsvm is not None and contestant.solver != "libsvm":
                row["decision_difference"] = _largest(decisions[i] - libsvm)
            row["notes"] = _notes(row)
        rows.append(row)
    return rows


def _notes(row: dict[str, Any]) -> list[str]:
    """What is worth knowing about a row beside its own misses: ours against its own report, its repeats and LIBSVM."""
    if row["solver"] != "clsvm":
        return []
    notes = [] if row["same_bits"] else ["its repeats differ in their bits"]
    for part in ("violation", "gap"):
        if not abs(row["report"][part] - row[part]) <= REPORT_ERROR:
            notes.append(f"reports {part} {row['report'][part]:.3e}, recomputed {row[part]:.3e}")
    if (row["decision_difference"] or 0.0) > DECISION_DIFFERENCE:
        notes.append(f"a test decision is {row['decision_difference']:.2g} off LIBSVM's")
    return notes


def _largest(difference: Any) -> float:
    return float(np.max(np.abs(difference)))


def _report(report: Any) -> dict[str, Any]:
    """The fit's own record, JSON-ready: numbers, words, seconds by part."""
    record = {part.name: getattr(report, part.name) for part in fields(report)}
    return {key: dict(value) if isinstance(value, Mapping) else value for key, value in record.items()}
