"""Describe a data set: its size and density, and the estimated cost of each layout of its rows.

:func:`describe` makes a :class:`Description`. The layout "auto" is chosen by the same estimates.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array

from clsvm import arrays
from clsvm.gram import layouts, partition
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.csr import HYBRID
from clsvm.gram.layouts.record import WORKING, Plan
from clsvm.gram.partition import RULES, Gain
from clsvm.kernels import make
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream
from clsvm.tools import tune

TENTHS = 10  # parts of the columns in Description.deciles
NARROW, WIDE = 32, 256  # columns of the two dense products whose times give the speed of the device
_ITEMSIZE = 4  # bytes of a float32


@dataclass(frozen=True)
class Split:
    """Hold the number of columns that a rule of the partition selects to be stored densely.

    Attributes
    ----------
    rule
        name of the rule.
    dense
        number of dense columns.
    share
        their share of the entries.
    """

    rule: str
    dense: int
    share: float


@dataclass(frozen=True)
class Estimate:
    """Hold the estimates for a layout.

    Attributes
    ----------
    layout
        its name.
    nbytes
        bytes of the rows on the device; None if the layout cannot hold so many columns.
    cost
        cost of a value of K, relative to a multiply-add in a product of dense rows; None if it is not estimated.
    milliseconds
        time of a product with WORKING right-hand rows, or with all rows if they are fewer; None without a
        cost.
    """

    layout: str
    nbytes: int | None
    cost: float | None
    milliseconds: float | None


@dataclass(frozen=True)
class Description:
    """Hold the figures of rows (n, d).

    Attributes
    ----------
    rows, columns
        n and d.
    occurring
        columns with an entry.
    entries
        values that are not 0.
    mean, longest
        entries of a row, on average and at most.
    density
        entries divided by n d.
    deciles
        density of each tenth of the columns with entries, densest first (BoostSVM, figure 4); None for a tenth
        without columns.
    splits
        dense columns by each rule of the partition.
    cluster_columns
        estimated columns of a cluster, or None.
    layouts
        estimates of the layouts.
    chosen, reason
        layout that "auto" takes, and why.
    device
        name of the device.
    speed
        measured multiply-adds a second in products of dense rows.
    """

    rows: int
    columns: int
    occurring: int
    entries: int
    mean: float
    longest: int
    density: float
    deciles: tuple[float | None, ...]
    splits: tuple[Split, ...]
    cluster_columns: float | None
    layouts: tuple[Estimate, ...]
    chosen: str
    reason: str
    device: str
    speed: float

    def to_dict(self) -> dict[str, Any]:
        """Return the description in types that JSON has."""
        return asdict(self)


def describe(X: Any, device: Any = None) -> Description:
    """Describe rows for a fit with the rbf kernel.

    Parameters
    ----------
    X : array or sparse matrix of shape (n, d)
        The rows.
    device : None, str, int, pyopencl.Device or pyopencl.CommandQueue, default=None
        The device, as for the estimators.

    Returns
    -------
    Description
        The figures.

    Raises
    ------
    ValueError
        If no estimator accepts X.
    DeviceError
        If the device fails or is absent.
    """
    X = check_array(arrays.checked(X), accept_sparse="csr", dtype=[np.float64, np.float32])
    d = X.shape[1]
    X = arrays.without_empty(arrays.canonical(X))  # fits remove empty columns too
    count, lengths = partition.counts(X), _lengths(X)
    with Stream(device) as stream:
        profile = stream.profile
        plan = layouts.choose(profile, X, make("rbf").spec)
        speed = _measured(stream)
        name = str(stream.info)
    entries, n = int(count.sum()), X.shape[0]
    return Description(
        rows=n,
        columns=d,
        occurring=int(np.count_nonzero(count)),
        entries=entries,
        mean=entries / n,
        longest=int(lengths.max()),
        density=entries / n / d,
        deciles=deciles(count, n),
        splits=tuple(_split(count, n, rule, HYBRID.gain(profile)) for rule in RULES),
        cluster_columns=plan.fill,
        layouts=tuple(_estimate(kind, profile, plan, X, speed) for kind in layouts.names(make("rbf").spec)),
        chosen=plan.kind,
        reason=plan.reason,
        device=name,
        speed=speed,
    )


def deciles(count: NDArray[np.int64], n: int) -> tuple[float | None, ...]:
    """Return the mean density of each tenth of the columns with entries, densest first. count: entries of each
    column.
    """
    falling = np.sort(count[count > 0])[::-1] / n
    return tuple(float(tenth.mean()) if len(tenth) else None for tenth in np.array_split(falling, TENTHS))


def _lengths(X: arrays.Data) -> NDArray[np.int64]:
    """Return the number of values of each row that are not 0."""
    if not sp.issparse(X):
        return np.count_nonzero(X, axis=1)
    return np.diff(np.concatenate([[0], np.cumsum(X.data != 0)])[X.indptr])


def _split(count: NDArray[np.int64], n: int, rule: str, gain: Gain) -> Split:
    made = partition.partition(count, n, rule, gain)
    return Split(rule, made.dense, float(count[made.order[: made.dense]].sum() / max(1, count.sum())))


def _estimate(kind: str, profile: Profile, plan: Plan, X: arrays.Data, speed: float) -> Estimate:
    layout, cost = LAYOUTS[kind], plan.costs.get(kind)
    nbytes = None
    if X.shape[1] <= layout.most:
        own = replace(plan, kind=kind, partition=layout.partition(profile, X))
        nbytes = layout.nbytes(own, X, _ITEMSIZE)
    cells = None if cost is None else cost * X.shape[0] * min(WORKING, X.shape[0])
    return Estimate(kind, nbytes, cost, None if cells is None else 1e3 * cells / speed)


def _measured(stream: Stream) -> float:
    """Return the dense multiply-adds a second, from the difference in time of a wide and a narrow product."""
    n = tune.ROWS[stream.profile.shape]
    made = [tune.dense(stream, n, d) for d in (NARROW, WIDE)]
    for work in made:
        work.launch()  # the first launch builds the program and touches memory, so it is not timed
    narrow, wide = (took / (n * tune.WORKING) for took in tune.best_of(*(work.launch for work in made)))
    return 1 / max(
        (wide - narrow) / (WIDE - NARROW), wide / WIDE / 2
    )  # at least half the time of the wide product, in case of noise
