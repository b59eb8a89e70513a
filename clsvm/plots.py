"""Draw fits, searches and data with matplotlib.

:func:`convergence`, :func:`race` and :func:`breakdown` draw reports of fits; :func:`boundary` draws a model of two
features; :func:`grid` draws a grid search; :func:`clusters` and :func:`deciles` draw the sparsity of rows.
matplotlib is optional (the extra ``plot``) and imported by the first picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from clsvm import arrays
from clsvm.errors import install
from clsvm.gram import partition
from clsvm.opencl.stream import Stream
from clsvm.report import FitReport, Record, by_part
from clsvm.tools.describe import Description

_TICKS = 12  # most labels of an axis of a heat map
# boundary evaluates the model at _STEPS x _STEPS points of a plane. The plane extends beyond the rows by the share
# _MARGIN of their extent.
_STEPS, _MARGIN = 200, 0.08
_VALUES = 10  # a heat map with at most this many cells along each axis shows the scores as numbers
Axes = Any  # matplotlib's type; the package may be missing


def figure() -> Any:
    """Return an empty matplotlib figure that can be saved without a display. Raises ImportError without matplotlib."""
    return _matplotlib("figure").Figure(layout="constrained")


def convergence(report: Record, ax: Axes = None) -> Axes:
    """Draw how a fit converged: gap and violation, or the residual, over seconds on a logarithmic scale.

    Values that were not evaluated, or are not above 0, are left out. A report without a trace has one point, the values
    at the end.

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


def race(runs: Mapping[str, Any], best: float | None = None, ax: Axes = None) -> Axes:
    """Compare solvers: draw the relative error (objective - best) / |best| over seconds, both logarithmic.

    Objectives that were not evaluated, or are not above ``best``, are left out.

    Parameters
    ----------
    runs : mapping of str to FitReport or pairs
        For each line's name a report with a trace, or pairs (seconds, primal objective) of another solver of the same
        problem.
    best : float or None
        Objective of the optimum. None takes the highest dual objective of the reports, which is a lower bound of the
        optimum. If there is no report, None takes the lowest objective.
    ax : matplotlib Axes or None
        Axes to draw on. None makes a new figure.

    Returns
    -------
    ax : matplotlib Axes

    Raises
    ------
    ValueError
        If ``runs`` has no objective.
    ImportError
        If matplotlib is not installed.
    """
    points = {name: _objectives(name, run) for name, run in runs.items()} if isinstance(runs, Mapping) else {}
    known = [y for some in points.values() for _, y in some]
    if not known:
        names = ", ".join(map(str, runs)) if isinstance(runs, Mapping) else type(runs).__name__
        expected = "expected a FitReport with a trace, or pairs (seconds, objective), for each name"
        raise ValueError(f"got no objective in {names or 'no run'}, {expected}")
    if best is None:
        bounds = [run.dual for run in runs.values() if isinstance(run, FitReport) and np.isfinite(run.dual)]
        best = max(bounds) if bounds else min(known)
    ax = _axes(ax)
    for name, some in points.items():
        shown = [(x, (y - best) / (abs(best) or 1.0)) for x, y in some if x > 0 and y > best]
        ax.plot(*(zip(*shown, strict=True) if shown else ([], [])), marker=".", label=name)
    ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="relative error of the objective")
    ax.legend()
    return ax


def _objectives(name: str, run: Any) -> list[tuple[float, float]]:
    """Return the pairs (seconds, primal objective) of a run, without objectives that are not finite.

    name: the run's name in error messages.
    """
    if isinstance(run, FitReport):
        run = [(point.seconds, point.primal) for point in run.trace]
    pairs = np.asarray(run, np.float64) if isinstance(run, Sequence | np.ndarray) else None
    if pairs is None or (pairs.size and (pairs.ndim != 2 or pairs.shape[1] != 2)):
        raise ValueError(f"{name}: got {type(run).__name__}, expected a FitReport or pairs (seconds, objective)")
    return [(float(x), float(y)) for x, y in pairs if np.isfinite(y)]


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
    """Draw how fits divide their time among parts, a bar for each report, the first one on top.

    The parts are :data:`clsvm.report.PARTS` for SVMs; Nyström kernel machines have other parts. The legend lists the
    keys of ``report.seconds`` that each part sums.

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
        If there is no report, or the reports are of both classes.
    ImportError
        If matplotlib is not installed.

    References
    ----------
    Cotter, Srebro, Keshet (2011), figure 2.
    """
    if not isinstance(reports, Mapping) or not reports:
        example = "{'a9a': model.fit_report_}"
        raise ValueError(f"got {reports!r}, expected at least one FitReport by name, such as {example}")
    kinds = {type(report).__name__: report.parts for report in reports.values()}
    if len(kinds) > 1:
        raise ValueError(f"got reports of {' and '.join(kinds)}, expected one kind: each divides the time differently")
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


