"""Find the fastest tile sizes for a device, by timing products with a kernel matrix K(X, U) of rows X and U.

A tile is a block of values of K(X, U) that is computed in registers. A :class:`Family` is one kind of product, such as
products with two rows U. The kinds are tuned one after another. Each kind gets an equal share of the remaining time.
The sizes that were chosen for earlier kinds are already used while a later kind is timed. The candidates for the sizes
of a kind are tried until the time of the kind is over. Each tried candidate is timed several times, and its shortest
time counts. A candidate replaces the default only if the candidate is clearly faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import numpy as np

from clsvm.errors import ClsvmError
from clsvm.gram import layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram, Update
from clsvm.kernels import make
from clsvm.opencl import profiles
from clsvm.opencl.devices import find, tuning_key, untuned_profile
from clsvm.opencl.profiles import SEARCH, Profile
from clsvm.opencl.stream import Stream

Launch = Callable[[], None]  # a function that computes one product on the device and waits until it is done
_CLEARLY = 0.97  # tile sizes replace the default only if they take less than this share of the default's time
_ROUNDS = 3  # each candidate for the tile sizes is timed at least this many times


@dataclass(frozen=True)
class Family:
    """Describe a kind of product with a kernel matrix: which tile sizes to try for it, and how to run it.

    A tile is a block of kernel values that is computed in registers. A profile holds the tile sizes for a device.

    Attributes
    ----------
    name
        name of the kind of product in messages.
    candidates
        function candidates(profile): yields the unchanged profile, then copies of it with other tile sizes to try.
    prepare
        function prepare(stream, n): makes test data X, with more rows for a larger n, and returns a function that
        computes the product for X once.
    """

    name: str
    candidates: Callable[[Profile], Iterator[Profile]]
    prepare: Callable[[Stream, int], Launch]


def _tiles(shape: str) -> Callable[[Profile], Iterator[Profile]]:
    """Return a function that yields the profiles to try: a given profile, then copies of it with other tile sizes.

    A tile is a block of values of a kernel matrix K(X, U) that is computed in registers. A profile holds the tile sizes
    for a device. ``shape`` is the class of products to tune: "many", "few" or "two" for the number of rows U, or "wide"
    for larger tiles with many rows U. For "many", each tile size is tried with each allowed value of ``lanes``, the
    number of rows of X whose values are stored interleaved.
    """

    def candidates(profile: Profile) -> Iterator[Profile]:
        yield profile
        search = SEARCH[profile.style]
        for lanes in search["lanes"] if shape == "many" else (profile.lanes,):
            for tile in search["tiles"].get(shape, ()):
                yield replace(profile, lanes=lanes, tiles={**profile.tiles, shape: tile})

    return candidates


def _product(working: int, d: int) -> Callable[[Stream, int], Launch]:
    """Return a function prepare(stream, n) that prepares the product of a kernel matrix K(X, U) with weights.

    ``prepare`` makes the buffers, and returns a function that runs the product once, without storing K(X, U). U has
    ``working`` rows. X has random entries and d features. The number ``n`` sets the amount of work: X has n * 256 / d
    rows (at least ``working``) if U has more than 16 rows, and 4 * n rows otherwise.
    """

    def prepare(stream: Stream, n: int) -> Launch:
        # If U has few rows, a product mostly waits for X. X is made larger than the caches, so it comes from memory.
        n = max(n * 256 // d, working) if working > 16 else n * 4
        X = np.random.default_rng(0).random((n, d), np.float32)
        kernel = make("rbf", gamma=1.0 / d)
        rows = layouts.build(stream, X, Plan("dense", np.zeros(d), ""), "float32")
        gram = Gram(stream, rows, kernel)
        panel = gram.panel(working)
        at, count = stream.upload(np.arange(working, dtype=np.int32)), stream.upload(np.array([working], np.int32))
        gram.gather(panel, at, count)
        c, weights = stream.wide(np.zeros((1, rows.n_pad))), stream.wide(np.ones((1, panel.capacity)))

        def launch() -> None:
            gram.accumulate(panel, count, None, Update(1, rows.n_pad, c, weights, panel.capacity))
            stream.finish()

        return launch

    return prepare


FAMILIES = (
    Family("many right-hand rows, and lanes", _tiles("many"), _product(256, 256)),
    Family("many right-hand rows, in wide tiles", _tiles("wide"), _product(256, 256)),
    Family("few right-hand rows", _tiles("few"), _product(16, 512)),
    Family("two right-hand rows", _tiles("two"), _product(2, 512)),
)


@dataclass(frozen=True)
class FamilyResult:
    """Hold the result of tuning the tile sizes of one kind of product with a kernel matrix (:class:`Family`).

    Attributes
    ----------
    family
        name of the kind of product.
    default
        seconds of the product with the default tile sizes. NaN if no sizes could be compared with the default.
    best
        seconds of the product with the chosen tile sizes. NaN if no sizes could be compared with the default.
    choice
        dict from names of profile fields to chosen values, for the fields that the search changed.
    """

    family: str
    default: float = np.nan
    best: float = np.nan
    choice: dict[str, Any] = field(default_factory=dict)

    @property
    def searched(self) -> bool:
        return bool(np.isfinite(self.best))


def tune(
    spec: Any = None, seconds: float = 60.0, progress: Callable[[str, float], None] | None = None
) -> list[FamilyResult]:
    """Find the fastest tile sizes for a device, and store them in the file of tuning results.

    A tile is a block of values of a kernel matrix that is computed in registers. Nothing is stored if too few tile
    sizes could be timed for a comparison.

    Parameters
    ----------
    spec : None, str, int, pyopencl.Device or pyopencl.CommandQueue, default=None
        The device, as for :func:`clsvm.opencl.devices.find`.
    seconds : float, default=60
        Seconds that the search may take, compilation included. When they are over, the search still completes the
        repeated timings of sizes that it has tried, but tries no other sizes.
    progress : callable, default=None
        Function progress(text, share), called before each kind of product is tuned. ``text`` names the kind, and
        ``share`` is the share of kinds that are done, 0 to 1.

    Returns
    -------
    list of FamilyResult
        The result for each kind of product with a kernel matrix K(X, U), such as products with few rows U.

    Raises
    ------
    DeviceError
        If the device is absent.
    OSError
        If the file of tuning results cannot be written. The error is raised before the search.
    """
    end = perf_counter() + seconds
    profiles.check_tuned_writable()
    info = find(spec)
    start = profile = untuned_profile(info)
    n = 1 << (14 if profile.style == "simd" else 17)
    results = []
    families = [family for family in FAMILIES if len(list(family.candidates(profile))) > 1]
    for i, family in enumerate(families):
        if progress:
            progress(family.name, i / len(families))
        now = perf_counter()
        found, profile = _search(spec, family, profile, n, now + (end - now) / (len(families) - i))
        results.append(found)
    if searched := [one for one in results if one.searched]:
        record = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "profile": _difference(start, profile),
            "milliseconds": {f.family: [round(1e3 * f.default, 3), round(1e3 * f.best, 3)] for f in searched},
        }
        profiles.write_tuned(tuning_key(info), record)
    return results


def _search(spec: Any, family: Family, profile: Profile, n: int, end: float) -> tuple[FamilyResult, Profile]:
    """Time one kind of product with each candidate profile, until perf_counter() reaches ``end``.

    A profile holds the block sizes of OpenCL kernels for a device. Return the times as a FamilyResult, and the fastest
    profile. If no candidate takes less than 0.97 times the seconds of the given ``profile``, return ``profile``.

    spec: the device.
    family: the kind of product, and the candidate profiles to try for it.
    n: number that sets the size of the test data.
    """
    timed: list[tuple[Profile, Launch, list[float]]] = []  # each item: a candidate profile, its launch, seconds of runs
    with ExitStack() as stack:
        for candidate in dict.fromkeys(family.candidates(profile)):
            needed = sum(max(0, _ROUNDS - len(took)) * min(took) for _, _, took in timed)
            if perf_counter() + needed >= end:
                break
            try:
                launch = family.prepare(stack.enter_context(Stream(spec, profile=candidate)), n)
                launch()  # the first launch builds the program and touches memory, so it is not timed
                timed.append((candidate, launch, [_seconds(launch)]))
            except (ClsvmError, ValueError):  # the device cannot run this candidate, for example for lack of registers
                continue
        if len(timed) < 2 or timed[0][0] != profile:
            return FamilyResult(family.name), profile
        while any(len(took) < _ROUNDS for _, _, took in timed) or perf_counter() < end:
            for _, launch, took in timed:
                took.append(_seconds(launch))
    default = min(timed[0][2])
    best, _, took = min(timed, key=lambda one: min(one[2]))
    if not min(took) < _CLEARLY * default:
        best, took = profile, timed[0][2]
    return FamilyResult(family.name, default, min(took), _difference(profile, best)), best


def _seconds(launch: Launch) -> float:
    """Call ``launch``, and return the seconds that the call took."""
    began = perf_counter()
    launch()
    return perf_counter() - began


def _difference(before: Profile, after: Profile) -> dict[str, Any]:
    """Return what differs between two profiles in the fields ``lanes`` and ``tiles``, as a dict that JSON can store.

    If ``lanes`` differs, the dict has the value of ``after`` under the key "lanes". The field ``tiles`` is a dict from
    names to block sizes. If entries of ``tiles`` differ, the result has a dict with only these entries, taken from
    ``after``, under the key "tiles".
    """
    tiles = {name: dict(tile) for name, tile in after.tiles.items() if tile != before.tiles[name]}
    return ({"lanes": after.lanes} if after.lanes != before.lanes else {}) | ({"tiles": tiles} if tiles else {})
