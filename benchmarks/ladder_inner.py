"""What an inner step of the solver costs: pairs of coefficients a second inside a working set, by its size.

Taken from fits of noisy data, where a working set needs hundreds of steps: seconds of the subproblem kernel (with its
launches and the wait for them) over all steps of the fit. The best of several fits counts.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from clsvm import SVC


def inner_steps(device: Any, n: int, working_sets: tuple[int, ...], fits: int = 3) -> list[dict[str, Any]]:
    """For each working set size: inner steps of a fit, working sets, microseconds of a step."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(n) < 0.5, 1, -1)
    X = rng.normal(size=(n, 16)) + 0.15 * y[:, None]
    rows = []
    for W in working_sets:
        model = SVC(C=10, gamma=0.05, working_set_size=W, max_iter=200 * n, device=device)
        found = []
        for _ in range(fits):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                report = model.fit(X, y).fit_report_
            found.append(1e6 * report.seconds["subproblem"] / max(report.steps, 1))
        chosen = {"W": report.working_set_size, "steps": report.steps, "working_sets": report.outer_steps}
        rows.append({**chosen, "microseconds": min(found)})
    return rows