def clusters(X: Any, rows: int = 256, device: Any = None, ax: Axes = None) -> NDArray[np.object_]:
    """Draw the features with entries in consecutive rows of X (left), and in a cluster of similar rows (right).

    The clustered layout stores the features that occur in a cluster, so fewer features mean less memory.

    Parameters
    ----------
    X : array or sparse matrix (n, d)
        Rows.
    rows : int
        Rows of a cluster. A full cluster with the median number of features is drawn.
    device : str, int, Device, CommandQueue or None
        Device that clusters the rows, as for :class:`clsvm.SVC`.
    ax : two matplotlib Axes or None
        Axes to draw on. None makes a new figure.

    Returns
    -------
    axes : array of two matplotlib Axes

    Raises
    ------
    ValueError
        If X, ``rows`` or ``ax`` is invalid.
    DeviceError
        If the device fails.
    ImportError
        If matplotlib is not installed.

    References
    ----------
    Cotter, Srebro, Keshet (2011), figure 1.
    """
    if int(rows) != rows or rows < 1:
        raise ValueError(f"rows: got {rows!r}, expected a whole number, 1 or more")
    X = arrays.canonical(check_array(arrays.checked(X), accept_sparse="csr", dtype=[np.float64, np.float32]))
    axes = np.ravel(_axes(ax, panels=2))
    if axes.size != 2:
        raise ValueError(f"ax: got {axes.size}, expected 2 axes")
    n, d = X.shape
    first = max(0, n - rows) // 2
    chosen = {"as the rows came": np.arange(first, min(first + rows, n)), "a cluster": _cluster(X, int(rows), device)}
    for panel, (name, at) in zip(axes, chosen.items(), strict=True):
        pattern = sp.csr_matrix(X[at])
        pattern.eliminate_zeros()
        panel.spy(pattern, markersize=1, aspect="auto", rasterized=True)
        used = len(np.unique(pattern.indices))
        panel.set(title=f"{name}: {len(at)} rows, {used} of {d} features", xlabel="feature")
    axes[0].set_ylabel("row")
    return axes


def deciles(description: Description, ax: Axes = None) -> Axes:
    """Draw the density of each tenth of the columns with an entry, densest first, on a logarithmic scale.

    Parameters
    ----------
    description : Description
        Result of :func:`clsvm.tools.describe.describe`.
    ax : matplotlib Axes or None
        Axes to draw on. None makes a new figure.

    Returns
    -------
    ax : matplotlib Axes

    Raises
    ------
    ImportError
        If matplotlib is not installed.

    References
    ----------
    BoostSVM, figure 4.
    """
    ax = _axes(ax)
    present = [(i + 1, density) for i, density in enumerate(description.deciles) if density is not None]
    if present:
        ax.bar(*zip(*present, strict=True))
        ax.set(yscale="log")
    ax.set(xlabel="tenth of the columns with an entry, densest first", ylabel="share of rows with an entry")
    ax.set_xticks(range(1, len(description.deciles) + 1))
    ax.set_title(f"{description.rows} rows, {description.occurring} columns with an entry", fontsize="medium")
    return ax


