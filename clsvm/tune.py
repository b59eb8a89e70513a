"""The tuner: runs the library's own products and reductions with other numbers and keeps what is fastest here.

A family is a part of the work with numbers of its own in the device's profile. They are searched one after the other,
each with what was found before; the candidates of a family take turns until its share of the time is spent, and the
best time of each counts. A candidate replaces the default only where it is clearly faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import scipy.sparse as sp

from clsvm import layout, solvers, tasks, tuned, variants
from clsvm.device import Stream, find, tuning_key, untuned_profile
from clsvm.errors import ClsvmError
from clsvm.gram import Gram, Update
from clsvm.kernels import make
from clsvm.profiles import SEARCH, Profile
from clsvm.rowcache import SLABS

_CLEARLY = 0.97  # of the default's time: what noise alone can do is not a reason
_ROUNDS = 3
Launch = Callable[[], None]  # runs the work once and waits for it


@dataclass(frozen=True)
class Family:
    """A part of the work: name, candidates(profile) (the default first), prepare(stream, n) -> what is timed."""

    name: str
    candidates: Callable[[Profile], Iterator[Profile]]
    prepare: Callable[[Stream, int], Launch]


def _tiles(shape: str, lanes: bool = False) -> Callable[[Profile], Iterator[Profile]]:
    """Register tiles of a shape class; with ``lanes`` each of them for each number of lanes."""

    def candidates(profile: Profile) -> Iterator[Profile]:
        yield profile
        search = SEARCH[profile.shape]
        for count in search["lanes"] if lanes else (profile.lanes,):
            for tile in search["tiles"][shape]:
                yield replace(profile, lanes=count, tiles={**profile.tiles, shape: tile})

    return candidates


def _numbers(field: str) -> Callable[[Profile], Iterator[Profile]]:
    """The values of a field of the profile."""

    def candidates(profile: Profile) -> Iterator[Profile]:
        yield profile
        for value in SEARCH[profile.shape].get(field, ()):
            yield replace(profile, **{field: value})

    return candidates


def _gram(working: int, d: int, density: float = 1.0) -> Callable[[Stream, int], Launch]:
    """c += K(X, U) D for ``working`` vectors, and K(X, U) stored where they are many; CSR where ``density`` < 1."""

    def prepare(stream: Stream, n: int) -> Launch:
        rng, kernel = np.random.default_rng(0), make("rbf", gamma=1.0 / d)
        n = max(n * 256 // d, working) if working > 16 else n * 4  # few read memory: more than a cache holds
        X: Any = None if density < 1 else rng.random((n, d), np.float32)
        if density < 1:
            columns = np.sort(rng.integers(0, d, (n, int(d * density))), axis=1)
            row_ends = np.arange(0, columns.size + 1, columns.shape[1])
            X = sp.csr_matrix((np.ones(columns.size, np.float32), columns.ravel(), row_ends))
            X.sum_duplicates()
        kind = "dense" if density == 1 else "csr"
        rows = layout.build(stream, X, layout.choose(stream.profile, X, kernel.spec, kind), "float32")
        gram = Gram(stream, rows, kernel)
        panel = gram.panel(working)
        at, count = stream.upload(np.arange(working, dtype=np.int32)), stream.upload(np.array([working], np.int32))
        gram.gather(panel, at, count)
        c, weights = stream.wide(np.zeros((1, rows.n_pad))), stream.wide(np.ones((1, panel.capacity)))
        update = Update(1, rows.n_pad, c, weights, panel.capacity)

        def launch() -> None:
            gram.accumulate(panel, count, None, update)
            stream.finish()

        return launch

    return prepare


def _update(stream: Stream, n: int) -> Launch:
    """f += K D from rows of the store."""
    n, hits = 8 * n, 64
    kernel = stream.variant(variants.update(stream.profile, "float32"))
    slabs = [stream.zeros(4 * n * hits // SLABS) for _ in range(SLABS)]
    slot, count = stream.upload(np.arange(hits, dtype=np.int32)), stream.upload(np.array([hits], np.int32))
    f, weights = stream.wide(np.zeros(n)), stream.wide(np.ones(hits))
    sizes = (hits // SLABS, np.int64(n), slot, 1, np.int64(n), f, weights, hits, count)

    def launch() -> None:
        kernel((-(-n // stream.profile.block),), None, *slabs, *sizes)
        stream.finish()

    return launch


def _selection(stream: Stream, n: int) -> Launch:
    """A few steps of the solver on narrow rows, where choosing the working set is most of the work."""
    n = 8 * n
    rng, kernel = np.random.default_rng(0), make("rbf", gamma=1.0)
    X = rng.random((n, 2), np.float32)
    signs = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    rows = layout.build(stream, X, layout.choose(stream.profile, X, kernel.spec, "dense"), "float32")
    gram, problem = Gram(stream, rows, kernel), tasks.c_svc(signs[None], np.ones((1, n)))
    settings = solvers.Settings(
        tol=1e-3, gap_tol=None, max_iter=200, working_set=16, cache_bytes=0, kernel_scale=1.0, exact=None
    )

    def launch() -> None:
        solvers.solver(stream, gram, problem, settings).run()
        stream.finish()

    return launch


FAMILIES = (
    Family("many working vectors, and lanes", _tiles("many", lanes=True), _gram(256, 256)),
    Family("few working vectors", _tiles("few"), _gram(16, 512)),
    Family("two working vectors", _tiles("two"), _gram(2, 512)),
    Family("sparse rows", _numbers("panel"), _gram(256, 2048, 0.04)),
    Family("update from stored rows", _numbers("block"), _update),
    Family("selection", _numbers("chunks"), _selection),
    Family("selection's work-groups", _numbers("group"), _selection),
)


@dataclass(frozen=True)
class Found:
    """One family's outcome: seconds of the default and of the best, and what the best is."""

    family: str
    default: float
    best: float
    choice: dict[str, Any]


