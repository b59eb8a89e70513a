"""The rates of the layouts' cost model, measured: the time of a stored entry or cell over that of a dense cell.

A product over the layout's rows and one over dense rows run interleaved with the same working vectors. The best time of
each in a few turns gives a ratio, and the median ratio of several such rounds counts: a machine may slow down for a
while, but then both products are slow. All rows are made by a seed. The other costs of a layout are taken off by the
other rates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.gram import layouts
from clsvm.gram.layouts.csr import CSR, HYBRID, INVERTED, Csr
from clsvm.gram.layouts.lanes import CLUSTERED, DENSE
from clsvm.gram.layouts.record import Layout, Plan, Survey
from clsvm.gram.partition import Partition, counts
from clsvm.gram.products import Gram, Store, Update
from clsvm.kernels import make
from clsvm.opencl.profiles import RATES as LIMITS
from clsvm.opencl.stream import Stream

WORKING = 256  # working vectors of the products
ROWS = {"vector": 1 << 12, "group": 1 << 15}  # by the profile's shape: milliseconds, and more than a core's caches hold
_ROUNDS, _TURNS = 9, 5  # of a measurement, and turns of each round
_DENSE = 256  # columns of dense rows, and whole columns of hybrid ones
_SPARSE, _ENTRIES = 1024, 120  # columns of CSR rows (few: filling panels is little then) and entries of a row, about
_KINDS, _WIDTH, _SHARED = 128, 256, 0.9  # clustered rows: kinds of rows, columns of a kind, the share that a row has
_BESIDE = 4  # entries of a hybrid row, beside its whole columns
Launch = Callable[[], None]  # runs a product once and waits for it


@dataclass(frozen=True)
class Work:
    """A product to time. cells: how many of what the rate counts it has for each working vector; beside: what it takes
    without them, in dense cells, likewise."""

    launch: Launch
    cells: float
    beside: float


@dataclass(frozen=True)
class Rate:
    """A rate of the cost model: its field of the profile, what it counts in words, and prepare(stream, n): a product
    over n rows of the layout."""

    field: str
    words: str
    prepare: Callable[[Stream, int], Work]


def product(stream: Stream, X: Any, plan: Plan, working: int, stored: bool = False) -> Launch:
    """Return a launch of K(X, U) for ``working`` of the rows of X as ``plan`` lays them out: stored, or c += K D."""
    kernel = make("rbf", gamma=1.0 / X.shape[1])
    rows = layouts.build(stream, X, plan, "float32")
    gram = Gram(stream, rows, kernel)
    panel = gram.panel(working)
    at, count = stream.upload(np.arange(working, dtype=np.int32)), stream.upload(np.array([working], np.int32))
    gram.gather(panel, at, count)
    c, weights = stream.wide(np.zeros((1, rows.n_pad))), stream.wide(np.ones((1, panel.capacity)))
    update = None if stored else Update(1, rows.n_pad, c, weights, panel.capacity)
    kept = (stream.buffer(4 * working * rows.n_pad),) if stored else ()
    store = Store(kept, working, rows.n_pad, gram.slot(panel.capacity)) if stored else None

    def launch() -> None:
        gram.accumulate(panel, count, store, update)
        stream.finish()

    return launch


def dense(stream: Stream, n: int, d: int = _DENSE) -> Work:
    """Return the product that the others are compared to, over rows of d columns."""
    X = np.random.default_rng(0).random((n, d), np.float32)
    survey = _survey(stream, X)
    return Work(_launch(stream, X, DENSE), float(n * d), n * (_cost(DENSE, survey) - d))


def _csr(stream: Stream, n: int) -> Work:
    """Return the work on few entries in many columns, whose density falls by a power of the rank, as in text."""
    return _work(stream, text(np.random.default_rng(0), n, _SPARSE, _ENTRIES), "csr_cost", CSR)


def _clustered(stream: Stream, n: int) -> Work:
    """Return the work on rows of a few kinds, each with most of its kind's columns: clusters hold few zeros."""
    rng = np.random.default_rng(0)
    own = np.stack([rng.permutation(2 * _WIDTH)[:_WIDTH] for _ in range(_KINDS)])
    X = np.zeros((n, 2 * _WIDTH), np.float32)
    np.put_along_axis(X, own[rng.integers(0, _KINDS, n)], rng.random((n, _WIDTH), np.float32) + 0.5, axis=1)
    X[rng.random(X.shape, np.float32) > _SHARED] = 0
    return _work(stream, X, "clustered_cost", CLUSTERED)