def grid(search: Any, x: str = "gamma", y: str = "C", ax: Axes = None) -> Axes:
    """Draw a grid search's mean test scores over two parameters as a heat map, with a star at the best one.

    A cell shows the best score over all other searched parameters. Small maps show the scores as numbers. Scores far
    below the others share the lowest colour, so that the other colours stay distinct.

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
        If a parameter was not searched, or the search has several scores and none to refit by.
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
        raise ValueError(f"the search has several scores and refit={search.refit!r}; expected one of their names")
    values = [[params[name] for params in results["params"]] for name in (x, y)]
    columns, rows = (sorted(set(some), key=lambda v: (isinstance(v, str), v)) for some in values)
    scores = np.full((len(rows), len(columns)), -np.inf)
    for column, row, score in zip(*values, results[f"mean_test_{metric}"], strict=True):
        at = rows.index(row), columns.index(column)
        scores[at] = np.fmax(scores[at], score)
    scores[~np.isfinite(scores)] = np.nan
    ax = _axes(ax)
    lowest, outliers = _lowest(scores)
    image = ax.imshow(scores, origin="lower", aspect="auto", vmin=lowest)
    ax.figure.colorbar(image, ax=ax, label=f"mean test {metric}", extend="min" if outliers else "neither")
    for axis, some in ((ax.xaxis, columns), (ax.yaxis, rows)):
        shown = range(0, len(some), -(-len(some) // _TICKS))
        axis.set_ticks(shown, [_short(some[i]) for i in shown])
    ax.tick_params("x", labelrotation=45)
    ax.set(xlabel=x, ylabel=y)
    best = None
    if np.isfinite(scores).any():
        best = np.unravel_index(np.nanargmax(scores), scores.shape)
        ax.plot(best[1], best[0], "r*", markersize=14)
        ax.set_title(f"best: {scores[best]:.4g}", fontsize="medium")
    if max(scores.shape) <= _VALUES:
        _write_values(ax, image, scores, best)
    return ax


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else min(f"{value:g}", f"{value:.3g}", key=len)


def _lowest(scores: NDArray[np.float64]) -> tuple[float | None, bool]:
    """Return the score of the lowest colour, None without finite scores, and whether scores lie below this score.

    The colours begin at the lowest score. If some scores are below Tukey's fence, 1.5 interquartile ranges below the
    first quartile, the colours begin at the fence.
    """
    finite = scores[np.isfinite(scores)]
    if not len(finite):
        return None, False
    first, third = np.percentile(finite, (25, 75))
    fence = first - 1.5 * (third - first)
    outliers = bool(finite.min() < fence < finite.max())
    return float(fence if outliers else finite.min()), outliers


def _write_values(ax: Axes, image: Any, scores: NDArray[np.float64], best: tuple[np.intp, ...] | None) -> None:
    """Write each cell's score into the heat map; in the cell ``best``, the score stands below the star."""
    style = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": "small"}
    for at, score in np.ndenumerate(scores):
        red, green, blue, _ = image.cmap(image.norm(score)) if np.isfinite(score) else (1, 1, 1, 1)
        colour = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"  # by perceived brightness
        words = f"{score:.3g}" if np.isfinite(score) else "failed"
        ax.annotate(words, at[::-1], xytext=(0, -12 if at == best else 0), color=colour, **style)


def _cluster(X: arrays.Data, size: int, device: Any) -> NDArray[np.int32]:
    """Divide X into clusters of ``size`` rows; return the rows of a full cluster with the median number of features."""
    with Stream(device) as stream:
        found = partition.cluster(stream, X, size)
    order = found.order.reshape(-1, size)
    count = (order >= 0).sum(axis=1)
    full = np.flatnonzero(count == count.max())
    widths = found.mask[full].sum(axis=1)
    chosen: NDArray[np.int32] = order[full[np.argsort(widths, kind="stable")[len(full) // 2]]]
    return np.sort(chosen[chosen >= 0])


def _matplotlib(module: str) -> Any:
    try:
        return import_module(f"matplotlib.{module}")
    except ModuleNotFoundError as error:
        raise ImportError(f"pictures need matplotlib: {install('plot')}") from error


def _axes(ax: Any, panels: int = 1) -> Any:
    """Return ``ax``, or for None the axes of a new pyplot figure with ``panels`` panels, which notebooks display."""
    if ax is not None:
        return ax
    return _matplotlib("pyplot").subplots(1, panels, figsize=(5.5 * panels + 1, 4.5), layout="constrained")[1]
