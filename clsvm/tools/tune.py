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

from clsvm.errors import ClsvmError
from clsvm.gram import layouts, programs
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram
from clsvm.gram.programs import SLABS
from clsvm.kernels import make
from clsvm.opencl import profiles
from clsvm.opencl.devices import find, tuning_key, untuned_profile
from clsvm.opencl.profiles import SEARCH, Profile
from clsvm.opencl.stream import Stream
from clsvm.problem import c_svc
from clsvm.solvers.decomposition import Solver
from clsvm.solvers.result import Settings
from clsvm.tools import rates
from clsvm.tools.rates import RATES, Launch, Rate

_CLEARLY = 0.97  # of the default's time: what noise alone can do is not a reason
_ROUNDS = 3
_NUMBERS = "lanes", "panel", "block", "chunks", "group"  # of the profile, which a search may change beside its tiles


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
        X: Any = rng.random((n, d), np.float32) if dense else rates.text(rng, n, d, int(d * density), power=1)
        return rates.product(stream, X, Plan("dense" if dense else "csr", np.zeros(d), ""), working)

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
            return rates.measure(stream, rate)
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
                timed.append((candidate, launch, [rates.seconds(launch)]))
            except (ClsvmError, ValueError):  # the device does not take it: too many registers, too large a group
                continue
        if len(timed) < 2 or timed[0][0] != profile:
            return FamilyResult(family.name), profile
        while any(len(took) < _ROUNDS for _, _, took in timed) or perf_counter() < end:
            for _, launch, took in timed:
                took.append(rates.seconds(launch))
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
