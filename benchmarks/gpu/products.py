"""What of its peaks the device reaches in products over dense rows.

Shares are of the peaks that took turns with what is measured. Sizes go with the device's arithmetic and its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import TOLERANCE, Bench, Clock, Laid, Peaks, Product, peaks_of
from benchmarks.gpu.command import Asked, ended
from clsvm import kernels
from clsvm.errors import ClsvmError
from clsvm.gram import units as matrix_units
from clsvm.gram.products import Gram
from clsvm.gram.programs import Units
from clsvm.opencl.profiles import shape_class
from clsvm.opencl.stream import Stream

WORKING = {"few": (2, 16), "many": (512, 1024)}  # working vectors, by what bounds their products
LONG = {"vector": 1 << 27, "group": 1 << 28}  # bytes of X where they are few: more than caches hold
STORED = 1 << 30  # bytes of K that are stored at most
LAUNCH = 0.005  # of the limit: what a launch takes at most, about, by a trial with LEAST_ROWS
LEAST_ROWS = 1024
HALF = 0.55  # of the limit: when nothing more is begun
Made = dict[str, tuple[Product, dict[str, Any]]]


def products(asked: Asked, d: int) -> Iterator[dict[str, Any]]:
    """Measure few and many working rows, stored and as an update, over dense rows of d features."""
    wrong, left_out, began = list[str](), list[str](), perf_counter()
    with Bench(asked.device) as bench:
        peaks = peaks_of(bench)
        for bound in WORKING:
            if perf_counter() - began > HALF * asked.seconds:
                left_out.append(f"{bound} working rows")
                continue
            n = _rows(bench, bound, d, asked.seconds)
            part = _measured(bench, peaks, _data(n, d), WORKING[bound], min(4.0, asked.seconds / 8))
            wrong += [f"W = {row['W']}, d = {d}" for row in part["products"] if row.get("right") is False]
            yield part
    ended(wrong, left_out)


def _measured(
    bench: Bench, peaks: Peaks, X: NDArray[np.float32], sizes: tuple[int, ...], seconds: float
) -> dict[str, Any]:
    """Return what is found of products with dense rows X (n, d), in turns with the peaks."""
    n, d = X.shape
    with ExitStack() as stack:
        made, refused = _prepared(bench, stack, X, sizes)
        clock = Clock(seconds)
        clock.run(bench, peaks.launches | {name: one.launch for name, (one, _) in made.items()})
        rates = peaks.rates(clock)
        for name, (one, row) in made.items():
            spent, error = clock.best[name], one.error()
            written = 4.0 * n * one.W if one.stored else 16.0 * n  # X is read once
            row |= {"seconds": spent, "gflops": 2e-9 * n * one.W * d / spent, "error": error}
            row |= {"right": error <= TOLERANCE, "gbs": 1e-9 * (4.0 * n * d + written) / spent}
            row["of_arithmetic"] = row["gflops"] / rates["fma_gflops"]
            row["of_bandwidth"] = row["gbs"] / rates["read_gbs"]
    return {"products": [row for _, row in made.values()] + refused, "peaks": [{"n": n, **rates}]}


def _prepared(
    bench: Bench, stack: ExitStack, X: NDArray[np.float32], sizes: tuple[int, ...]
) -> tuple[Made, list[dict[str, Any]]]:
    """Return products by name with their records, and records of those that the device refuses.

    Of many working rows each tile that the profile has for these is measured, and the device's matrix units, if any.
    """
    n, d = X.shape
    rbf, profile = _kernel(d), bench.profile
    stream = stack.enter_context(Stream(bench.queue))
    whole = Laid(stream, X, rbf)
    made, refused = Made(), list[dict[str, Any]]()
    for W, stored in product(sizes, (True, False)):
        shape = shape_class(W)
        for name in [one for one in ("wide", "many") if one in profile.tiles] if shape == "many" else [shape]:
            tiles = {key: tile for key, tile in profile.tiles.items() if (name, key) != ("many", "wide")}
            own = stack.enter_context(Stream(bench.queue, profile=replace(profile, tiles=tiles)))
            units = matrix_units.found(own).units if name == "wide" else None
            every: list[Units | None] = [None, units] if units else [None]
            for one in every:
                words = {"UNITS": one.name} if one else dict(profile.tiles[name])
                row = {"W": W, "d": d, "n": n, "stored": stored, "tile": words, "usual": one is None}
                try:
                    gram = Gram(own, whole.rows, rbf)
                    gram.use(one)
                    ready = Product(whole.over(gram), _working(n, W), stored)
                    ready.launch()  # builds its program
                    ready.stream.finish()
                    made[f"W = {W}, {stored}, {words}"] = ready, row
                except (ClsvmError, ValueError) as error:  # too many registers, say: the others still count
                    refused.append(row | {"refused": f"{type(error).__name__}: {error}"[:500]})
    return made, refused


def _rows(bench: Bench, bound: str, d: int, seconds: float) -> int:
    """Return the rows of X: what memory allows, or what a launch gets through in its share of the limit."""
    W, room = max(WORKING[bound]), min(bench.stream.largest, bench.stream.limit // 8)
    most = min(LONG[bench.profile.shape] // (4 * d) if bound == "few" else STORED // (4 * max(W, d)), room // (4 * d))
    with bench.section() as part:
        clock, laid = Clock(0.0, rounds=1, batch=0.0), Laid(part.stream, _data(LEAST_ROWS, d), _kernel(d))
        clock.run(part, {"few": Product(laid, _working(LEAST_ROWS, W)).launch})
    return max(LEAST_ROWS, min(most, int(LEAST_ROWS * LAUNCH * seconds / clock.best["few"])))


def _data(n: int, d: int) -> NDArray[np.float32]:
    return np.random.default_rng(d).random((n, d), np.float32)


def _kernel(d: int) -> kernels.Kernel:
    """Return a kernel function whose values over such rows are about exp(-1)."""
    return kernels.make("rbf", gamma=6.0 / d)


def _working(n: int, W: int) -> NDArray[np.int32]:
    return np.random.default_rng(W).integers(0, n, W).astype(np.int32)
