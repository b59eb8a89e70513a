"""What of its peaks the device reaches in the library's own kernels: products over dense and sparse rows, reductions,
the subproblem's steps.

Shares are of the peaks that took turns with what is measured. Sizes go with the device's arithmetic and its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks.bench import TOLERANCE, Bench, Clock, Laid, Peaks, Product, peaks_of
from benchmarks.gpu.plan import Asked, ended
from benchmarks.gpu.training import a9a_like, waiting
from benchmarks.ladder import inner_steps
from benchmarks.ladder import reductions as reduce
from clsvm import kernels
from clsvm.errors import ClsvmError
from clsvm.gram import layouts as laid
from clsvm.gram import units as matrix_units
from clsvm.gram.products import Gram
from clsvm.gram.programs import Units
from clsvm.opencl.profiles import SEARCH, Profile, Tile, shape_class
from clsvm.opencl.stream import Stream

Tiles = Callable[[Profile, str], Iterator[tuple[str, Tile]]]  # of a shape class: (its name, a tile)
WORKING = {"few": (2, 16), "many": (512, 1024)}  # working vectors, by what bounds their products
LONG = {"vector": 1 << 27, "group": 1 << 28}  # bytes of X where they are few: more than caches hold
STORED = 1 << 30  # bytes of K that are stored at most
LAUNCH = 0.005  # of the limit: what a launch takes at most, about, by a trial with LEAST_ROWS
LEAST_ROWS = 1024
HALF = 0.55  # of the limit: when nothing more is begun
ALL = 0.85  # the same of tiles, of which each takes little
REDUCED = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
SUBPROBLEMS = (64, 256, 1024)


def other_tile(profile: Profile, shape: str) -> Tile:
    """Return a tile of that shape class that the tuner tries and that is not the profile's."""
    return next(tile for tile in SEARCH[profile.shape]["tiles"][shape] if tile != profile.tiles[shape])


def products(asked: Asked, d: int) -> Iterator[dict[str, Any]]:
    """Measure few and many working rows in two tiles each, stored and as an update, over dense rows of d features."""
    wrong, left_out, began = list[str](), list[str](), perf_counter()
    with Bench(asked.device) as bench:
        peaks = peaks_of(bench)
        for bound, sizes in WORKING.items():
            if perf_counter() - began > HALF * asked.seconds:
                left_out.append(f"{bound} working rows")
                continue
            n = _rows(bench, bound, d, asked.seconds)
            part, failed = _measured(bench, peaks, n, d, sizes, min(4.0, asked.seconds / 8), _tiles)
            wrong += failed
            yield part
    ended(wrong, left_out)


def tiles(asked: Asked, d: int) -> Iterator[dict[str, Any]]:
    """Measure many working rows over dense rows of d features in each tile that the tuner can choose."""
    wrong, left_out, began = list[str](), list[str](), perf_counter()
    with Bench(asked.device) as bench:
        peaks, W = peaks_of(bench), max(WORKING["many"])
        n = _rows(bench, "many", d, asked.seconds)
        for name in _many(bench.profile):
            own = bench.profile.tiles[name]
            for tile in (own, *(one for one in SEARCH[bench.profile.shape]["tiles"][name] if one != own)):
                if perf_counter() - began > ALL * asked.seconds:
                    left_out.append(f"the tile {dict(tile)}")
                    continue

                def alone(profile: Profile, shape: str, one: tuple[str, Tile] = (name, tile)) -> Any:
                    yield one

                part, failed = _measured(bench, peaks, n, d, (W,), asked.seconds / 50, alone)
                wrong += failed
                yield part
    ended(wrong, left_out)


def _measured(
    bench: Bench, peaks: Peaks, n: int, d: int, sizes: tuple[int, ...], seconds: float, tiles: Tiles
) -> tuple[dict[str, Any], list[str]]:
    """Return what is found of products with dense rows (n, d), and the names of those that are wrong."""
    wrong = []
    with ExitStack() as stack:
        made, records = _prepared(bench, stack, n, d, sizes, tiles)
        clock = Clock(seconds)
        clock.run(bench, peaks.launches | {name: one.launch for name, one in made.items()})
        rates = peaks.rates(clock)
        for name, one in made.items():
            spent, row = clock.best[name], records[name]
            written = 4.0 * n * one.W if one.stored else 16.0 * n  # X is read once
            row |= _judged(one, spent, 2.0 * n * one.W * d) | {"gbs": 1e-9 * (4.0 * n * d + written) / spent}
            row["of_arithmetic"] = row["gflops"] / rates["fma_gflops"]
            row["of_bandwidth"] = row["gbs"] / rates["read_gbs"]
            wrong += [name] * (not row["right"])
    return {"products": list(records.values()), "peaks": [{"n": n, **rates}]}, wrong


