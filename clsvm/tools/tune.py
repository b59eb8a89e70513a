"""The tuner: time products and reductions with other numbers in the device's profile, and keep the fastest.

A family (:class:`Family`) is a part of the work that depends on some numbers of the profile. Families are searched one
after another. Each search begins with the numbers found before, and gets an equal share of the remaining time. As many
candidates are built as the share allows. They run interleaved, and the best time of each counts. A candidate replaces
the default only if it is clearly faster.

The remaining time is for the rates of the layouts' cost model (:class:`Rate`): the time of a stored entry relative to
a multiply-add in a product of dense rows. A product over the rows of a layout and one over dense rows run interleaved,
with the same right-hand rows. The best time of each in a few turns gives a ratio. The median ratio of several rounds
counts, because a temporary slowdown of the machine affects both products. The other costs of a layout are subtracted
by the known rates. All rows are generated from a seed.
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

WORKING = 256  # right-hand rows of the products
ROWS = {"vector": 1 << 12, "group": 1 << 15}  # rows by kernel style: products take milliseconds and exceed caches
_REPEATS, _TURNS = 9, 5  # rounds of a measurement, and turns of each round
_DENSE = 256  # columns of dense rows, and dense columns of hybrid rows
_SPARSE, _ENTRIES = 1024, 120  # columns of CSR rows, few so that filling panels is cheap; entries of a row, about
_KINDS, _WIDTH, _SHARED = 128, 256, 0.9  # clustered rows: kinds of rows, columns of a kind, share that a row has
_BESIDE = 4  # entries of a hybrid row in addition to its dense columns
Launch = Callable[[], None]  # runs a product once and waits for it
_CLEARLY = 0.97  # a candidate must take less than this share of the default's time, so that noise does not decide
_ROUNDS = 3  # least runs of a candidate
_NUMBERS = "lanes", "panel", "block", "chunks", "group"  # fields of the profile, beside tiles, that a search may change


@dataclass(frozen=True)
class Work:
    """Hold a product to time.

    Attributes
    ----------
    launch
        runs the product and waits for it.
    cells
        stored entries, of the kind that a rate counts, for each right-hand row.
    beside
        cost of everything else for each right-hand row, in dense multiply-adds.
    """

    launch: Launch
    cells: float
    beside: float


@dataclass(frozen=True)
class Rate:
    """Describe a rate of the cost model.

    Attributes
    ----------
    field
        field of the profile.
    words
        stored entry that the rate is for, in words.
    prepare
        prepare(stream, n) returns a product over n rows of the layout.
    """

    field: str
    words: str
    prepare: Callable[[Stream, int], Work]


def product(stream: Stream, X: Any, plan: Plan, working: int, stored: bool = False) -> Launch:
    """Return a launch of K(X, U) with U the first ``working`` rows of X, laid out by ``plan``.

    stored: whether the product stores K; otherwise it computes c += K D.
    """
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
    """Return the product over dense rows of d columns, relative to which the rates are measured."""
    X = np.random.default_rng(0).random((n, d), np.float32)
    survey = _survey(stream, X)
    return Work(_launch(stream, X, DENSE), float(n * d), n * (_cost(DENSE, survey) - d))


def _csr(stream: Stream, n: int) -> Work:
    """Return a product over CSR rows with few entries in many columns, whose density falls with their rank as in
    text.
    """
    return _work(stream, text(np.random.default_rng(0), n, _SPARSE, _ENTRIES), "csr_cost", CSR)


def _clustered(stream: Stream, n: int) -> Work:
    """Return a product over rows of a few kinds. A row has most columns of its kind, so that clusters store few
    zeros.
    """
    rng = np.random.default_rng(0)
    own = np.stack([rng.permutation(2 * _WIDTH)[:_WIDTH] for _ in range(_KINDS)])
    X = np.zeros((n, 2 * _WIDTH), np.float32)
    np.put_along_axis(X, own[rng.integers(0, _KINDS, n)], rng.random((n, _WIDTH), np.float32) + 0.5, axis=1)
    X[rng.random(X.shape, np.float32) > _SHARED] = 0
    return _work(stream, X, "clustered_cost", CLUSTERED)


def _hybrid(stream: Stream, n: int) -> Work:
    """Return a product over rows with dense columns and a few entries."""
    rng = np.random.default_rng(0)
    X = sp.hstack([sp.csr_matrix(rng.random((n, _DENSE), np.float32) + 0.5), text(rng, n, _SPARSE, _BESIDE)], "csr")
    return _work(stream, X, "hybrid_cost", HYBRID, _DENSE)


def _inverted(stream: Stream, n: int) -> Work:
    """Return a product over the rows of :func:`_csr` as an inverted index. Raises ValueError if the device has none."""
    if not INVERTED.suits(stream.profile):
        raise ValueError(f"the profile {stream.profile.name!r} has no kernels for inverted rows")
    return _work(stream, text(np.random.default_rng(0), n, _SPARSE, _ENTRIES), "hit_cost", INVERTED)


RATES = (
    Rate("csr_cost", "an entry of CSR rows", _csr),
    Rate("clustered_cost", "a stored entry of clustered rows", _clustered),
    Rate("hybrid_cost", "an entry of hybrid rows' dense columns", _hybrid),
    Rate("hit_cost", "an entry that meets one of an inverted index", _inverted),
)


def _work(stream: Stream, X: Any, field: str, layout: Layout, whole: int = 0) -> Work:
    """Return the product over rows X in a layout that stores the first ``whole`` columns densely.

    Its cost is a linear function of the rate ``field``, at least approximately.
    """
    n, survey, costs = X.shape[0], _survey(stream, X), []
    for value in (1.0, 2.0):
        changed: dict[str, Any] = {field: value}
        costs.append(_cost(layout, replace(survey, profile=replace(stream.profile, **changed)), whole))
    cells = costs[1] - costs[0]
    return Work(_launch(stream, X, layout, whole), n * cells, n * (costs[0] - cells))


def _survey(stream: Stream, X: Any) -> Survey:
    return Survey(stream.profile, X, counts(X) / X.shape[0], min(WORKING, X.shape[0]))


def _cost(layout: Layout, survey: Survey, whole: int = 0) -> float:
    """Return the cost of a value of K, in dense multiply-adds."""
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
    """Return CSR rows with at most ``entries`` entries. A column's density falls as its rank to the power of
    1/power - 1.
    """
    columns: NDArray[np.int32] = np.sort((d * rng.random((n, entries)) ** power).astype(np.int32), axis=1)
    values, ends = np.ones(columns.size, np.float32), np.arange(0, columns.size + 1, entries)
    X = sp.csr_matrix((values, columns.ravel(), ends), shape=(n, d))
    X.sum_duplicates()
    return X


def measure(stream: Stream, rate: Rate, n: int | None = None) -> float | None:
    """Return the rate of the stream's device, rounded to two digits, from products over n rows.

    Return None if it is outside the limits of profiles.RATES. Raises DeviceError, or ValueError for rows that do not
    fit."""
    n = n or ROWS[stream.profile.shape]
    of_dense, work = dense(stream, n), rate.prepare(stream, n)
    for one in of_dense, work:
        one.launch()  # the first launch builds the program and touches memory, so it is not timed
    rounds = [best_of(of_dense.launch, work.launch) for _ in range(_REPEATS)]
    slower = float(np.median([took / beside for beside, took in rounds]))
    dense_cells = slower * (of_dense.cells + of_dense.beside)  # dense multiply-adds in the time of the product
    ratio = float(f"{(dense_cells - work.beside) / work.cells:.2g}")
    least, most = LIMITS[rate.field]
    return ratio if least <= ratio <= most else None


def seconds(launch: Launch) -> float:
    """Return the seconds that a launch takes."""
    began = perf_counter()
    launch()
    return perf_counter() - began


def best_of(*launches: Launch) -> list[float]:
    """Return the best time of each product in seconds. The products run interleaved."""
    turns = [[seconds(launch) for launch in launches] for _ in range(_TURNS)]
    return [min(took) for took in zip(*turns, strict=True)]


@dataclass(frozen=True)
class Family:
    """Describe a part of the work that depends on numbers of the profile.

    Attributes
    ----------
    name
        name for people.
    candidates
        candidates(profile) yields profiles to try, the default first.
    prepare
        prepare(stream, n) returns the launch to time.
    """

    name: str
    candidates: Callable[[Profile], Iterator[Profile]]
    prepare: Callable[[Stream, int], Launch]


def _values(name: str, lanes: bool = False) -> Callable[[Profile], Iterator[Profile]]:
    """Return the candidates for a number of the profile, or for the tiles of a shape class.

    lanes: whether to combine tiles with every number of lanes.
    """

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
    """Return a function that prepares c += K(X, U) D for ``working`` right-hand rows. density < 1: the rows are
    in CSR.
    """

    def prepare(stream: Stream, n: int) -> Launch:
        rng = np.random.default_rng(0)
        n = (
            max(n * 256 // d, working) if working > 16 else n * 4
        )  # products with few rows read memory, so X must exceed the caches
        dense = density == 1
        X: Any = rng.random((n, d), np.float32) if dense else text(rng, n, d, int(d * density), power=1)
        return product(stream, X, Plan("dense" if dense else "csr", np.zeros(d), ""), working)

    return prepare


def _update(stream: Stream, n: int) -> Launch:
    """Return a launch of f += K D with rows of K from the row cache."""
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
    """Return a short solve on rows with two features, whose time is mostly the choice of working sets."""
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
    """Hold the result of searching a family.

    Attributes
    ----------
    family
        its name.
    default, best
        seconds of the default and of the best candidate; NaN if there was no time for two candidates.
    choice
        fields of the profile that the best candidate changes.
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
    """Hold the result of measuring a rate.

    Attributes
    ----------
    field
        field of the profile.
    words
        stored entry that the rate is for, in words.
    default
        its value in the profile.
    ratio
        measured value; None if there was no time, or if it is outside its limits.
    """

    field: str
    words: str
    default: float
    ratio: float | None


