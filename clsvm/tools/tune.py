"""Tune a device's profile: time kernels with other sizes than the default, keep the fastest, and measure rates.

First the sizes of OpenCL kernels in the profile are searched, such as tiles and work-groups. A :class:`Family` is a
computation, such as a product with two right-hand rows, whose time depends on some of these sizes. The computations are
tuned one after another, each from the sizes found before it. Each gets an equal share of the remaining time, and tries
as many candidates as this allows. The candidates run interleaved, and the best time of each counts. A candidate
replaces the default only if it is clearly faster.

Then the rates of the layouts' cost model are measured. A :class:`Rate` is the time of a stored entry, in units of the
time of a multiply-add in a product of dense rows. A product over rows in a layout and a product over dense rows run
interleaved. The ratio of their best times in a few turns is taken. The median ratio of several rounds counts, because
a temporary slowdown of the machine affects both products. The rate follows from the ratio, after the other known costs
of the layout are subtracted. All rows are generated from a seed.
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
from clsvm.gram.layouts.bits import BITS
from clsvm.gram.layouts.csr import CSR, HYBRID, INVERTED, Csr
from clsvm.gram.layouts.lanes import CLUSTERED, DENSE
from clsvm.gram.layouts.record import Layout, Plan, Survey
from clsvm.gram.partition import Partition, counts
from clsvm.gram.products import Gram, Store, Update
from clsvm.gram.programs import SLABS
from clsvm.kernels import make
from clsvm.opencl import profiles
from clsvm.opencl.devices import find, tuning_key, untuned_profile
from clsvm.opencl.profiles import SEARCH, Profile
from clsvm.opencl.stream import Stream
from clsvm.problem import c_svc
from clsvm.solvers.decomposition import Solver
from clsvm.solvers.result import Settings

WORKING = 256  # number of right-hand rows U in the products K(X, U) that measure rates
ROWS = {"simd": 1 << 12, "workgroup": 1 << 15}  # rows for each kernel style: enough to exceed the processor's caches
_REPEATS, _TURNS = 9, 5  # number of rounds in the measurement of a rate, and runs of each product in a round
_DENSE = 256  # number of columns of dense rows, and of the densely stored columns of hybrid rows
# The CSR rows have few columns, so that copying rows takes little time. A row has about _ENTRIES entries.
_SPARSE, _ENTRIES = 1024, 120
# Each clustered row has one of _KINDS column sets of _WIDTH columns, and entries in about the share _SHARED of its set.
_KINDS, _WIDTH, _SHARED = 128, 256, 0.9
_RARE = 4  # number of entries of a hybrid row outside its densely stored columns
Launch = Callable[[], None]  # runs a product once and waits for it
_CLEARLY = 0.97  # a candidate wins only if it takes less than this share of the default's time
_ROUNDS = 3  # each candidate is timed at least this many times
_NUMBERS = "lanes", "panel", "block", "chunks", "group"  # profile fields that a search may change, in addition to tiles


@dataclass(frozen=True)
class Work:
    """Hold a product K(X, U) whose time gives the rate of a layout of the rows X: the cost of a stored entry.

    Attributes
    ----------
    launch
        function that runs the product and waits for it.
    cells
        number of stored entries to which the rate applies, in the product with one right-hand row.
    overhead
        estimated cost of the rest of the product for one right-hand row, in multiply-adds of dense rows.
    """

    launch: Launch
    cells: float
    overhead: float


@dataclass(frozen=True)
class Rate:
    """Describe a rate, the cost of a stored entry in the cost model of a layout of rows, and how to measure it.

    Attributes
    ----------
    field
        field of :class:`Profile` that holds the rate, such as "csr_cost".
    words
        description of the entries to which the rate applies, for messages.
    prepare
        function: prepare(stream, n) returns the product over n rows whose time gives the rate.
    """

    field: str
    words: str
    prepare: Callable[[Stream, int], Work]


def product(stream: Stream, X: Any, plan: Plan, working: int, stored: bool = False) -> Launch:
    """Return a function that runs a product with K(X, U) once, where U are the first ``working`` rows of X.

    The rows X are laid out by ``plan``. If ``stored`` is true, the product stores K. Else it multiplies K by a weight
    of each right-hand row, and adds the sums to a vector.
    """
    kernel = make("rbf", gamma=1.0 / X.shape[1])
    rows = layouts.build(stream, X, plan, "float32")
    gram = Gram(stream, rows, kernel)
    panel = gram.panel(working)
    at, count = stream.upload(np.arange(working, dtype=np.int32)), stream.upload(np.array([working], np.int32))
    gram.gather(panel, at, count)
    c, weights = stream.wide(np.zeros((1, rows.n_pad))), stream.wide(np.ones((1, panel.capacity)))
    update = None if stored else Update(1, rows.n_pad, c, weights, panel.capacity)
    slabs = (stream.buffer(4 * working * rows.n_pad),) if stored else ()
    store = Store(slabs, working, rows.n_pad, gram.slot(panel.capacity)) if stored else None

    def launch() -> None:
        gram.accumulate(panel, count, store, update)
        stream.finish()

    return launch


def dense(stream: Stream, n: int, d: int = _DENSE) -> Work:
    """Return a product K(X, U) to be timed, for n dense rows X with d columns and right-hand rows U.

    The unit of all rates is the time of one multiply-add in this product.
    """
    X = np.random.default_rng(0).random((n, d), np.float32)
    survey = _survey(stream, X)
    return Work(_launch(stream, X, DENSE), float(n * d), n * (_cost(DENSE, survey) - d))


def _csr(stream: Stream, n: int) -> Work:
    """Return a product K(X, U) to be timed, for n CSR rows X that resemble text and right-hand rows U.

    A few columns of X are dense, and most columns are sparse.
    """
    return _work(stream, text(np.random.default_rng(0), n, _SPARSE, _ENTRIES), "csr_cost", CSR)


def _clustered(stream: Stream, n: int) -> Work:
    """Return a product K(X, U) to be timed, for n rows X in the layout "clustered" and right-hand rows U.

    Each row has one of a few column sets, and entries in most columns of its set. So a cluster of rows with one set
    stores few zeros.
    """
    rng = np.random.default_rng(0)
    columns = np.stack([rng.permutation(2 * _WIDTH)[:_WIDTH] for _ in range(_KINDS)])
    X = np.zeros((n, 2 * _WIDTH), np.float32)
    np.put_along_axis(X, columns[rng.integers(0, _KINDS, n)], rng.random((n, _WIDTH), np.float32) + 0.5, axis=1)
    X[rng.random(X.shape, np.float32) > _SHARED] = 0
    return _work(stream, X, "clustered_cost", CLUSTERED)


def _hybrid(stream: Stream, n: int) -> Work:
    """Return a product K(X, U) to be timed, for n rows X in the layout "hybrid" and right-hand rows U.

    The rows have densely stored columns and a few sparse entries.
    """
    rng = np.random.default_rng(0)
    X = sp.hstack([sp.csr_matrix(rng.random((n, _DENSE), np.float32) + 0.5), text(rng, n, _SPARSE, _RARE)], "csr")
    return _work(stream, X, "hybrid_cost", HYBRID, _DENSE)


def _inverted(stream: Stream, n: int) -> Work:
    """Return a product K(X, U) to be timed, for an inverted index of n rows X and right-hand rows U.

    The rows X are those of :func:`_csr`. Raises ValueError if the device's kernel style has no inverted index.
    """
    if not INVERTED.suits(stream.profile):
        raise ValueError(f"the profile {stream.profile.name!r} has no kernels for rows as an inverted index")
    return _work(stream, text(np.random.default_rng(0), n, _SPARSE, _ENTRIES), "hit_cost", INVERTED)


def _bits(stream: Stream, n: int) -> Work:
    """Return a product K(X, U) to be timed, for n rows X of 0 and 1 in the layout "bits" and right-hand rows U."""
    X = np.random.default_rng(0).integers(0, 2, (n, _DENSE)).astype(np.float32)
    return _work(stream, X, "bits_cost", BITS)


RATES = (
    Rate("csr_cost", "an entry of CSR rows", _csr),
    Rate("clustered_cost", "a stored entry of clustered rows", _clustered),
    Rate("hybrid_cost", "an entry of hybrid rows' dense columns", _hybrid),
    Rate("hit_cost", "an entry that meets one of an inverted index", _inverted),
    Rate("bits_cost", "a word of 32 features of rows of bits", _bits),
)


def _work(stream: Stream, X: Any, field: str, layout: Layout, whole: int = 0) -> Work:
    """Return a product K(X, U) to be timed, for rows X in a layout and right-hand rows U.

    The layout stores the first ``whole`` columns of X densely. The estimated cost is about linear in the rate
    ``field``. The slope gives the number of entries with this rate, and the remainder is the cost of everything else.
    """
    n, survey, costs = X.shape[0], _survey(stream, X), []
    for value in (1.0, 2.0):
        changed: dict[str, Any] = {field: value}
        costs.append(_cost(layout, replace(survey, profile=replace(stream.profile, **changed)), whole))
    cells = costs[1] - costs[0]
    return Work(_launch(stream, X, layout, whole), n * cells, n * (costs[0] - cells))


def _survey(stream: Stream, X: Any) -> Survey:
    return Survey(stream.profile, X, counts(X) / X.shape[0], min(WORKING, X.shape[0]), BITS.holds(X))


def _cost(layout: Layout, survey: Survey, whole: int = 0) -> float:
    """Return the estimated cost of computing one value of K from rows in a layout.

    The unit is a multiply-add in a product of dense rows. ``whole`` is the number of densely stored columns.
    """
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
    """Return n CSR rows with d columns and at most ``entries`` entries each, in random columns.

    Columns differ in density as words do in text: the density of column j is proportional to j ** (1 / power - 1).
    """
    columns: NDArray[np.int32] = np.sort((d * rng.random((n, entries)) ** power).astype(np.int32), axis=1)
    values, ends = np.ones(columns.size, np.float32), np.arange(0, columns.size + 1, entries)
    X = sp.csr_matrix((values, columns.ravel(), ends), shape=(n, d))
    X.sum_duplicates()
    return X


def measure(stream: Stream, rate: Rate, n: int | None = None) -> float | None:
    """Measure a rate by products over n rows on the stream's device, and round it to two digits.

    A rate is the cost of a stored entry. Return None if the rate is outside its limits in profiles.RATES. Raises
    DeviceError if the device fails, ValueError if it cannot run the product.
    """
    n = n or ROWS[stream.profile.style]
    of_dense, work = dense(stream, n), rate.prepare(stream, n)
    for one in of_dense, work:
        one.launch()  # the first launch builds the program and touches memory, so it is not timed
    rounds = [best_of(of_dense.launch, work.launch) for _ in range(_REPEATS)]
    slower = float(np.median([took / dense_took for dense_took, took in rounds]))
    dense_cells = slower * (of_dense.cells + of_dense.overhead)  # time of the product, in multiply-adds of dense rows
    ratio = float(f"{(dense_cells - work.overhead) / work.cells:.2g}")
    least, most = profiles.RATES[rate.field]
    return ratio if least <= ratio <= most else None


def seconds(launch: Launch) -> float:
    """Call ``launch``, and return the seconds that the call took."""
    began = perf_counter()
    launch()
    return perf_counter() - began


def best_of(*launches: Launch) -> list[float]:
    """Return the shortest time of each launch in seconds. The launches run interleaved, _TURNS times each."""
    turns = [[seconds(launch) for launch in launches] for _ in range(_TURNS)]
    return [min(took) for took in zip(*turns, strict=True)]


@dataclass(frozen=True)
class Family:
    """Describe a computation to tune: its time depends on sizes of OpenCL kernels, which the device profile holds.

    Attributes
    ----------
    name
        name of the computation in messages.
    candidates
        function: candidates(profile) yields profiles with the sizes to try, the unchanged profile first.
    prepare
        function: prepare(stream, n) returns a function that runs the computation, scaled to about n rows.
    """

    name: str
    candidates: Callable[[Profile], Iterator[Profile]]
    prepare: Callable[[Stream, int], Launch]


def _values(name: str, lanes: bool = False) -> Callable[[Profile], Iterator[Profile]]:
    """Return a function that yields the profiles to try: the given profile, then copies with one change each.

    The change is another value of the field ``name``. If ``name`` is a kind of product, such as "many" right-hand rows,
    the change is another tile for this kind. If ``lanes`` is true, each tile is combined with each number of lanes.
    """

    def candidates(profile: Profile) -> Iterator[Profile]:
        yield profile
        search = SEARCH[profile.style]
        for value in search.get(name, ()):
            yield replace(profile, **{name: value})
        for count in search["lanes"] if lanes else (profile.lanes,):
            for tile in search["tiles"].get(name, ()):
                yield replace(profile, lanes=count, tiles={**profile.tiles, name: tile})

    return candidates


def _gram(working: int, d: int, density: float = 1.0) -> Callable[[Stream, int], Launch]:
    """Return a function that prepares a product with K(X, U), which is multiplied by weights and not stored.

    U has ``working`` right-hand rows, and X has d columns. X is stored in CSR if ``density`` is below 1.
    """

    def prepare(stream: Stream, n: int) -> Launch:
        rng = np.random.default_rng(0)
        # A product K(X, U) with few rows U is limited by reading memory, so X must exceed the processor's caches.
        n = max(n * 256 // d, working) if working > 16 else n * 4
        dense = density == 1
        X: Any = rng.random((n, d), np.float32) if dense else text(rng, n, d, int(d * density), power=1)
        return product(stream, X, Plan("dense" if dense else "csr", np.zeros(d), ""), working)

    return prepare


def _update(stream: Stream, n: int) -> Launch:
    """Return a function that updates the gradient f of a dual problem by rows of K in the device's row cache."""
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
    """Return a function that runs a short SVM solve on rows with two features.

    The solve spends most of its time on choosing working sets.
    """
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
    Family("many right-hand rows, and lanes", _values("many", lanes=True), _gram(256, 256)),
    Family("many right-hand rows, in wide tiles", _values("wide"), _gram(256, 256)),
    Family("few right-hand rows", _values("few"), _gram(16, 512)),
    Family("two right-hand rows", _values("two"), _gram(2, 512)),
    Family("sparse rows", _values("panel"), _gram(256, 2048, 0.04)),
    Family("update from stored rows", _values("block"), _update),
    Family("selection", _values("chunks"), _selection),
    Family("selection's work-groups", _values("group"), _selection),
)


