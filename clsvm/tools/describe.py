"""Describe a data set: its size, its density, and the estimated cost of each layout of its rows on a device.

:func:`describe` makes a :class:`Description`. A fit with ``layout="auto"`` chooses the layout by the same estimates.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from clsvm import arrays
from clsvm.gram import layouts, partition
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.csr import HYBRID
from clsvm.gram.layouts.record import WORKING, Plan
from clsvm.gram.partition import Gain
from clsvm.kernels import make
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream
from clsvm.tools import tune

TENTHS = 10  # Description.deciles divides the columns into this many groups
NARROW, WIDE = 32, 256  # columns in two products of dense rows; the speed follows from the difference of their times
_ITEMSIZE = 4  # bytes of a float32


@dataclass(frozen=True)
class Split:
    """Hold how many columns the hybrid layout stores densely by a rule of clsvm.gram.partition.

    Attributes
    ----------
    rule
        name of the rule.
    dense
        number of columns that are stored densely.
    share
        share of all nonzero entries that are in these columns.
    """

    rule: str
    dense: int
    share: float


@dataclass(frozen=True)
class Estimate:
    """Hold the estimated memory and time that a layout of the rows needs.

    Attributes
    ----------
    layout
        name of the layout.
    nbytes
        bytes of the rows on the device; None if the layout cannot hold these rows.
    cost
        time of a value of K, in units of a multiply-add in a product of dense rows; None if it is not estimated.
    milliseconds
        estimated time of the product K(X, U) with WORKING right-hand rows U, or with all rows if there are fewer;
        None if ``cost`` is None.
    """

    layout: str
    nbytes: int | None
    cost: float | None
    milliseconds: float | None


@dataclass(frozen=True)
class Description:
    """Describe rows (n, d): their size, their density, and how the layouts on a device suit them.

    Attributes
    ----------
    rows
        number of rows, n.
    columns
        number of columns, d.
    occurring
        number of columns with at least one nonzero value.
    entries
        number of nonzero values.
    mean
        average number of nonzero values of a row.
    longest
        largest number of nonzero values of a row.
    density
        share of nonzero values: entries / (n * d).
    deciles
        density of each tenth of the columns that have nonzero values, densest first (BoostSVM, figure 4); None for a
        tenth without columns.
    splits
        for the rule of clsvm.gram.partition, the columns that the hybrid layout would store densely.
    cluster_columns
        estimated number of columns that a cluster of similar rows stores; None if it is not estimated.
    layouts
        estimated memory and time of each layout.
    chosen
        layout that ``layout="auto"`` takes.
    reason
        why ``layout="auto"`` takes it.
    device
        name of the device.
    speed
        measured number of multiply-adds in a second, in products of dense rows.
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
        """Return the description as a dictionary of types that JSON has."""
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
        Size and density of the rows, and estimates for each layout.

    Raises
    ------
    ValueError
        If X is not a matrix of finite numbers.
    DeviceError
        If the device fails or is absent.
    """
    X = check_array(arrays.checked(X), accept_sparse="csr", dtype=[np.float64, np.float32])
    d = X.shape[1]
    X = arrays.without_empty(arrays.canonical(X))  # fits remove empty columns too
    count = partition.counts(X)
    with Stream(device) as stream:
        profile = stream.profile
        plan = layouts.choose(profile, X, make("rbf").spec, all_rows=True)
        speed = _measured(stream)
        name = str(stream.info)
    entries, n = int(count.sum()), X.shape[0]
    return Description(
        rows=n,
        columns=d,
        occurring=int(np.count_nonzero(count)),
        entries=entries,
        mean=entries / n,
        longest=int((X != 0).sum(axis=1).max()),
        density=entries / n / d,
        deciles=deciles(count, n),
        splits=(_split(count, n, HYBRID.gain(profile)),),
        cluster_columns=plan.fill,
        layouts=tuple(_estimate(kind, profile, plan, X, speed) for kind in layouts.names(make("rbf").spec)),
        chosen=plan.kind,
        reason=plan.reason,
        device=name,
        speed=speed,
    )


def deciles(count: NDArray[np.int64], n: int) -> tuple[float | None, ...]:
    """Return the mean density of each tenth of the columns that have nonzero values, densest first.

    ``count`` holds the number of nonzero values of each column, and n is the number of rows. A tenth without columns
    has None.
    """
    falling = np.sort(count[count > 0])[::-1] / n
    return tuple(float(tenth.mean()) if len(tenth) else None for tenth in np.array_split(falling, TENTHS))


def _split(count: NDArray[np.int64], n: int, gain: Gain) -> Split:
    made = partition.partition(count, n, gain)
    return Split("cost", made.dense, float(count[made.order[: made.dense]].sum() / max(1, count.sum())))


def _estimate(kind: str, profile: Profile, plan: Plan, X: arrays.Data, speed: float) -> Estimate:
    layout, cost = LAYOUTS[kind], plan.costs.get(kind)
    nbytes = None
    if layout.holds(X):
        adapted = replace(plan, kind=kind, partition=layout.partition(profile, X))
        nbytes = layout.nbytes(adapted, X, _ITEMSIZE)
    cells = None if cost is None else cost * X.shape[0] * min(WORKING, X.shape[0])
    return Estimate(kind, nbytes, cost, None if cells is None else 1e3 * cells / speed)


def _measured(stream: Stream) -> float:
    """Return how many multiply-adds a product of dense rows does in a second.

    The measure is the difference in time between products with many and with few columns.
    """
    n = tune.ROWS[stream.profile.style]
    made = [tune.dense(stream, n, d) for d in (NARROW, WIDE)]
    for work in made:
        work.launch()  # the first launch builds the program and touches memory, so it is not timed
    narrow, wide = (took / (n * tune.WORKING) for took in tune.best_of(*(work.launch for work in made)))
    # Noise can make the difference too small. So a multiply-add takes at least half its mean time in the wide product.
    return 1 / max((wide - narrow) / (WIDE - NARROW), wide / WIDE / 2)
