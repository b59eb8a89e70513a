"""A grid search by SVCSearchCV and by scikit-learn's GridSearchCV over its peers: same splits, scores compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table
from sklearn import svm
from sklearn.model_selection import GridSearchCV

import clsvm
from benchmarks import sets
from clsvm.model_selection import SVCSearchCV

GRIDS = {  # by name: what is searched on a9a's first rows
    "moderate": {"C": [0.1, 0.3, 1, 3, 10, 30], "gamma": [0.01, 0.03, 0.1, 0.3]},
    "short": {"C": [0.1, 1, 10, 100], "gamma": [0.005, 0.02, 0.08]},
    "wide": {"C": [0.1, 0.5, 1, 5, 20, 100], "gamma": [0.005, 0.02, 0.05, 0.2]},
}
FOLDS, CACHE = 5, 2000


def run(name: str, rows: int, peers: Sequence[str], folder: Path | None, device: Any, repeats: int) -> dict[str, Any]:
    """Seconds of each search without its refit, ours ``repeats`` times (the first of them cold), each peer once after
    ours; and how far its scores are from ours. Peers' caches are of 2000 MB."""
    data = sets.load("a9a", folder)
    X, y = np.asarray(data.X[:rows].toarray() if hasattr(data.X, "toarray") else data.X[:rows]), data.y[:rows]
    grid = GRIDS[name]
    ours, seconds = None, []
    for _ in range(repeats):
        began = perf_counter()
        ours = SVCSearchCV(clsvm.SVC(device=device), grid, cv=FOLDS, refit=False).fit(X, y)
        seconds.append(perf_counter() - began)
    assert ours is not None
    found = [_row("clsvm", ours, seconds, ours)]
    for peer in peers:
        began = perf_counter()
        search = GridSearchCV(PEERS[peer](), grid, cv=FOLDS, refit=False).fit(X, y)
        found.append(_row(peer, search, [perf_counter() - began], ours))
    return {"set": f"a9a, first {rows} rows", "grid": grid, "folds": FOLDS, "rows": found}


def _row(solver: str, search: Any, seconds: list[float], ours: Any) -> dict[str, Any]:
    scores = search.cv_results_["mean_test_score"]
    return {
        "solver": solver,
        "cold": seconds[0],
        "seconds": min(seconds[1:], default=seconds[0]),
        "all_seconds": seconds,
        "best": search.best_params_,
        "best_score": float(search.best_score_),
        "scores": scores.tolist(),
        "apart": float(np.abs(scores - ours.cv_results_["mean_test_score"]).max()),
    }


def _onedal() -> Any:
    from sklearnex.svm import SVC

    return SVC(cache_size=CACHE)


PEERS: dict[str, Callable[[], Any]] = {"libsvm": lambda: svm.SVC(cache_size=CACHE), "onedal": _onedal}


def show(result: dict[str, Any]) -> Table:
    """The rows of a result, with the ratio of each peer's seconds to ours."""
    table = Table(title=f"{result['set']}: {result['folds']} folds, {result['grid']}")
    for title in ("solver", "cold s", "s", "times ours", "best", "its score", "scores apart"):
        table.add_column(title, justify="left" if title in ("solver", "best") else "right")
    warm = result["rows"][0]["seconds"]
    for row in result["rows"]:
        figures = f"{row['cold']:.3g}", f"{row['seconds']:.3g}", f"{row['seconds'] / warm:.1f}"
        table.add_row(row["solver"], *figures, str(row["best"]), f"{row['best_score']:.4f}", f"{row['apart']:.1e}")
    return table