@dataclass(frozen=True)
class FamilyResult:
    """Hold the result of tuning one computation (:class:`Family`).

    Attributes
    ----------
    family
        name of the computation.
    default
        seconds of the computation with the default sizes; NaN if there was no time for two candidates.
    best
        seconds of the computation with the chosen sizes; NaN if there was no time for two candidates.
    choice
        profile field -> chosen value, for the fields that the search changed.
    """

    family: str
    default: float = np.nan
    best: float = np.nan
    choice: dict[str, Any] = field(default_factory=dict)

    @property
    def searched(self) -> bool:
        return bool(np.isfinite(self.best))


@dataclass(frozen=True)
class RateResult:
    """Hold the result of measuring a rate: the cost of a stored entry in the cost model of a layout.

    Attributes
    ----------
    field
        field of :class:`Profile` that holds the rate.
    words
        description of the entries to which the rate applies, for messages.
    default
        value of the rate in the profile before the measurement.
    ratio
        measured value of the rate; None if there was no time, or if the value is outside its limits.
    """

    field: str
    words: str
    default: float
    ratio: float | None


class Tuning(NamedTuple):
    """Hold the results of a run of the tuner: one for each computation (:class:`Family`) and each :class:`Rate`."""

    families: list[FamilyResult]
    rates: list[RateResult]

    @property
    def has_results(self) -> bool:
        """Return whether any computation was tuned or any rate measured, so that there is something to store."""
        return any(one.searched for one in self.families) or any(one.ratio is not None for one in self.rates)


