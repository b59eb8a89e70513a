"""Machines on centres: a pass K(X, C)'(K(X, C) V) over the rows, and whole fits with their preconditioners."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.metrics.pairwise import rbf_kernel

import clsvm
from benchmarks.gpu import training
from benchmarks.gpu.peaks import peaks_of, speed
from benchmarks.gpu.plan import Asked
from benchmarks.ladder_device import Bench, Clock, Peaks
from clsvm import kernels
from clsvm.gram import layouts
from clsvm.gram.products import Gram
from clsvm.gram.sums import Sums

FEATURES, OUTPUTS, CENTERS = (54, 784), (1, 10), 4096
ROWS, LEAST = 200_000, 4096  # of a pass at most, and of the one that is checked
PASS = 0.01  # of the limit: what a pass takes at most, about, at the arithmetic peak
TOLERANCE = 1e-4  # of the largest sum
FIT = 0.2  # of the limit: what the passes of a fit take at most, likewise
PASSES = 40  # of a fit, about
MACHINES: dict[str, dict[str, Any]] = {
    "covtype": {"penalty": 1e-7, "gamma": 10.0},
    "mnist10": {"penalty": 1e-6, "gamma": 0.02},
}
GROWING = 2048, 4096  # centres of a fit at least and at most


def nystrom(asked: Asked) -> Iterator[dict[str, Any]]:
    """TFLOP/s of passes, of 2 n m (d + 2 k) for k outputs; seconds, parts and accuracy of fits of sets that are there,
    the first and a second one. Raises ArithmeticError at the end where a pass is wrong."""
    wrong = []
    with Bench(asked.device) as bench:
        gflops, most = speed(bench), peaks_of(bench)
        for d in FEATURES:
            for k in OUTPUTS:
                row = _passes(bench, most, d, k, gflops, asked.seconds)
                wrong += [f"d = {d}, k = {k}"] * (not row["right"])
                yield {"passes": [row]}
    for name, parameters in MACHINES.items():
        if asked.data is not None:
            yield {"machines": [_fits(asked, name, parameters, gflops)]}
    if wrong:
        raise ArithmeticError(f"wrong passes: {'; '.join(wrong)}")


def _passes(bench: Bench, most: Peaks, d: int, k: int, gflops: float, limit: float) -> dict[str, Any]:
    """A pass over as many rows as take their share of the limit, beside the peaks, and one that is checked."""
    n = int(min(ROWS, max(LEAST, 1e9 * gflops * PASS * limit / (2 * CENTERS * (d + 2 * k)))))
    rng = np.random.default_rng(d + k)
    X, V = rng.random((n, d), np.float32), rng.normal(size=(k, CENTERS))
    rbf = kernels.make("rbf", gamma=6.0 / d)
    found: dict[str, Any] = {"n": n, "m": CENTERS, "d": d, "k": k}
    for rows in (min(n, LEAST), n):
        with bench.section() as part:
            stream, some = part.stream, X[:rows]
            plan = layouts.choose(stream.profile, some, rbf.spec, "dense")
            gram = Gram(stream, layouts.build(stream, some, plan, "float32"), rbf)
            panel, count = gram.panel(CENTERS, square=True), stream.upload(np.array([CENTERS], np.int32))
            gram.gather(panel, stream.upload(gram.rows.position[:CENTERS]), count)
            sums = Sums(gram, panel, CENTERS, k)
            if rows == min(n, LEAST):
                K = rbf_kernel(some.astype(np.float64), X[:CENTERS].astype(np.float64), 6.0 / d)
                expected = (K.T @ (K @ V.T)).T
                error = np.abs(np.asarray(sums.forward_back(V)).reshape(expected.shape) - expected).max()
                found |= {"error": float(error / np.abs(expected).max())}
                found["right"] = found["error"] <= TOLERANCE
            if rows == n:
                clock = Clock(min(1.0, limit / 20))
                clock.run(part, most.launches | {"pass": lambda sums=sums: sums.forward_back(V)})
                rates, spent = most.rates(clock), clock.best["pass"]
                found |= {"seconds": spent, "gflops": 2e-9 * n * CENTERS * (d + 2 * k) / spent}
                found["of_arithmetic"] = found["gflops"] / rates["fma_gflops"]
    return found


def _fits(asked: Asked, name: str, parameters: dict[str, Any], gflops: float) -> dict[str, Any]:
    """Two fits of one set; fewer centres on a slower device."""
    X, y, X_test, y_test = training.SETS[name].make(asked.data or Path())
    n, d = X.shape
    m = int(np.clip(1e9 * gflops * FIT * asked.seconds / (2 * PASSES * n * d), *GROWING)) // 1024 * 1024
    spent = []
    for _ in range(2):
        machine = clsvm.FalkonClassifier(n_centers=m, tol=1e-3, random_state=0, device=asked.device, **parameters)
        began = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            machine.fit(X, y)
        spent.append(perf_counter() - began)
    report = machine.fit_report_
    found = {"set": name, "n": n, "d": d, "m": m, "cold": spent[0], "warm": spent[1], "parts": dict(report.seconds)}
    found |= {"passes": report.passes, "status": report.status, "factors": report.factors, "centers": report.centers}
    return found | {"accuracy": float(np.mean(machine.predict(X_test) == y_test))}
