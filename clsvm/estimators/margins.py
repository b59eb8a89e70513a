"""Which nu gives nu-SVC a margin.

Below some nu, which depends on the rows and the kernel function, the reduced convex hulls of two classes meet. The
optimum is then w = 0, which tells nothing. That nu is not known beforehand, but C-SVC has solutions of nu-SVC with a
known margin, and each has its nu (:func:`clsvm.problem.soft_margin`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.errors import ClsvmError
from clsvm.fit import driver, sharded
from clsvm.kernels import Kernel, Precomputed
from clsvm.parameters import Options
from clsvm.problem import Subproblem, largest_nu, soft_margin

_SAMPLE = 100  # rows whose kernel values say how large C is
_LARGE = 10.0  # C, for kernel values whose spread is 1
_MARGINS = 10.0  # tol: the smallest margin that C-SVC is asked for
_BOUNDED = 1 - 1e-5  # of a class's coefficients that may be at their bounds
_STEPS = 100  # SMO iterations of C-SVC, for each row


class Fit(NamedTuple):
    """The rows of a fit, its kernel function, its problems, and perf_counter() at which it began."""

    rows: Any
    kernel: Kernel | Precomputed
    members: list[Subproblem]
    started: float


def possible_nu(fit: Fit, narrow: NDArray[np.intp], nu: float, options: Options) -> str:
    """Return in words which nu the rows allow, where the members ``narrow`` have no margin with ``nu``.

    The nu of C-SVC has the margin 1 / C. C is large for kernel values of this size, so that a nu much below leaves
    little margin or none. Where all coefficients of a class are at their bounds, no smaller nu has a larger margin.
    """
    most = min(largest_nu(one.problem.lo, one.problem.hi) for one in fit.members)
    limit = f"the sizes of the classes allow at most nu={most:g}"
    spread, members = _spread(fit.rows, fit.kernel), [fit.members[place] for place in narrow]
    if not 0 < spread < np.inf:
        return f"; {limit}"
    C = min(_LARGE / spread, 1 / (_MARGINS * max(options.tol, np.finfo(np.float64).tiny)))
    soft = _soft(fit, members, C, options)
    if soft is None or max(soft) <= nu:
        return f"; {limit}"
    own = [largest_nu(one.problem.lo, one.problem.hi) for one in members]
    if any(least > _BOUNDED * its for least, its in zip(soft, own, strict=True)):
        return f"; no smaller nu than {most:g} gives a margin of more than {1 / C:.2g}, and {limit}"
    if max(soft) > most:
        return f"; nu={max(soft):.3g} would be large enough, but {limit}"
    return f"; nu={min(most, _rounded_up(max(soft))):g} is large enough, and {limit}"


def _soft(fit: Fit, members: list[Subproblem], C: float, options: Options) -> list[float] | None:
    """Return the nu of C-SVC's solution for each member; None where they take too many iterations, or fail."""
    steps = _STEPS * max(len(one.rows) for one in members)
    steps = steps if options.max_iter < 0 else min(steps, options.max_iter)
    asked = options.but(max_iter=steps, gap_tol=None, checkpoint=None, verbose=False)
    posed_soft = [Subproblem(one.rows, soft_margin(one.problem, C)) for one in members]
    try:
        trained = driver.solve(fit.rows, posed_soft, fit.kernel, asked, fit.started)
    except (ValueError, MemoryError, ClsvmError):  # (what the fit itself found is not lost for a remedy)
        return None
    if not trained.report.converged:
        return None
    weights = [float((one.problem.hi - one.problem.lo).sum()) for one in members]
    return [float(np.abs(one.b).sum()) / (C * weight) for one, weight in zip(trained.results, weights, strict=True)]


def _spread(rows: Any, kernel: Kernel | Precomputed) -> float:
    """Return the mean squared distance, in the kernel's feature space, of some rows from their mean; 0 where rows are
    not on this machine."""
    if sharded.elsewhere(rows):
        return 0.0
    some = np.arange(0, rows.shape[0], -(-rows.shape[0] // _SAMPLE))
    with np.errstate(all="ignore"):
        K = rows[np.ix_(some, some)] if isinstance(kernel, Precomputed) else np.asarray(kernel(rows[some]))
        return float(np.diagonal(K).mean() - K.mean())


def _rounded_up(nu: float) -> float:
    """Return nu with three digits, not smaller than it is."""
    unit = 10.0 ** (np.floor(np.log10(nu)) - 2)
    return float(np.ceil(nu / unit) * unit)