def tune(spec: Any = None, seconds: float = 60.0, progress: Callable[[str, float], None] | None = None) -> Tuning:
    """Search for the best profile of a device, and store the result if there is one.

    Parameters
    ----------
    spec : None, str, int, pyopencl.Device or pyopencl.CommandQueue, default=None
        The device, as for :func:`clsvm.opencl.devices.find`.
    seconds : float, default=60
        Seconds that the search may take, compilers included. No candidate or rate is begun later.
    progress : callable, default=None
        Function progress(text, share), called before each computation and rate; share is the part done, from 0 to 1.

    Returns
    -------
    Tuning
        The results of all computations and rates.

    Raises
    ------
    DeviceError
        If the device is absent.
    OSError
        If the file of results cannot be written; raised before the search.
    """
    end = perf_counter() + seconds
    profiles.check_tuned_writable()
    info = find(spec)
    start = profile = untuned_profile(info)
    n = 1 << (14 if profile.style == "simd" else 17)
    result, report = Tuning([], []), progress or (lambda words, share: None)
    families = [family for family in FAMILIES if len(list(family.candidates(profile))) > 1]
    parts = len(families) + bool(RATES)  # each part has an equal share of the time; all rates are one part
    for i, family in enumerate(families):
        report(family.name, i / parts)
        now = perf_counter()
        found, profile = _search(spec, family, profile, n, now + (end - now) / (parts - i))
        result.families.append(found)
    for i, rate in enumerate(RATES):
        report(rate.words, (len(families) + i / len(RATES)) / parts)
        ratio = _measured(spec, rate, profile) if perf_counter() < end else None
        result.rates.append(RateResult(rate.field, rate.words, getattr(profile, rate.field), ratio))
        changed: dict[str, Any] = {} if ratio is None else {rate.field: ratio}
        profile = replace(profile, **changed)
    if result.has_results:
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
    """Measure a rate with the kernel sizes of a profile. Return None if the device cannot run the products."""
    try:
        with Stream(spec, profile=profile) as stream:
            return measure(stream, rate)
    except (ClsvmError, ValueError):
        return None


