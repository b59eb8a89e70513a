"""The lines that svm-train prints of a fit, by LIBSVM's definitions. NumPy is imported where it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from clsvm.tasks import CLASSES, TASKS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clsvm.models.model import KernelModel

_AT_BOUND = 1 - 1e-6  # of the bound: a coefficient that is as large counts as bounded


def order_of_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Return the labels of y (n,) in the order of their first rows, but +1 before -1, as svm-train lists them."""
    import numpy as np

    labels, first = np.unique(y, return_index=True)
    listed: NDArray[Any] = labels[np.argsort(first)]
    return listed[::-1] if listed.tolist() == [-1, 1] else listed


def svm_train(estimator: Any, y: NDArray[Any], weights: NDArray[np.float64] | None = None) -> Iterator[str]:
    """Yield svm-train's lines of a fitted estimator: those of each problem, then the total for classes.

    y: (n,) labels or targets of the fit. weights: (n,) what multiplies C, the same number for the rows of a class.
    Source: svm.cpp of LIBSVM, svm_train_one and the functions that it calls. Dots and stars, which show LIBSVM's
    progress, are left out.
    """
    import numpy as np

    from clsvm.models import libsvm

    model: KernelModel = estimator.model_
    task, (ends, duals) = TASKS[model.task], estimator._ends
    k = len(model.classes)
    order = np.searchsorted(model.classes, order_of_labels(y)) if task.kind == CLASSES else np.zeros(1, np.intp)
    blocks = np.split(np.abs(model.dual_coef), np.cumsum(model.n_support)[:-1], axis=1)
    _, first, rows = np.unique(y if k else np.zeros(len(y)), return_index=True, return_counts=True)
    factors = np.ones(len(first)) if weights is None else weights[first]
    steps = np.atleast_1d(estimator.n_iter_)
    if model.of_pairs:
        places, signs = libsvm.turned_pairs(order)
        i, j = np.triu_indices(k, 1)
        sides = [(a, b) for a, b in zip(order[i].tolist(), order[j].tolist(), strict=True)]
    else:  # (of two classes the second is the positive one)
        places, signs = np.zeros(1, np.intp), np.array([-1.0 if k == 2 and order[0] == 0 else 1.0])
        sides, duals = [tuple(order.tolist())], duals.sum(keepdims=True)
    rho = signs * (0.0 - model.intercept[places]) + 0.0
    for number, (place, side) in enumerate(zip(places.tolist(), sides, strict=True)):
        if model.of_pairs:
            a, b = side
            alphas = [blocks[a][b - (b > a)], blocks[b][a - (a > b)]]
        else:
            alphas = [blocks[one].max(axis=0, initial=0.0) for one in side]
        own, count, scale = factors[list(side)], int(rows[list(side)].sum()), 1.0
        cost = float(estimator.C) if "C" in task.parameters else 1.0
        yield f"optimization finished, #iter = {int(steps[place])}"
        if task.name == "nu_svc":
            r = float(ends[place, 0] - ends[place, 1]) / 2
            scale = r if r > 0 else 1.0
            cost = 1 / scale
            yield f"C = {cost:f}"
        elif task.name == "nu_svr":
            yield f"epsilon = {float(ends[place, 1] - ends[place, 0]) / 2:f}"
        elif "C" in task.parameters and (own == own[0]).all():
            yield f"nu = {sum(alpha.sum() for alpha in alphas) / (cost * own[0] * count):f}"
        yield f"obj = {0.0 - duals[place] / scale**2:f}, rho = {rho[number]:f}"
        bounds = [cost * factor * _AT_BOUND for factor in own]
        bounded = sum(np.count_nonzero(alpha >= bound) for alpha, bound in zip(alphas, bounds, strict=True))
        yield f"nSV = {sum(np.count_nonzero(alpha) for alpha in alphas)}, nBSV = {bounded}"
    if task.kind == CLASSES:
        yield f"Total nSV = {model.dual_coef.shape[1]}"