def _hybrid(stream: Stream, n: int) -> Work:
    """Return the work on whole columns and a few entries."""
    rng = np.random.default_rng(0)
    X = sp.hstack([sp.csr_matrix(rng.random((n, _DENSE), np.float32) + 0.5), text(rng, n, _SPARSE, _BESIDE)], "csr")
    return _work(stream, X, "hybrid_cost", HYBRID, _DENSE)


def _inverted(stream: Stream, n: int) -> Work:
    """Return the work on the rows of :func:`_csr` as an inverted index. Raises ValueError where the device has none."""
    if not INVERTED.suits(stream.profile):
        raise ValueError(f"the profile {stream.profile.name!r} has no kernels for inverted rows")
    return _work(stream, text(np.random.default_rng(0), n, _SPARSE, _ENTRIES), "hit_cost", INVERTED)


RATES = (
    Rate("csr_cost", "an entry of CSR rows", _csr),
    Rate("clustered_cost", "a cell of clustered rows", _clustered),
    Rate("hybrid_cost", "a cell of hybrid rows' whole columns", _hybrid),
    Rate("hit_cost", "an entry that meets one of inverted rows", _inverted),
)


def _work(stream: Stream, X: Any, field: str, layout: Layout, whole: int = 0) -> Work:
    """Return the work over rows X in a layout that stores the first ``whole`` columns whole. Its cost is linear in the
    rate ``field``, or nearly so."""
    n, survey, costs = X.shape[0], _survey(stream, X), []
    for value in (1.0, 2.0):
        changed: dict[str, Any] = {field: value}
        costs.append(_cost(layout, replace(survey, profile=replace(stream.profile, **changed)), whole))
    cells = costs[1] - costs[0]
    return Work(_launch(stream, X, layout, whole), n * cells, n * (costs[0] - cells))


def _survey(stream: Stream, X: Any) -> Survey:
    return Survey(stream.profile, X, counts(X) / X.shape[0], min(WORKING, X.shape[0]))


def _cost(layout: Layout, survey: Survey, whole: int = 0) -> float:
    """Return the cost of a value of K in dense cells."""
    if isinstance(layout, Csr):
        return layout.of_parts(survey, np.arange(len(survey.density)) < whole)
    cost = layout.cost(survey)
    assert cost is not None
    return cost


def _launch(stream: Stream, X: Any, layout: Layout, whole: int = 0) -> Launch:
    columns = Partition(np.arange(X.shape[1], dtype=np.int32), whole) if layout.splits else None
    plan = Plan(layout.name, np.zeros(X.shape[1]), "", partition=columns)
    return product(stream, X, plan, min(WORKING, X.shape[0]), stored=True)


def text(rng: np.random.Generator, n: int, d: int, entries: int, power: int = 3) -> sp.csr_matrix:
    """Return CSR rows of at most ``entries``; a column's density falls by its rank to the power of 1 - 1/power."""
    columns: NDArray[np.int32] = np.sort((d * rng.random((n, entries)) ** power).astype(np.int32), axis=1)
    values, ends = np.ones(columns.size, np.float32), np.arange(0, columns.size + 1, entries)
    X = sp.csr_matrix((values, columns.ravel(), ends), shape=(n, d))
    X.sum_duplicates()
    return X


def measure(stream: Stream, rate: Rate, n: int | None = None) -> float | None:
    """Return the rate on the stream's device in two significant digits, by products over n rows.

    None: it is beyond the limits of profiles.RATES. Raises DeviceError, and ValueError for rows that do not fit.
    """
    n = n or ROWS[stream.profile.shape]
    of_dense, work = dense(stream, n), rate.prepare(stream, n)
    for one in of_dense, work:
        one.launch()  # builds and touches, which is not timed
    rounds = [best_of(of_dense.launch, work.launch) for _ in range(_ROUNDS)]
    slower = float(np.median([took / beside for beside, took in rounds]))
    dense_cells = slower * (of_dense.cells + of_dense.beside)  # of the same time
    ratio = float(f"{(dense_cells - work.beside) / work.cells:.2g}")
    least, most = LIMITS[rate.field]
    return ratio if least <= ratio <= most else None


def seconds(launch: Launch) -> float:
    """Return the seconds that a launch takes."""
    began = perf_counter()
    launch()
    return perf_counter() - began


def best_of(*launches: Launch) -> list[float]:
    """Return the best seconds of each product; they run interleaved."""
    turns = [[seconds(launch) for launch in launches] for _ in range(_TURNS)]
    return [min(took) for took in zip(*turns, strict=True)]
