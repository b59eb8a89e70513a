"""A grid search by SVCSearchCV and by scikit-learn's GridSearchCV over its peers: same splits, scores compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import clsvm
from benchmarks import sets, solvers, table
from clsvm.model_selection import SVCSearchCV

GRIDS = {  # by name: what is searched on a9a's first rows
    "moderate": {"C": [0.1, 0.3, 1, 3, 10, 30], "gamma": [0.01, 0.03, 0.1, 0.3]},
    "short": {"C": [0.1, 1, 10, 100], "gamma": [0.005, 0.02, 0.08]},
    "wide": {"C": [0.1, 0.5, 1, 5, 20, 100], "gamma": [0.005, 0.02, 0.05, 0.2]},
}
FOLDS, CACHE = 5, 2000
APART = 0.002  # that mean scores of the same candidate may differ by
FEW = 200  # rows of a peer's first fit, which is not timed


def run(name: str, rows: int, peers: Sequence[str], folder: Path | None, device: Any, repeats: int) -> dict[str, Any]:
    """Return the seconds of each search without its refit, and how far its scores are from ours.

    Ours runs ``repeats`` times, the first of them cold. Each peer runs once with each form of its rows, after ours.
    Peers' caches are of 2000 MB.
    """
    data = sets.load("a9a", folder)
    X, y = np.asarray(data.X[:rows].toarray() if hasattr(data.X, "toarray") else data.X[:rows]), data.y[:rows]
    grid = GRIDS[name]
    ours, seconds = None, []
    for _ in range(repeats):
        began = perf_counter()
        ours = SVCSearchCV(clsvm.SVC(device=device), grid, cv=FOLDS, refit=False).fit(X, y)
        seconds.append(perf_counter() - began)
    assert ours is not None
    found = [_row("clsvm", solvers.native(X), ours, seconds, ours)]
    for peer in peers:
        found += _searched(peer, grid, X, y, ours)
    return {"set": f"a9a, first {rows} rows", "grid": grid, "folds": FOLDS, "rows": found}


def _searched(peer: str, grid: dict[str, Any], X: Any, y: Any, ours: Any) -> Iterator[dict[str, Any]]:
    """Yield a row for each form of a peer's rows; wider numbers only where no scores by the first ones are right."""
    forms, right = solvers.forms(peer, X), False
    for form in forms:
        if right and form.split()[1] != forms[0].split()[1]:
            return
        given, model = solvers.formed(X, form), solvers.made(peer, "SVC", {"cache_size": CACHE})
        solvers.own(peer, clone(model).fit(given[:FEW], y[:FEW]))
        began = perf_counter()
        search = GridSearchCV(model, grid, cv=FOLDS, refit=False).fit(given, y)
        row = _row(peer, form, search, [perf_counter() - began], ours)
        right = right or not row["misses"]
        yield row


def _row(solver: str, form: str, search: Any, seconds: list[float], ours: Any) -> dict[str, Any]:
    scores = search.cv_results_["mean_test_score"]
    apart = float(np.abs(scores - ours.cv_results_["mean_test_score"]).max())
    return {
        "solver": solver,
        "form": form,
        "cold": seconds[0],
        "seconds": min(seconds[1:], default=seconds[0]),
        "all_seconds": seconds,
        "best": search.best_params_,
        "best_score": float(search.best_score_),
        "scores": scores.tolist(),
        "apart": apart,
        "misses": [f"scores {apart:.1e} from ours"] * (not apart <= APART),
    }


def holds(result: dict[str, Any]) -> bool:
    """Return whether the scores of each peer, with the best form of its rows, are ours."""
    return all(row["apart"] <= APART for row in table.best_forms(result["rows"]))


def show(result: dict[str, Any]) -> Table:
    """The rows of a result, with the ratio of each peer's seconds to ours."""
    notes = "\n".join(table.passed_over(result["set"], result["rows"]))
    title = f"{result['set']}: {result['folds']} folds, {result['grid']}"
    shown = Table(title=title, caption=notes or None, caption_justify="left")
    for title in ("solver", "cold s", "s", "times ours", "best", "its score", "scores apart"):
        shown.add_column(title, justify="left" if title in ("solver", "best") else "right")
    warm = result["rows"][0]["seconds"]
    for row in table.best_forms(result["rows"]):
        figures = f"{row['cold']:.3g}", f"{row['seconds']:.3g}", f"{row['seconds'] / warm:.1f}"
        shown.add_row(table.named(row), *figures, str(row["best"]), f"{row['best_score']:.4f}", f"{row['apart']:.1e}")
    return shown
