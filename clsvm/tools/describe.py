"""Figures of a data set and of its rows in each layout, by which "auto" chooses."""

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

TENTHS = 10
NARROW, WIDE = 32, 256  # columns of the dense products by which the device is measured
_ITEMSIZE = 4  # bytes of a float32


@dataclass(frozen=True)
class Split:
    """The dense columns by a rule of the partition: how many, and their share of the entries."""

    rule: str
    dense: int
    share: float


@dataclass(frozen=True)
class Estimate:
    """The estimates of a layout: bytes on the device, cost of a value of K in dense cells, milliseconds of a product
    with WORKING rows, or all. None: the layout does not hold so many columns, or its cost is not estimated."""

    layout: str
    nbytes: int | None
    cost: float | None
    milliseconds: float | None


@dataclass(frozen=True)
class Description:
    """The figures of rows (n, d).

    occurring: columns with an entry. entries: values that are not 0; mean and longest: of a row. density: entries over
    n d. deciles: density of each tenth of the columns that occur, densest first (BoostSVM's figure 4); None where it
    has no column. cluster_columns: what a cluster would hold, None where that is not estimated. chosen, reason: the
    layout that "auto" takes and why. speed: dense multiply-adds a second of the device, measured.
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
        """Return the description in JSON's types."""
        return asdict(self)


def describe(X: Any, device: Any = None) -> Description:
    """Return the figures of the rows X (n, d), dense or sparse, for an rbf kernel on ``device`` (as SVC's).

    Raises ValueError for X that no estimator takes, DeviceError where the device fails.
    """
    X = check_array(arrays.checked(X), accept_sparse="csr", dtype=[np.float64, np.float32])
    d = X.shape[1]
    X = arrays.without_empty(arrays.canonical(X))  # (as fits do; empty columns cost nothing but room)
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
    """Return the mean density of each tenth of the columns that have entries, densest first; ``count`` is of n rows."""
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
    """Return the dense multiply-adds a second: the extra time of a wide product over a narrow one gives them."""
    n = tune.ROWS[stream.profile.shape]
    made = [tune.dense(stream, n, d) for d in (NARROW, WIDE)]
    for work in made:
        work.launch()  # builds and touches, which is not timed
    narrow, wide = (took / (n * tune.WORKING) for took in tune.best_of(*(work.launch for work in made)))
    return 1 / max((wide - narrow) / (WIDE - NARROW), wide / WIDE / 2)  # (half of it where noise says less)
