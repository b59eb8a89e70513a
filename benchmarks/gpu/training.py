"""Training: seconds of whole fits, of their parts and of their kernels, and a check of the solution on a sample.

A slow device gets only the first rows of a data set. The seconds of parts come from a further fit, which waits for the
device after each part. In other fits the host runs ahead of a GPU, and a part that waits has the seconds of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification

import clsvm
from benchmarks import check, sets
from benchmarks.bench import Bench, speed
from benchmarks.gpu.command import Asked, PartialError, ended
from benchmarks.solvers import timed
from clsvm.opencl import devices
from clsvm.opencl.runtime import cl
from clsvm.report import by_part

Data = sets.Split
ALL_OF_K = 0.25  # share of the time limit for all of K at the arithmetic peak
COLD, WARM = 0.55, 0.75  # shares of the time limit, at which the first fit ends and after which no fit begins
FITS = 3  # later fits
SAMPLE = 1000  # rows of the check
DECISIONS = 1e-2  # the error of a decision value at most


@dataclass(frozen=True)
class Training:
    """A data set with the parameters of clsvm.SVC.

    make: makes the data set from the data folder. passes: how often a fit computes all of K, roughly; below 1 if few
    rows are support vectors.
    """

    what: str
    make: Callable[[Path], Data]
    parameters: Mapping[str, Any]
    passes: float = 1.0


def _of(name: str, folder: Path) -> Data:
    return sets.load(name, folder).split


def _covtype(folder: Path, n: int = 522911) -> Data:
    """Return class 2 against the others, with as many training rows as in GTSVM's paper, drawn at random."""
    X, y = sets.covertype(None, folder)
    return X[:n], y[:n].astype(np.float64), X[n:], y[n:]


def _synthetic(_: Path, n: int = 100000, tests: int = 10000) -> Data:
    """Return two classes with 20 informative features of 200; a quarter of the rows become support vectors."""
    X, y = make_classification(n + tests, 200, n_informative=20, n_redundant=20, class_sep=2, random_state=0)
    X, y = (X / X.std(axis=0)).astype(np.float32), np.where(y > 0, 1.0, -1.0)
    return X[:n], y[:n], X[n:], y[n:]


_ALL_AT_ONCE = {"C": 0.5, "gamma": 0.02, "multi_class": "crammer_singer", "gap_tol": 0.01}
SETS: dict[str, Training] = {
    "a9a": Training("a9a", partial(_of, "a9a"), {"C": 1, "gamma": 0.05}),
    "mnist8": Training("MNIST, 8 against the rest", partial(_of, "mnist8"), {"C": 1, "gamma": 0.02}, 0.4),
    "synthetic": Training("synthetic, dense", _synthetic, {"C": 1, "gamma": 0.005}),
    "covtype": Training("Covertype, 2 against the rest, gap 0.01", _covtype, {"C": 3, "gamma": 1, "gap_tol": 0.01}),
    "letter": Training("letter, 26 classes by pairs", partial(_of, "letter"), {"C": 16, "gamma": 4}),
    "mnist10": Training("MNIST, ten classes by pairs", partial(_of, "mnist"), {"C": 1, "gamma": 0.02}),
    "mnist10 at once": Training("MNIST, Crammer and Singer, gap 0.01", partial(_of, "mnist"), _ALL_AT_ONCE),
}


def train(asked: Asked, name: str) -> Iterator[dict[str, Any]]:
    """Fit one data set: a first fit and its check, up to FITS later fits, and a fit that waits after each part."""
    one, began = SETS[name], perf_counter()
    X, y, X_test, y_test = one.make(asked.data or Path())
    whole, d = X.shape
    with Bench(asked.device) as bench:
        gflops, waits = speed(bench), bench.profile.sync == 1
    n = most(gflops, asked.seconds, d, one.passes)
    X, y = X[:n], y[:n]
    parameters = {**one.parameters, "device": asked.device}
    head = {"set": name, "what": one.what, "n": len(y), "of": whole, "d": d, "classes": len(np.unique(y))}
    yield {**head, "parameters": one.parameters, "gflops": gflops, "load_seconds": perf_counter() - began}

    def left(share: float) -> float:
        return began + share * asked.seconds - perf_counter()

    model, seconds = fit(parameters | {"max_time": max(1.0, left(COLD))}, X, y)
    report = model.fit_report_
    told = report.to_dict()
    del told["trace"]
    yield {"cold": seconds, "report": told, "n_support": len(model.support_)}
    if not report.converged:
        raise PartialError(f"{report.status}, after {seconds:.1f} s of {len(y)} rows")
    model.decision_function(X_test)  # copies the support vectors to the device
    spent, predicted = timed(lambda: model.predict(X_test))
    yield {"accuracy": float(np.mean(predicted == y_test)), "predict_seconds": spent}
    checked = _checked(model, X, y, one.parameters)
    yield {"checked": checked}
    warm: list[float] = []
    while len(warm) < FITS and left(WARM) > 1.3 * (warm[-1] if warm else seconds):
        warm.append(fit(parameters, X, y)[1])
        yield {"warm": warm[-1:]}
    if waits:
        yield {"parts": by_part(report.seconds)}
    elif left(WARM) > 2 * min(warm, default=seconds):
        with waiting():
            waited, _ = fit(parameters, X, y)
        yield {"parts": by_part(waited.fit_report_.seconds), "all_parts": dict(waited.fit_report_.seconds)}
    ended([word for word, right in checked.items() if right is False], [])


