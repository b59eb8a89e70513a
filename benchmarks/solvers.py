"""Solvers by the names that the command line knows: how one is made, the forms of its rows, and a timed fit."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

TOL = 1e-3  # the KKT tolerance of every solver, as a rule
CACHE_MB = 2000.0  # its kernel cache
THIN = 0.025  # LIBSVM is faster on CSR rows below about this density, on an array from there on
SPARSE = 0.5  # the same of oneDAL lies somewhere between these two
DTYPES = {"libsvm": ("float64",), "onedal": ("float32", "float64"), "nystroem": ("float32", "float64")}
"""By peer: the numbers that it computes with, others being converted. The first are the faster ones."""


def density(X: Any) -> float:
    """Return the share of entries that are not 0."""
    count = X.count_nonzero() if sp.issparse(X) else np.count_nonzero(X)
    return float(count / max(1, X.shape[0] * X.shape[1]))


def native(X: Any) -> str:
    """Return the form that rows have, for example "CSR float64"."""
    return f"{'CSR' if sp.issparse(X) else 'dense'} {X.dtype}"


def forms(solver: str, X: Any) -> tuple[str, ...]:
    """Return the forms of its rows in which a solver is tried, for example "dense float32".

    A benchmark counts the fastest form whose result is right. Our solver is given the rows as they are.
    """
    if solver == "clsvm":
        return (native(X),)
    share = density(X)
    layouts = ["dense"] * (share >= THIN) + ["CSR"] * (share < (SPARSE if solver == "onedal" else THIN))
    return tuple(f"{layout} {dtype}" for dtype in DTYPES[solver] for layout in layouts)


def formed(X: Any, form: str) -> Any:
    """Return rows in one of the forms, so that a fit has nothing to convert."""
    layout, dtype = form.split()
    if layout == "CSR":
        return sp.csr_matrix(X, dtype=dtype)
    return np.ascontiguousarray(X.toarray() if sp.issparse(X) else X, dtype)


def parameters(C: float, gamma: float, tol: float = TOL, cache_mb: float = CACHE_MB) -> dict[str, Any]:
    """Of an estimator with the rbf kernel, whoever made it."""
    return {"C": C, "gamma": gamma, "tol": tol, "cache_size": cache_mb}


def made(solver: str, kind: str, given: Mapping[str, Any], **ours: Any) -> Any:
    """An estimator of the class ``kind`` (SVC, SVR, ...) with the parameters that all have, and those that only ours
    has."""
    if solver == "clsvm":
        import clsvm

        return getattr(clsvm, kind)(**given, **ours)
    if solver == "onedal":
        import sklearnex.svm  # imported by name: scikit-learn itself stays unpatched

        return getattr(sklearnex.svm, kind)(**given)
    import sklearn.svm

    return getattr(sklearn.svm, kind)(**given)


def own(solver: str, model: Any) -> None:
    """Raises RuntimeError where a fit was not the solver's own: scikit-learn-intelex leaves some to scikit-learn."""
    if solver == "onedal" and not hasattr(model, "_onedal_estimator"):
        raise RuntimeError("scikit-learn-intelex fell back to scikit-learn")


def fitted(solver: str, model: Any, X: Any, y: Any) -> float:
    """Seconds of a fit, which is told of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = perf_counter()
        model.fit(X, y)
        seconds = perf_counter() - began
    own(solver, model)
    print(f"{solver} {X.shape[0]}x{X.shape[1]} {seconds:.3f} s", file=sys.stderr, flush=True)
    return seconds


def solution(model: Any) -> SimpleNamespace:
    """What the checks read of a model, dual_coef_ as an array, and what ours reports; it goes through a pipe."""
    coef = model.dual_coef_
    coef = coef.toarray() if sp.issparse(coef) else np.asarray(coef, np.float64)
    names = ("support_", "intercept_", "classes_", "epsilon")
    found = SimpleNamespace(dual_coef_=coef, **{one: getattr(model, one) for one in names if hasattr(model, one)})
    report = getattr(model, "fit_report_", None)
    found.report = {} if report is None else {
        "rows_computed": report.rows_computed,
        "converged": report.converged,
        "layout": report.layout,
        "seconds": dict(report.seconds),
        "dual": report.dual,
    }  # fmt: skip
    return found
