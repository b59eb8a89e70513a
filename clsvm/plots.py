"""Draw fits, searches and data with matplotlib.

:func:`convergence` and :func:`breakdown` draw reports of fits; :func:`boundary` draws a model of two features;
:func:`grid` draws a grid search. matplotlib is optional (the extra ``plot``) and imported by the first picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from clsvm.errors import install
from clsvm.report import Record, by_part

# ``boundary`` evaluates a model at _STEPS points on each axis. The axes exceed the rows' range by _MARGIN at each end.
_STEPS, _MARGIN = 200, 0.08
Axes = Any  # stands for matplotlib's class, since matplotlib may be missing


def figure() -> Any:
    """Return an empty matplotlib figure that can be saved without a display. Raises ImportError without matplotlib."""
    return _matplotlib("figure").Figure(layout="constrained")


def convergence(report: Record, ax: Axes = None) -> Axes:
    """Draw how a fit converged, over seconds: gap and violation of an SVM, or a Nyström kernel machine's residual.

    The scale of these values is logarithmic. Values that were not evaluated, or are not above 0, are left out. For a
    report without a trace, only the values at the end are drawn.

    Parameters
    ----------
    report : FitReport or NystromReport
        Report of the fit.
    ax : matplotlib Axes or None
        Axes to draw on. None makes a new figure.

    Returns
    -------
    ax : matplotlib Axes

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    ax = _axes(ax)
    label = "seconds" if report.trace else "seconds (no trace was kept: the end alone)"
    for name, (traced, ended) in report.curves.items():
        points = [(point.seconds, getattr(point, traced)) for point in report.trace]
        points = points or [(report.seconds["total"], getattr(report, ended))]
        shown = [(x, y) for x, y in points if np.isfinite(y) and y > 0]
        if shown:
            ax.plot(*zip(*shown, strict=True), marker=".", label=name)
    ax.set(yscale="log", xlabel=label, ylabel=", ".join(end for _, end in report.curves.values()))
    ax.set_title(report.status, fontsize="medium")
    if ax.lines:
        ax.legend()
    return ax


def boundary(model: Any, X: Any, y: Any = None, ax: Axes = None) -> Axes:
    """Draw the decision regions of a model of two features, with rows X and support vectors.

    For two classes and for one class, colours show decision values, and a line shows the boundary. Two classes have
    dashed margins at the values -1 and 1. For more classes, a colour shows the predicted class. Support vectors are
    ringed.

    Parameters
    ----------
    model : estimator
        Fitted classifier, regressor or one-class model of two features.
    X : array (n, 2)
        Dense rows to draw; the plane reaches a little beyond them.
    y : array (n,) or None
        Labels or targets, which colour the rows.
    ax : matplotlib Axes or None
        Axes to draw on. None makes a new figure.

    Returns
    -------
    ax : matplotlib Axes

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    ValueError
        If X has another number of features.
    ImportError
        If matplotlib is not installed.
    """
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] != 2:
        raise ValueError(f"got rows of shape {X.shape}, expected two features: (n, 2)")
    check_is_fitted(model)
    classes, ax = getattr(model, "classes_", np.zeros(0)), _axes(ax)
    first, last = X.min(axis=0), X.max(axis=0)
    axes_points = np.linspace(first - _MARGIN * (last - first), last + _MARGIN * (last - first), _STEPS).T
    cells = np.stack(np.meshgrid(*axes_points), axis=-1)
    by_value = len(classes) <= 2 and hasattr(model, "decision_function")
    found = (model.decision_function if by_value else model.predict)(cells.reshape(-1, 2)).reshape(cells.shape[:2])
    if len(classes) > 2:
        colours: dict[str, Any] = {"cmap": "viridis", "vmin": 0, "vmax": len(classes) - 1}
        ax.pcolormesh(*axes_points, np.searchsorted(classes, found), alpha=0.4, rasterized=True, **colours)
    else:
        colours = {"cmap": "RdBu"}
        ax.contourf(*axes_points, found, alpha=0.5, **colours)
    if by_value:
        levels, dashes = ([-1, 0, 1], ["--", "-", "--"]) if len(classes) else ([0], ["-"])
        ax.contour(*axes_points, found, levels=levels, colors="black", linestyles=dashes)
    given = {} if y is None else {"c": np.searchsorted(classes, y) if len(classes) else y} | colours
    ax.scatter(*X.T, edgecolors="black", s=15, **given)
    support: Any = getattr(model, "support_vectors_", np.zeros((0, 2)))
    support = support.toarray() if sp.issparse(support) else support
    ax.scatter(*support.T, facecolors="none", edgecolors="black", s=60, linewidths=0.5)
    return ax


