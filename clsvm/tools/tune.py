"""The tuner: time the library's own products and reductions with other numbers of the profile, and keep the fastest.

A family is a part of the work with numbers of its own in the device's profile. Families are searched one after the
other, each with the numbers that were found before and an equal share of the time that is left. As many candidates as
that share allows are built. They then run interleaved, and the best time of each counts. A candidate replaces the
default only where it is clearly faster.

The time that is left measures the rates of the layouts' cost model with the numbers that were found: the time of a
stored entry or cell over that of a dense cell. A product over the layout's rows and one over dense rows run interleaved
with the same working vectors. The best time of each in a few turns gives a ratio, and the median ratio of several such
rounds counts: a machine may slow down for a while, but then both products are slow. All rows are made by a seed. The
other costs of a layout are taken off by the other rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.errors import ClsvmError
from clsvm.gram import layouts, programs
from clsvm.gram.layouts.csr import CSR, HYBRID, INVERTED, Csr
from clsvm.gram.layouts.lanes import CLUSTERED, DENSE
from clsvm.gram.layouts.record import Layout, Plan, Survey
from clsvm.gram.partition import Partition, counts
from clsvm.gram.products import Gram, Store, Update
from clsvm.gram.programs import SLABS
from clsvm.kernels import make
from clsvm.opencl import profiles
from clsvm.opencl.devices import find, tuning_key, untuned_profile
from clsvm.opencl.profiles import RATES as LIMITS
from clsvm.opencl.profiles import SEARCH, Profile
from clsvm.opencl.stream import Stream
from clsvm.problem import c_svc
from clsvm.solvers.decomposition import Solver
from clsvm.solvers.result import Settings

WORKING = 256  # working vectors of the products
ROWS = {"vector": 1 << 12, "group": 1 << 15}  # by the profile's shape: milliseconds, and more than a core's caches hold
_REPEATS, _TURNS = 9, 5  # of a measurement, and turns of each round
_DENSE = 256  # columns of dense rows, and whole columns of hybrid ones
_SPARSE, _ENTRIES = 1024, 120  # columns of CSR rows (few: filling panels is little then) and entries of a row, about
_KINDS, _WIDTH, _SHARED = 128, 256, 0.9  # clustered rows: kinds of rows, columns of a kind, the share that a row has
_BESIDE = 4  # entries of a hybrid row, beside its whole columns
Launch = Callable[[], None]  # runs a product once and waits for it
_CLEARLY = 0.97  # of the default's time: what noise alone can do is not a reason
_ROUNDS = 3
_NUMBERS = "lanes", "panel", "block", "chunks", "group"  # of the profile, which a search may change beside its tiles


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
    rounds = [best_of(of_dense.launch, work.launch) for _ in range(_REPEATS)]
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


@dataclass(frozen=True)
class Family:
    """A part of the work: candidates(profile) yields the default first, prepare(stream, n) returns what is timed."""

    name: str
    candidates: Callable[[Profile], Iterator[Profile]]
    prepare: Callable[[Stream, int], Launch]


def _values(name: str, lanes: bool = False) -> Callable[[Profile], Iterator[Profile]]:
    """Return the search of a number of the profile, or of a shape class's tiles, with ``lanes`` for each number of
    lanes."""

    def candidates(profile: Profile) -> Iterator[Profile]:
        yield profile
        search = SEARCH[profile.shape]
        for value in search.get(name, ()):
            yield replace(profile, **{name: value})
        for count in search["lanes"] if lanes else (profile.lanes,):
            for tile in search["tiles"].get(name, ()):
                yield replace(profile, lanes=count, tiles={**profile.tiles, name: tile})

    return candidates


def _gram(working: int, d: int, density: float = 1.0) -> Callable[[Stream, int], Launch]:
    """Return what prepares c += K(X, U) D for ``working`` vectors; rows are CSR where ``density`` < 1."""

    def prepare(stream: Stream, n: int) -> Launch:
        rng = np.random.default_rng(0)
        n = max(n * 256 // d, working) if working > 16 else n * 4  # few read memory: more than a cache holds
        dense = density == 1
        X: Any = rng.random((n, d), np.float32) if dense else text(rng, n, d, int(d * density), power=1)
        return product(stream, X, Plan("dense" if dense else "csr", np.zeros(d), ""), working)

    return prepare


def _update(stream: Stream, n: int) -> Launch:
    """Return a launch of f += K D from rows of the row cache."""
    n, hits = 8 * n, 64
    kernel = stream.variant(programs.update(stream.profile, "float32"))
    slabs = [stream.zeros(4 * n * hits // SLABS) for _ in range(SLABS)]
    slot, count = stream.upload(np.arange(hits, dtype=np.int32)), stream.upload(np.array([hits], np.int32))
    f, weights = stream.wide(np.zeros(n)), stream.wide(np.ones(hits))
    sizes = (hits // SLABS, np.int64(n), slot, 1, np.int64(n), f, weights, hits, count)

    def launch() -> None:
        kernel(*programs.update_range(stream.profile, n), *slabs, *sizes)
        stream.finish()

    return launch


def _selection(stream: Stream, n: int) -> Launch:
    """Return a short solve on narrow rows, where choosing the working set is most of the work."""
    n = 8 * n
    rng, kernel = np.random.default_rng(0), make("rbf", gamma=1.0)
    X = rng.random((n, 2), np.float32)
    signs = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    rows = layouts.build(stream, X, layouts.choose(stream.profile, X, kernel.spec, "dense"), "float32")
    gram, problem = Gram(stream, rows, kernel), c_svc(signs[None], np.ones((1, n)))
    settings = Settings(
        tol=1e-3, gap_tol=None, max_iter=200, working_set=16, cache_bytes=0, kernel_scale=1.0, exact=None
    )

    def launch() -> None:
        Solver(stream, gram, problem, settings).run()
        stream.finish()

    return launch


FAMILIES = (
    Family("many working vectors, and lanes", _values("many", lanes=True), _gram(256, 256)),
    Family("many of them, in wide tiles", _values("wide"), _gram(256, 256)),
    Family("few working vectors", _values("few"), _gram(16, 512)),
    Family("two working vectors", _values("two"), _gram(2, 512)),
    Family("sparse rows", _values("panel"), _gram(256, 2048, 0.04)),
    Family("update from stored rows", _values("block"), _update),
    Family("selection", _values("chunks"), _selection),
    Family("selection's work-groups", _values("group"), _selection),
)


@dataclass(frozen=True)
class FamilyResult:
    """The seconds of a family's default and of its best candidate, and what that changes; nan where there was no time
    for the default and another candidate."""

    family: str
    default: float = np.nan
    best: float = np.nan
    choice: dict[str, Any] = field(default_factory=dict)

    @property
    def searched(self) -> bool:
        return bool(np.isfinite(self.best))


@dataclass(frozen=True)
class RateResult:
    """A rate of the cost model: its field of the profile, what it counts in words, its default, and its measured value,
    None where there was no time for it or it came out beyond its limits."""

    field: str
    words: str
    default: float
    ratio: float | None


class Tuning(NamedTuple):
    """The results of a run of the tuner."""

    families: list[FamilyResult]
    rates: list[RateResult]

    @property
    def kept(self) -> bool:
        """Whether there is a result to keep."""
        return any(one.searched for one in self.families) or any(one.ratio is not None for one in self.rates)


def tune(spec: Any = None, seconds: float = 60.0, progress: Callable[[str, float], None] | None = None) -> Tuning:
    """Search the device ``spec`` (as devices.find takes it) for about ``seconds`` and write what is found, if any.

    The time includes compilers: no candidate and no rate begins when it is over. progress(words, share done) is called
    before each family and rate. Raises DeviceError, and OSError, before the search, where the file cannot be written.
    """
    end = perf_counter() + seconds
    profiles.check_tuned_writable()
    info = find(spec)
    start = profile = untuned_profile(info)
    n = 1 << (14 if profile.shape == "vector" else 17)
    result, told = Tuning([], []), progress or (lambda words, share: None)
    families = [family for family in FAMILIES if len(list(family.candidates(profile))) > 1]
    parts = len(families) + bool(RATES)  # each has an equal share of the time; all rates together are one
    for i, family in enumerate(families):
        told(family.name, i / parts)
        now = perf_counter()
        found, profile = _search(spec, family, profile, n, now + (end - now) / (parts - i))
        result.families.append(found)
    for i, rate in enumerate(RATES):
        told(rate.words, (len(families) + i / len(RATES)) / parts)
        ratio = _measured(spec, rate, profile) if perf_counter() < end else None
        result.rates.append(RateResult(rate.field, rate.words, getattr(profile, rate.field), ratio))
        changed: dict[str, Any] = {} if ratio is None else {rate.field: ratio}
        profile = replace(profile, **changed)
    if result.kept:
        ratios = {rate.field: rate.ratio for rate in result.rates if rate.ratio is not None}
        searched = [one for one in result.families if one.searched]
        record = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "profile": _difference(start, profile) | ratios,
            "milliseconds": {f.family: [round(1e3 * f.default, 3), round(1e3 * f.best, 3)] for f in searched},
        }
        profiles.write_tuned(tuning_key(info), record)
    return result


def _measured(spec: Any, rate: Rate, profile: Profile) -> float | None:
    """Return a rate with the numbers of a profile, None where the device does not take the rows."""
    try:
        with Stream(spec, profile=profile) as stream:
            return measure(stream, rate)
    except (ClsvmError, ValueError):
        return None


def _search(spec: Any, family: Family, profile: Profile, n: int, end: float) -> tuple[FamilyResult, Profile]:
    """Search a family until perf_counter() is ``end``; return what is best, and the profile with it."""
    timed: list[tuple[Profile, Launch, list[float]]] = []  # a candidate, its work, and the seconds of its runs
    with ExitStack() as stack:
        candidates = list(family.candidates(profile))
        for i, candidate in enumerate(candidates):
            if candidate in candidates[:i]:
                continue
            rest = sum(max(0, _ROUNDS - len(took)) * min(took) for _, _, took in timed)
            if perf_counter() + rest >= end:
                break
            try:
                launch = family.prepare(stack.enter_context(Stream(spec, profile=candidate)), n)
                launch()  # builds and touches memory, which is not timed
                timed.append((candidate, launch, [seconds(launch)]))
            except (ClsvmError, ValueError):  # the device does not take it: too many registers, too large a group
                continue
        if len(timed) < 2 or timed[0][0] != profile:
            return FamilyResult(family.name), profile
        while any(len(took) < _ROUNDS for _, _, took in timed) or perf_counter() < end:
            for _, launch, took in timed:
                took.append(seconds(launch))
    default = min(timed[0][2])
    best, _, took = min(timed, key=lambda one: min(one[2]))
    if not min(took) < _CLEARLY * default:
        best, took = profile, timed[0][2]
    return FamilyResult(family.name, default, min(took), _difference(profile, best)), best


def _difference(before: Profile, after: Profile) -> dict[str, Any]:
    """Return the numbers of ``after`` that differ from those of ``before``, as JSON holds them."""
    old, new = ({name: getattr(of, name) for name in _NUMBERS} for of in (before, after))
    tiles = {name: dict(tile) for name, tile in after.tiles.items() if tile != before.tiles[name]}
    return {name: value for name, value in new.items() if value != old[name]} | ({"tiles": tiles} if tiles else {})