def tune(spec: Any = None, seconds: float = 60.0, progress: Callable[[str, float], None] | None = None) -> list[Found]:
    """Search the device ``spec`` (as clsvm.device.find takes it) for about ``seconds`` and keep what is found.

    progress(words, share done) is called before each family. Raises DeviceError, and OSError where the cache folder
    cannot be written.
    """
    info = find(spec)
    start = profile = untuned_profile(info)
    n = 1 << (14 if profile.shape == "vector" else 17)
    found = []
    for i, family in enumerate(FAMILIES):
        if len(list(family.candidates(profile))) < 2:
            continue
        if progress:
            progress(family.name, i / len(FAMILIES))
        one, profile = _search(spec, family, profile, n, seconds / len(FAMILIES))
        found.append(one)
    record = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "profile": _difference(start, profile),
        "milliseconds": {f.family: [round(1e3 * f.default, 3), round(1e3 * f.best, 3)] for f in found},
    }
    tuned.keep(tuning_key(info), record)
    return found


def _search(spec: Any, family: Family, profile: Profile, n: int, seconds: float) -> tuple[Found, Profile]:
    candidates: list[Profile] = []
    for candidate in family.candidates(profile):
        if candidate not in candidates:
            candidates.append(candidate)
    with ExitStack() as stack:
        launches: list[Launch | None] = []
        for candidate in candidates:
            try:
                stream = stack.enter_context(Stream(spec, profile=candidate))
                made = family.prepare(stream, n)
                made()
            except (ClsvmError, ValueError):  # the device does not take it: too many registers, too large a group
                launches.append(None)
                continue
            launches.append(made)
        best = [np.inf] * len(candidates)
        started, rounds = time.perf_counter(), 0
        while rounds < _ROUNDS or time.perf_counter() - started < seconds / 2:
            for i, launch in enumerate(launches):
                if launch:
                    began = time.perf_counter()
                    launch()
                    best[i] = min(best[i], time.perf_counter() - began)
            rounds += 1
    winner = int(np.argmin(best))
    winner = winner if best[winner] < _CLEARLY * best[0] else 0
    chosen = candidates[winner]
    return Found(family.name, best[0], best[winner], _difference(profile, chosen)), chosen


def _difference(before: Profile, after: Profile) -> dict[str, Any]:
    """The numbers of ``after`` that are not ``before``'s, as JSON holds them."""
    changed: dict[str, Any] = {
        field: getattr(after, field)
        for field in ("lanes", "panel", "block", "chunks", "group")
        if getattr(after, field) != getattr(before, field)
    }
    tiles = {name: dict(tile) for name, tile in after.tiles.items() if tile != before.tiles[name]}
    return changed | ({"tiles": tiles} if tiles else {})