class Tuning(NamedTuple):
    """Hold the results of a run of the tuner."""

    families: list[FamilyResult]
    rates: list[RateResult]

    @property
    def kept(self) -> bool:
        """Return whether there is a result to store."""
        return any(one.searched for one in self.families) or any(one.ratio is not None for one in self.rates)


def tune(spec: Any = None, seconds: float = 60.0, progress: Callable[[str, float], None] | None = None) -> Tuning:
    """Search for the best profile of a device, and store the result if there is one.

    Parameters
    ----------
    spec : None, str, int, pyopencl.Device or pyopencl.CommandQueue, default=None
        The device, as for :func:`clsvm.opencl.devices.find`.
    seconds : float, default=60
        Time of the search, compilers included. No candidate or rate begins after it.
    progress : callable, default=None
        Function of words and the share done, called before each family and rate.

    Returns
    -------
    Tuning
        The results.

    Raises
    ------
    DeviceError
        If the device fails or is absent.
    OSError
        If the file of results cannot be written; raised before the search.
    """
    end = perf_counter() + seconds
    profiles.check_tuned_writable()
    info = find(spec)
    start = profile = untuned_profile(info)
    n = 1 << (14 if profile.shape == "vector" else 17)
    result, told = Tuning([], []), progress or (lambda words, share: None)
    families = [family for family in FAMILIES if len(list(family.candidates(profile))) > 1]
    parts = len(families) + bool(RATES)  # each part has an equal share of the time; all rates are one part
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
    """Return the value of a rate with the numbers of a profile, or None if the device does not accept the rows."""
    try:
        with Stream(spec, profile=profile) as stream:
            return measure(stream, rate)
    except (ClsvmError, ValueError):
        return None


def _search(spec: Any, family: Family, profile: Profile, n: int, end: float) -> tuple[FamilyResult, Profile]:
    """Search a family until perf_counter() reaches ``end``; return the result, and the profile with the best
    candidate.
    """
    timed: list[tuple[Profile, Launch, list[float]]] = []  # candidate, its launch, seconds of its runs
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
                launch()  # the first launch builds the program and touches memory, so it is not timed
                timed.append((candidate, launch, [seconds(launch)]))
            except (ClsvmError, ValueError):  # the device refuses it: too many registers, too large a group
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
    """Return the fields of ``after`` that differ from those of ``before``, in types that JSON has."""
    old, new = ({name: getattr(of, name) for name in _NUMBERS} for of in (before, after))
    tiles = {name: dict(tile) for name, tile in after.tiles.items() if tile != before.tiles[name]}
    return {name: value for name, value in new.items() if value != old[name]} | ({"tiles": tiles} if tiles else {})