def breakdown(reports: Mapping[str, Record], ax: Axes = None) -> Axes:
    """Draw how fits divide their time among parts of the work: a bar for each report, the first report on top.

    The parts of an SVM fit are :data:`clsvm.report.PARTS`. Nyström kernel machines have other parts. The time of a part
    is a sum of entries of ``report.seconds``. The legend lists the keys of these entries.

    Parameters
    ----------
    reports : mapping of str to FitReport, or of str to NystromReport
        Reports by the name of their bar.
    ax : matplotlib Axes or None
        Axes to draw on. None makes a new figure.

    Returns
    -------
    ax : matplotlib Axes

    Raises
    ------
    ValueError
        If there is no report, or if both FitReports and NystromReports are given.
    ImportError
        If matplotlib is not installed.

    References
    ----------
    Cotter, Srebro, Keshet (2011), figure 2.
    """
    if not isinstance(reports, Mapping) or not reports:
        example = "{'a9a': model.fit_report_}"
        raise ValueError(f"got {reports!r}, expected a dict from names to reports, such as {example}")
    kinds = {type(report).__name__: report.parts for report in reports.values()}
    if len(kinds) > 1:
        raise ValueError(
            f"reports must be of one type, got {' and '.join(kinds)}: "
            "these types divide the time of a fit into different parts"
        )
    (kind,) = kinds.values()
    ax = _axes(ax)
    parts = [by_part(report.seconds, kind) for report in reports.values()]
    totals = np.array([sum(one.values()) for one in parts])
    names = [f"{name} ({total:.3g} s)" for name, total in zip(reports, totals, strict=True)]
    left = np.zeros(len(parts))
    used = {key: None for report in reports.values() for key in report.seconds if key != "total"}
    named = {key for keys in kind.values() for key in keys}
    for part, keys in kind.items():
        summed = [key for key in used if key in keys or (part == "other" and key not in named)]
        share = np.array([one[part] for one in parts]) / np.maximum(totals, np.finfo(float).tiny)
        label = f"{part}: {' + '.join(summed)}" if summed not in ([], [part]) else part
        ax.barh(names, share, left=left, label=label)
        left += share
    ax.set(xlim=(0, 1), xlabel="share of the time")
    ax.invert_yaxis()
    narrow = {"handlelength": 0.7, "columnspacing": 0.7, "handletextpad": 0.4, "borderpad": 0}
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize="small", frameon=False, **narrow)
    return ax


def grid(search: Any, x: str = "gamma", y: str = "C", ax: Axes = None) -> Axes:
    """Draw a grid search's mean test scores over two parameters as a heat map, with a star at the best one.

    A cell shows the best score over all other searched parameters. A cell whose fits failed is blank.

    Parameters
    ----------
    search : fitted search
        SVCSearchCV, FalkonSearchCV, or a search of scikit-learn.
    x, y : str
        Searched parameters of the two axes, such as y="penalty" for FalkonSearchCV.
    ax : matplotlib Axes or None
        Axes to draw on. None makes a new figure.

    Returns
    -------
    ax : matplotlib Axes

    Raises
    ------
    ValueError
        If a parameter was not searched, or if the search has several scores and ``refit`` names none of them.
    ImportError
        If matplotlib is not installed.
    """
    results = search.cv_results_
    for name in (x, y):
        if f"param_{name}" not in results:
            searched = ", ".join(key.removeprefix("param_") for key in results if key.startswith("param_"))
            raise ValueError(f"{name!r} was not searched; expected two of {searched}")
    metric = "score" if "mean_test_score" in results else search.refit
    if f"mean_test_{metric}" not in results:
        raise ValueError(f"refit must be the name of one of the search's scores, got {search.refit!r}")
    values = [[params[name] for params in results["params"]] for name in (x, y)]
    columns, rows = (sorted(set(some), key=lambda v: (isinstance(v, str), v)) for some in values)
    scores = np.full((len(rows), len(columns)), -np.inf)
    for column, row, score in zip(*values, results[f"mean_test_{metric}"], strict=True):
        at = rows.index(row), columns.index(column)
        scores[at] = np.fmax(scores[at], score)
    scores[~np.isfinite(scores)] = np.nan
    ax = _axes(ax)
    image = ax.imshow(scores, origin="lower", aspect="auto")
    ax.figure.colorbar(image, ax=ax, label=f"mean test {metric}")
    ax.set_xticks(range(len(columns)), [*map(_short, columns)], rotation=45)
    ax.set_yticks(range(len(rows)), [*map(_short, rows)])
    ax.set(xlabel=x, ylabel=y)
    if np.isfinite(scores).any():
        best = np.unravel_index(np.nanargmax(scores), scores.shape)
        ax.plot(best[1], best[0], "r*", markersize=14)
        ax.set_title(f"best: {scores[best]:.4g}", fontsize="medium")
    return ax


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else min(f"{value:g}", f"{value:.3g}", key=len)


def _matplotlib(module: str) -> Any:
    try:
        return import_module(f"matplotlib.{module}")
    except ModuleNotFoundError as error:
        raise ImportError(f"pictures need matplotlib: {install('plot')}") from error


def _axes(ax: Any) -> Any:
    """Return ``ax``, or for None the axes of a new pyplot figure, which notebooks display."""
    if ax is not None:
        return ax
    return _matplotlib("pyplot").subplots(figsize=(6.5, 4.5), layout="constrained")[1]
