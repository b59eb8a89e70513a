"""The tuner: time the library's own products and reductions with other numbers of the profile, and keep the fastest.

A family is a part of the work with numbers of its own in the device's profile. Families are searched one after the
other, each with the numbers that were found before and an equal share of the time that is left. As many candidates as
that share allows are built. They then run interleaved, and the best time of each counts. A candidate replaces the
default only where it is clearly faster.

The time that is left measures the rates of the layouts' cost model (tools/rates.py) with the numbers that were found.
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

from clsvm import solvers
from clsvm.errors import ClsvmError
from clsvm.gram import layouts, programs
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram
from clsvm.gram.programs import SLABS
from clsvm.kernels import make
from clsvm.opencl import tuned
from clsvm.opencl.devices import find, tuning_key, untuned_profile
from clsvm.opencl.profiles import SEARCH, Profile
from clsvm.opencl.stream import Stream
from clsvm.problem import posed
from clsvm.tools import rates
from clsvm.tools.rates import RATES, Launch, Rate

_CLEARLY = 0.97  # of the default's time: what noise alone can do is not a reason
_ROUNDS = 3


@dataclass(frozen=True)
class Family:
    """A part of the work: candidates(profile) yields the default first, prepare(stream, n) returns what is timed."""

    name: str
    candidates: Callable[[Profile], Iterator[Profile]]
    prepare: Callable[[Stream, int], Launch]


def _tiles(shape: str, lanes: bool = False) -> Callable[[Profile], Iterator[Profile]]:
    """Return the search of the register tiles of a shape class, with ``lanes`` for each number of lanes."""

    def candidates(profile: Profile) -> Iterator[Profile]:
        yield profile
        search = SEARCH[profile.shape]
        for count in search["lanes"] if lanes else (profile.lanes,):
            for tile in search["tiles"].get(shape, ()):
                yield replace(profile, lanes=count, tiles={**profile.tiles, shape: tile})

    return candidates


def _numbers(field: str) -> Callable[[Profile], Iterator[Profile]]:
    """Return the search of the values of a field of the profile."""

    def candidates(profile: Profile) -> Iterator[Profile]:
        yield profile
        for value in SEARCH[profile.shape].get(field, ()):
            yield replace(profile, **{field: value})

    return candidates


def _gram(working: int, d: int, density: float = 1.0) -> Callable[[Stream, int], Launch]:
    """Return what prepares c += K(X, U) D for ``working`` vectors; rows are CSR where ``density`` < 1."""

    def prepare(stream: Stream, n: int) -> Launch:
        rng = np.random.default_rng(0)
        n = max(n * 256 // d, working) if working > 16 else n * 4  # few read memory: more than a cache holds
        X: Any = None if density < 1 else rng.random((n, d), np.float32)
        if density < 1:
            columns = np.sort(rng.integers(0, d, (n, int(d * density))), axis=1)
            row_ends = np.arange(0, columns.size + 1, columns.shape[1])
            X = sp.csr_matrix((np.ones(columns.size, np.float32), columns.ravel(), row_ends), shape=(n, d))
            X.sum_duplicates()
        plan = Plan("dense" if density == 1 else "csr", np.zeros(d), "")
        return rates.product(stream, X, plan, working)

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
    gram, problem = Gram(stream, rows, kernel), posed.c_svc(signs[None], np.ones((1, n)))
    settings = solvers.Settings(
        tol=1e-3, gap_tol=None, max_iter=200, working_set=16, cache_bytes=0, kernel_scale=1.0, exact=None
    )

    def launch() -> None:
        solvers.solver(stream, gram, problem, settings).run()
        stream.finish()

    return launch


FAMILIES = (
    Family("many working vectors, and lanes", _tiles("many", lanes=True), _gram(256, 256)),
    Family("many of them, in wide tiles", _tiles("wide"), _gram(256, 256)),
    Family("few working vectors", _tiles("few"), _gram(16, 512)),
    Family("two working vectors", _tiles("two"), _gram(2, 512)),
    Family("sparse rows", _numbers("panel"), _gram(256, 2048, 0.04)),
    Family("update from stored rows", _numbers("block"), _update),
    Family("selection", _numbers("chunks"), _selection),
    Family("selection's work-groups", _numbers("group"), _selection),
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
    tuned.check_writable()
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
        tuned.write(tuning_key(info), record)
    return result


def _measured(spec: Any, rate: Rate, profile: Profile) -> float | None:
    """Return a rate with the numbers of a profile, None where the device does not take the rows."""
    try:
        with Stream(spec, profile=profile) as stream:
            return rates.measure(stream, rate)
    except (ClsvmError, ValueError):
        return None


def _search(spec: Any, family: Family, profile: Profile, n: int, end: float) -> tuple[FamilyResult, Profile]:
    """Search a family until perf_counter() is ``end``; return what is best, and the profile with it."""
    with ExitStack() as stack:
        timed: list[_Timed] = []
        candidates = list(family.candidates(profile))
        for i, candidate in enumerate(candidates):
            if candidate in candidates[:i]:
                continue
            if perf_counter() + sum(one.rest for one in timed) >= end:
                break
            try:
                stream = stack.enter_context(Stream(spec, profile=candidate))
                timed.append(_Timed(candidate, family.prepare(stream, n)))
            except (ClsvmError, ValueError):  # the device does not take it: too many registers, too large a group
                continue
        if len(timed) < 2 or timed[0].profile != profile:
            return FamilyResult(family.name), profile
        while any(one.runs < _ROUNDS for one in timed) or perf_counter() < end:
            for one in timed:
                one.run()
    default, best = timed[0], min(timed, key=lambda one: one.best)
    best = best if best.best < _CLEARLY * default.best else default
    return FamilyResult(family.name, default.best, best.best, _difference(profile, best.profile)), best.profile


class _Timed:
    """A candidate, its work, and the best time of its runs after a first one, which builds and touches memory."""

    def __init__(self, profile: Profile, launch: Launch) -> None:
        self.profile, self._launch, self.runs, self.best = profile, launch, 0, np.inf
        launch()
        self.run()

    def run(self) -> None:
        began = perf_counter()
        self._launch()
        self.best = min(self.best, perf_counter() - began)
        self.runs += 1

    @property
    def rest(self) -> float:
        """The seconds of the runs that it must still have."""
        return max(0, _ROUNDS - self.runs) * self.best


def _difference(before: Profile, after: Profile) -> dict[str, Any]:
    """Return the numbers of ``after`` that differ from those of ``before``, as JSON holds them."""
    changed: dict[str, Any] = {
        field: getattr(after, field)
        for field in ("lanes", "panel", "block", "chunks", "group")
        if getattr(after, field) != getattr(before, field)
    }
    tiles = {name: dict(tile) for name, tile in after.tiles.items() if tile != before.tiles[name]}
    return changed | ({"tiles": tiles} if tiles else {})