def _judged(one: Product, seconds: float, flops: float) -> dict[str, Any]:
    error = one.error()
    return {"seconds": seconds, "gflops": 1e-9 * flops / seconds, "error": error, "right": error <= TOLERANCE}


def _rows(bench: Bench, bound: str, d: int, seconds: float) -> int:
    """Return the rows of X: what memory allows, or what a launch gets through in its share of the limit."""
    W, room = max(WORKING[bound]), min(bench.stream.largest, bench.stream.limit // 8)
    most = min(LONG[bench.profile.shape] // (4 * d) if bound == "few" else STORED // (4 * max(W, d)), room // (4 * d))
    rbf, X = _data(LEAST_ROWS, d)
    with bench.section() as part:
        clock = Clock(0.0, rounds=1, batch=0.0)
        clock.run(part, {"few": Product(Laid.by(part.stream, X, rbf), _working(LEAST_ROWS, W)).launch})
    return max(LEAST_ROWS, min(most, int(LEAST_ROWS * LAUNCH * seconds / clock.best["few"])))


@lru_cache(maxsize=1)
def _data(n: int, d: int) -> tuple[kernels.Kernel, NDArray[np.float32]]:
    """Return rows (n, d) in [0, 1), and a kernel function whose values over them are about exp(-1)."""
    return kernels.make("rbf", gamma=6.0 / d), np.random.default_rng(d).random((n, d), np.float32)


def _working(n: int, W: int) -> NDArray[np.int32]:
    return np.random.default_rng(W).integers(0, n, W).astype(np.int32)


def _many(profile: Profile) -> tuple[str, ...]:
    """Return the shape classes of many vectors."""
    return ("wide", "many") if "wide" in profile.tiles else ("many",)


def _tiles(profile: Profile, shape: str) -> Iterator[tuple[str, Tile]]:
    """Yield the tiles that are tried for a shape class: the profile's and another."""
    for name in _many(profile) if shape == "many" else (shape,):
        yield name, profile.tiles[name]
        yield name, other_tile(profile, name)


def _prepared(
    bench: Bench, stack: ExitStack, n: int, d: int, sizes: tuple[int, ...], tiles: Tiles
) -> tuple[dict[str, Product], dict[str, dict[str, Any]]]:
    """Return the products that the device takes, by name, and a record for each that was tried."""
    rbf, X = _data(n, d)
    whole: Laid | None = None
    made: dict[str, Product] = {}
    records: dict[str, dict[str, Any]] = {}
    for W in sizes:
        for shape, tile in tiles(bench.profile, shape_class(W)):
            unforced = {name: one for name, one in bench.profile.tiles.items() if (shape, name) != ("many", "wide")}
            profile = replace(bench.profile, tiles={**unforced, shape: tile})
            stream = stack.enter_context(Stream(bench.queue, profile=profile))
            whole = whole or Laid.by(stream, X, rbf)  # the layout does not depend on tiles
            usual = tile == bench.profile.tiles[shape]
            # beside the profile's wide tile, the device's matrix units, if it has such
            own = matrix_units.found(stream).units if shape == "wide" and usual else None
            every: list[Units | None] = [None, own] if own else [None]
            for units, stored in product(every, (True, False)):
                words = {"UNITS": units.name} if units else dict(tile)
                name = f"W = {W}, d = {d}, {'rows' if stored else 'update'}, {words}"
                records[name] = {"W": W, "d": d, "n": n, "stored": stored, "tile": words}
                records[name]["usual"] = usual and not units
                try:
                    gram = Gram(stream, whole.rows, rbf)
                    gram.use(units)
                    made[name] = _first(Product(whole.over(gram), _working(n, W), stored))
                except (ClsvmError, ValueError) as error:  # too many registers, say: the other tile still counts
                    records[name]["refused"] = f"{type(error).__name__}: {error}"[:500]
    return made, records


def _first(one: Product) -> Product:
    """Launch a product, which builds its program."""
    one.launch()
    one.stream.finish()
    return one


TEXT, WORDS = (20000, 30000), 120  # rows and columns of the text-like set, words of a row at most


def text_like(n: int, d: int) -> sp.csr_matrix:
    """Return rows (n, d) of length 1, of words of which few are frequent."""
    rng = np.random.default_rng(0)
    words = (d * rng.random((n, WORDS)) ** 4).astype(np.int32)
    X = sp.csr_matrix((np.ones(words.size, np.float32), words.ravel(), WORDS * np.arange(n + 1)), shape=(n, d))
    X.sum_duplicates()
    X.data[:] = 1
    return sp.csr_matrix(X.multiply(1 / np.sqrt(X.sum(axis=1)))).astype(np.float32)


SPARSE: dict[str, tuple[float, Callable[[], sp.csr_matrix]]] = {  # gamma, rows
    "a9a-like": (0.05, lambda: a9a_like(Path(), 32561, 1)[0].astype(np.float32)),
    "text-like": (1.0, lambda: text_like(*TEXT)),
}
SIZES = (16, 512)  # working rows over them


def layouts(asked: Asked) -> Iterator[dict[str, Any]]:
    """Measure K(X, U) of sparse rows, stored and as an update, in each layout; tell which one is chosen."""
    wrong, left_out, began = list[str](), list[str](), perf_counter()
    with Bench(asked.device) as bench:
        for name, (gamma, make) in SPARSE.items():
            X, rbf = make(), kernels.make("rbf", gamma=gamma)
            for W in SIZES:
                if perf_counter() - began > HALF * asked.seconds:
                    left_out.append(f"{W} working rows of {name}")
                    continue
                rows = _each_layout(bench, X, rbf, W, min(2.0, asked.seconds / 20))
                wrong += [f"{name}, {one['layout']}, W = {W}" for one in rows if one.get("right") is False]
                yield {"layouts": [{"set": name, **one} for one in rows]}
    ended(wrong, left_out)


def _each_layout(bench: Bench, X: sp.csr_matrix, rbf: kernels.Kernel, W: int, seconds: float) -> list[dict[str, Any]]:
    """Return a record of each layout and product of W working rows that there is an estimate of."""
    (n, d), made = X.shape, dict[str, Product]()
    records: dict[str, dict[str, Any]] = {}
    plan = laid.choose(bench.profile, X, rbf.spec, working=W)
    every = laid.choose(bench.profile, X, rbf.spec, plan.kind, W)  # (a choice estimates only what may be chosen)
    with ExitStack() as stack:
        for kind, cost in every.costs.items():
            head = {"n": n, "d": d, "entries": X.nnz / n, "layout": kind, "chosen": kind == plan.kind, "W": W}
            try:
                rows = Laid.by(stack.enter_context(Stream(bench.queue)), X, rbf, kind, W)
                for stored in (True, False):
                    made[f"{kind} {stored}"] = _first(Product(rows, _working(n, W), stored))
                    records[f"{kind} {stored}"] = {**head, "stored": stored, "estimate": cost}
            except (ClsvmError, ValueError) as error:  # what one layout lacks leaves the others worth trying
                records[kind] = {**head, "refused": f"{type(error).__name__}: {error}"[:500]}
        clock = Clock(seconds)
        clock.run(bench, {key: one.launch for key, one in made.items()})
        for key, one in made.items():
            records[key] |= _judged(one, clock.best[key], 2.0 * X.nnz * W)
    return list(records.values())


def reductions(asked: Asked) -> Iterator[dict[str, Any]]:
    """Measure finding the smallest and largest of n numbers and where they stand."""
    wrong, left_out, began = list[str](), list[str](), perf_counter()
    with Bench(asked.device) as bench:
        peaks, room = peaks_of(bench), min(bench.stream.largest, bench.stream.limit // 8) // 4
        for n in (n for n in REDUCED if n <= room):
            if perf_counter() - began > HALF * asked.seconds:
                left_out.append(f"{n} numbers")
                continue
            rows, _ = reduce(bench, (n,), peaks, min(2.0, asked.seconds / 20))
            wrong += [f"{row['name']} of {n}" for row in rows if not row["right"]]
            yield {"reductions": rows}
    ended(wrong, left_out)


def subproblem(asked: Asked) -> Iterator[dict[str, Any]]:
    """Measure an inner step and each part of a working set, by its size, in fits that wait after each part."""
    with waiting():
        for W in SUBPROBLEMS:
            row = inner_steps(asked.device, 16 * max(SUBPROBLEMS), W, max(1.0, asked.seconds / 20))
            yield {"subproblems": [row]}