def _search(spec: Any, family: Family, profile: Profile, n: int, end: float) -> tuple[FamilyResult, Profile]:
    """Search the profile for which a computation is fastest, until perf_counter() reaches ``end``.

    The candidates differ in sizes of OpenCL kernels. Return the result, and the profile with the chosen sizes.
    """
    timed: list[tuple[Profile, Launch, list[float]]] = []  # of each candidate: profile, launch, seconds of runs
    with ExitStack() as stack:
        for candidate in dict.fromkeys(family.candidates(profile)):
            needed = sum(max(0, _ROUNDS - len(took)) * min(took) for _, _, took in timed)
            if perf_counter() + needed >= end:
                break
            try:
                launch = family.prepare(stack.enter_context(Stream(spec, profile=candidate)), n)
                launch()  # the first launch builds the program and touches memory, so it is not timed
                timed.append((candidate, launch, [seconds(launch)]))
            except (ClsvmError, ValueError):  # the device cannot run it, for example for lack of registers
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
    """Return field -> value for the profile fields of ``after`` that differ from ``before``, in types that JSON has."""
    old, new = ({name: getattr(of, name) for name in _NUMBERS} for of in (before, after))
    tiles = {name: dict(tile) for name, tile in after.tiles.items() if tile != before.tiles[name]}
    return {name: value for name, value in new.items() if value != old[name]} | ({"tiles": tiles} if tiles else {})