def most(gflops: float, seconds: float, d: int, passes: float) -> int:
    """Return the number of rows of d features whose K takes its share of the seconds at the arithmetic peak."""
    return int(np.sqrt(1e9 * gflops * ALL_OF_K * seconds / (2 * d * passes)))


def fit(parameters: Mapping[str, Any], X: Any, y: NDArray[Any]) -> tuple[Any, float]:
    """Return a fitted SVC, and the seconds of its fit."""
    model = clsvm.SVC(**parameters)
    return model, timed(lambda: model.fit(X, y))[0]


def waiting() -> Any:
    """Return a context in which the host waits for the device after every part of an outer iteration."""
    usual = devices.default_profile
    return patch("clsvm.opencl.stream.default_profile", lambda info: replace(usual(info), sync=1))


def _checked(model: Any, X: Any, y: NDArray[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Check decision values of SAMPLE training rows in float64, from the coefficients alone.

    Two classes are also checked for optimality within the KKT violation. A model of pairs of classes is not checked.
    """
    rows = np.random.default_rng(0).permutation(len(y))[:SAMPLE]
    coef = np.asarray(model.dual_coef_, np.float64)
    classes = len(model.classes_)
    if classes > 2 and len(coef) != classes:
        return {}
    rbf = check.kernel("rbf", gamma=parameters["gamma"])
    values = check.responses(X[rows], model.support_vectors_, coef.T, rbf)
    values = values + np.asarray(model.intercept_) if classes == 2 else values
    ours = np.asarray(model.decision_function(X[rows])).reshape(values.shape)
    error = float(np.abs(ours - values).max())
    found = {"rows": len(rows), "decision_error": error, "decisions right": error <= DECISIONS}
    if classes > 2:
        return found
    alpha = np.abs(check.full_coef(model, len(y)))[rows]
    margin, C = y[rows] * values[:, 0] - 1, parameters["C"]
    short = -margin[alpha < C * (1 - check.BOUND_SLACK)]
    beyond = margin[alpha > C * check.BOUND_SLACK]
    violation = float(max(short.max(initial=0), beyond.max(initial=0)))
    allowed = check.VIOLATION * max(model.tol, model.fit_report_.violation)
    return found | {"violation": violation, "optimal": violation <= allowed}


# Kernels of a fit.

LIMITS = {"private": "PRIVATE_MEM_SIZE", "local": "LOCAL_MEM_SIZE", "largest_group": "WORK_GROUP_SIZE"}
Launches = list[tuple[Any, Any]]
"""(kernel, event) of each."""


def kernels(asked: Asked, name: str) -> Iterator[dict[str, Any]]:
    """Fit one data set twice on a profiling queue, and yield the launches and seconds of the second fit's kernels."""
    one = SETS[name]
    X, y, *_ = one.make(asked.data or Path())
    whole, d = X.shape
    with Bench(asked.device) as bench:
        device, context, gflops = (
            bench.device,
            bench.context,
            speed(bench),
        )  # the queue needs a reference to its context
    n = min(whole, most(gflops, asked.seconds, d, one.passes))
    yield {"set": name, "what": one.what, "n": n, "of": whole, "d": d, "parameters": one.parameters}
    queue = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
    parameters = {**one.parameters, "device": queue, "max_time": max(1.0, COLD * asked.seconds)}
    fit(parameters, X[:n], y[:n])
    with watched() as launches:
        _, seconds = fit(parameters, X[:n], y[:n])
    queue.finish()
    yield {"fit_seconds": seconds, **summed(launches, device)}


@contextmanager
def watched() -> Iterator[Launches]:
    """Yield a list of the launches in the context, by all threads."""
    launches: Launches = []
    usual = cl.enqueue_nd_range_kernel

    def enqueue(queue: Any, kernel: Any, *given: Any, **named: Any) -> Any:
        event = usual(queue, kernel, *given, **named)
        launches.append((kernel, event))
        return event

    with patch.object(cl, "enqueue_nd_range_kernel", enqueue):
        yield launches


def summed(launches: Launches, device: Any) -> dict[str, Any]:
    """Return the number of launches, their span and busy seconds, the longest wait, and a record of each kernel.

    A record has the bytes of private and local memory from the driver.
    """
    spans = np.array([(event.profile.start, event.profile.end) for _, event in launches], np.int64).reshape(-1, 2)
    found: dict[str, dict[str, Any]] = {}
    for (kernel, _), seconds in zip(launches, 1e-9 * np.diff(spans, axis=1)[:, 0], strict=True):
        words = kernel.function_name
        one = found.setdefault(words, {"kernel": words, "launches": 0, "seconds": 0.0, "longest": 0.0})
        one["launches"] += 1
        one["seconds"] += seconds
        one["longest"] = max(one["longest"], seconds)
        for name, limit in LIMITS.items():  # the largest value of all programs with a kernel of this name
            got = int(kernel.get_work_group_info(getattr(cl.kernel_work_group_info, limit), device))
            one[name] = max(one.get(name, 0), got)
    begins, ends = spans[np.argsort(spans[:, 0])].T
    ends = np.maximum.accumulate(ends)
    waits = 1e-9 * np.maximum(begins[1:] - ends[:-1], 0)
    return {
        "launches": len(launches),
        "span": float(1e-9 * (ends[-1] - begins[0])) if launches else 0.0,
        "busy": float(sum(one["seconds"] for one in found.values())),
        "longest_wait": float(waits.max(initial=0.0)),
        "kernels": sorted(found.values(), key=lambda one: -one["seconds"]),
    }
