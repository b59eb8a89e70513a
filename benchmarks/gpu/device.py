"""The properties and the peaks of a device, and the shares of the peaks that products over dense rows reach.

Times are the best wall times of interleaved batches of launches (bench.Clock), and the peaks are among them. The sizes
of products depend on the device's speed and memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import clsvm
from benchmarks.bench import TOLERANCE, TRIAL, Bench, Clock, Laid, Launch, Peaks, Product, peaks_of
from benchmarks.gpu.command import Asked, ended
from benchmarks.solvers import fields_of
from clsvm import kernels
from clsvm.errors import ClsvmError
from clsvm.gram import units as matrix_units
from clsvm.gram.products import Gram
from clsvm.gram.programs import Units
from clsvm.opencl import devices
from clsvm.opencl.profiles import shape_class
from clsvm.opencl.runtime import cl
from clsvm.opencl.stream import Stream


def limits(asked: Asked) -> Iterator[dict[str, Any]]:
    """Yield the list of devices, the properties and the profile of the measured device, and its memory limits."""
    yield {"devices": [asdict(info) for info in clsvm.devices()]}
    info = devices.find(asked.device)
    raw = [one for platform in cl.get_platforms() for one in platform.get_devices()][info.index]
    properties = {name.lower(): _property(raw, name.lower()) for name in dir(cl.device_info) if name.isupper()}
    there = {name: value for name, value in properties.items() if value is not None}
    yield {"device": str(info), "kind": info.kind, "properties": there}
    profile = devices.default_profile(info)
    yield {"profile": fields_of(profile, *(one.name for one in fields(profile)))}
    with Stream(asked.device) as stream:
        yield {"memory_limit": stream.limit, "largest_buffer": stream.largest, "unified": stream.unified}


def _property(raw: Any, name: str) -> Any:
    """Return a property of a device in a type of JSON, or None if the device lacks the property."""
    try:
        value = getattr(raw, name)
    except (cl.Error, AttributeError):
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)


COPIED = 1 << 26  # bytes of a copy


def peaks(asked: Asked) -> Iterator[dict[str, Any]]:
    """Measure launches, copies, local memory, multiply-adds and reads."""
    with Bench(asked.device) as bench:
        some = min(0.5, asked.seconds / 30)
        yield {"microseconds": _latencies(bench, some)}
        yield {"copies_gbs": _copies(bench, some)}
        yield {"local": _local(bench, some)}
        clock, most = Clock(min(8.0, asked.seconds / 4)), peaks_of(bench)
        clock.run(bench, most.launches)
        yield {"peaks": most.rates(clock)}


def _local(bench: Bench, seconds: float) -> dict[str, Any]:
    """Return GB/s of reads from local memory over all compute units, and the best shape."""
    group = 1 if bench.simd else min(256, bench.profile.group)
    groups, steps = (8 if bench.simd else 16) * bench.units, TRIAL[bench.profile.style]
    work, launches = {}, {}
    with bench.section() as part:
        first, out = part.stream.upload(np.full(4096, 0.5, np.float32)), part.stream.buffer(4 * groups * group)
        for lanes in (8, 16) if bench.simd else (2, 4):
            for chains in (4, 8):
                kernel = part.kernel("local_read", "local_read", LANES=lanes, CHAINS=chains, GROUP=group)
                name = f"{chains} chains of float{lanes}"
                work[name] = 4e-9 * groups * group * steps * lanes * chains
                launches[name] = partial(kernel, (groups * group,), (group,), steps, first, out)
        clock = Clock(seconds)
        clock.run(part, launches)
    rates = {name: work[name] / clock.best[name] for name in work}
    best = max(rates, key=lambda name: rates[name])
    return {"gbs": rates[best], "shape": best}


def _latencies(bench: Bench, seconds: float) -> dict[str, float]:
    """Return the microseconds of a launch, of a launch and the wait for it, and of reading one number."""
    with bench.section() as part:
        stream = part.stream
        room, kernel = stream.zeros(64), part.kernel("idle", "idle")

        def launch() -> None:
            kernel((64,), (1,) if bench.simd else (64,), room)

        def wait() -> None:
            launch()
            stream.finish()

        launches: dict[str, Launch] = {
            "launch": launch,
            "launch and wait": wait,
            "read of a number": partial(stream.read, room, np.float32, 1),
        }
        clock = Clock(seconds)
        clock.run(part, launches)
    return {name: 1e6 * seconds for name, seconds in clock.best.items()}


def _copies(bench: Bench, seconds: float) -> dict[str, Any]:
    """Return GB/s of copies from and to NumPy's memory, from and to pinned memory, and within the device."""
    nbytes = min(COPIED, bench.stream.largest, bench.stream.limit // 8)
    with bench.section() as part:
        stream, queue = part.stream, bench.queue
        here, there = stream.zeros(nbytes), stream.zeros(nbytes)
        numbers = np.ones(nbytes // 4, np.float32)
        launches: dict[str, Launch] = {
            "to the device": partial(stream.write, here, numbers),
            "from the device": partial(stream.read, here, np.float32, nbytes // 4),
            "within the device": partial(cl.enqueue_copy, queue, there, here, byte_count=nbytes),
        }
        rates: dict[str, Any] = {}
        try:
            memory = cl.Buffer(bench.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, nbytes)
            pinned, _ = cl.enqueue_map_buffer(queue, memory, cl.map_flags.WRITE, 0, numbers.shape, numbers.dtype)
            pinned[:] = 1
            launches["to the device, pinned"] = partial(cl.enqueue_copy, queue, here, pinned, is_blocking=True)
            launches["from the device, pinned"] = partial(cl.enqueue_copy, queue, pinned, here, is_blocking=True)
        except cl.Error as error:
            rates["pinned"] = f"{type(error).__name__}: {error}"
        clock = Clock(seconds)
        clock.run(part, launches)
    rates |= {name: 1e-9 * nbytes / seconds for name, seconds in clock.best.items()}
    return rates  # each byte counts once, although a copy within the device reads and writes it


# Products.

WORKING = {"few": (2, 16), "many": (512, 1024)}  # right-hand rows of products that memory or arithmetic bounds
LONG = {"simd": 1 << 27, "workgroup": 1 << 28}  # bytes of X for few right-hand rows, more than caches hold
STORED = 1 << 30  # bytes of stored K at most
LAUNCH = 0.005  # share of the time limit for a launch at most, by a trial with LEAST_ROWS
LEAST_ROWS = 1024
HALF = 0.55  # share of the time limit, after which no measurement begins
Made = dict[str, tuple[Product, dict[str, Any]]]


def products(asked: Asked, d: int) -> Iterator[dict[str, Any]]:
    """Measure products with few and many right-hand rows, stored and as an update, over dense rows of d features."""
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
    """Return the records of products with dense rows X (n, d), interleaved with the peaks."""
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
    """Return the products by name with their records, and records of the products that the device refuses.

    Products with many right-hand rows are measured with each tile of the profile, and on matrix units (tensor cores).
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
            units = matrix_units.find_units(own).units if name == "wide" else None
            every: list[Units | None] = [None, units] if units else [None]
            for one in every:
                words = {"UNITS": one.name} if one else dict(profile.tiles[name])
                row = {"W": W, "d": d, "n": n, "stored": stored, "tile": words, "usual": one is None}
                try:
                    gram = Gram(own, whole.rows, rbf)
                    gram.use(one)
                    ready = Product(whole, _working(n, W), stored, gram=gram)
                    ready.launch()  # builds its program
                    ready.stream.finish()
                    made[f"W = {W}, {stored}, {words}"] = ready, row
                except (ClsvmError, ValueError) as error:  # for example too many registers; the others still count
                    refused.append(row | {"refused": f"{type(error).__name__}: {error}"[:500]})
    return made, refused


def _rows(bench: Bench, bound: str, d: int, seconds: float) -> int:
    """Return the number of rows of X that memory allows and a launch computes in its share of the time limit."""
    W, room = max(WORKING[bound]), min(bench.stream.largest, bench.stream.limit // 8)
    most = min(LONG[bench.profile.style] // (4 * d) if bound == "few" else STORED // (4 * max(W, d)), room // (4 * d))
    with bench.section() as part:
        clock, laid = Clock(0.0, rounds=1, batch=0.0), Laid(part.stream, _data(LEAST_ROWS, d), _kernel(d))
        clock.run(part, {"few": Product(laid, _working(LEAST_ROWS, W)).launch})
    return max(LEAST_ROWS, min(most, int(LEAST_ROWS * LAUNCH * seconds / clock.best["few"])))


def _data(n: int, d: int) -> NDArray[np.float32]:
    return np.random.default_rng(d).random((n, d), np.float32)


def _kernel(d: int) -> kernels.Kernel:
    """Return a kernel function whose values on rows of :func:`_data` are about exp(-1)."""
    return kernels.make("rbf", gamma=6.0 / d)


def _working(n: int, W: int) -> NDArray[np.int32]:
    return np.random.default_rng(W).integers(0, n, W).astype(np.int32)
