"""A device for benchmarks of kernels: its queue, a clock, its peaks, and products over rows on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.solvers import dense
from clsvm.gram import layouts
from clsvm.gram.products import Gram, Store, Update
from clsvm.kernels import Kernel
from clsvm.opencl import sources
from clsvm.opencl.devices import find
from clsvm.opencl.stream import Buffer, Stream

# isort: split
import pyopencl as cl  # (after clsvm.opencl, which prepares the loader)

Launch = Callable[[], Any]
"""Enqueues one evaluation and does not wait for it."""
TEXTS = Path(__file__).parent / "cl_kernels"
TOLERANCE = 1e-4  # the error of a kernel value in float32

READ_SHAPES = ((16, 8, 1), (16, 8, 4), (16, 16, 4), (8, 8, 1), (8, 8, 4), (4, 8, 1))  # LANES, CHAINS, STREAMS
FMA_SHAPES = ((16, 8), (16, 10), (16, 12), (16, 16), (8, 12), (8, 16), (4, 8), (4, 16))  # LANES, CHAINS
READ = 1 << 29  # bytes of the read peak at most, more than caches hold
TRIAL_SIZES = 1 << 22, 64  # bytes, and multiply-adds of a chain, of the trial that estimates the peaks
LAUNCH = 0.02  # seconds of a launch at most, by the trial
CHAIN = 1 << 15  # multiply-adds of a chain at most
TRIAL = {"simd": 1 << 13, "workgroup": 1 << 11}  # rounds of a trial launch, by kernel style


class Bench:
    """A device with its context and queue, and a stream for buffers and kernels."""

    def __init__(self, spec: Any = None) -> None:
        info = find(spec)
        self.device = [one for platform in cl.get_platforms() for one in platform.get_devices()][info.index]
        self.context = cl.Context([self.device])
        self.queue = cl.CommandQueue(self.context)
        self.stream = Stream(self.queue)
        self.profile = self.stream.profile
        self.simd = self.profile.style == "simd"
        wide = int(self.device.native_vector_width_float)
        self.lanes = min(16, max(4, wide)) if self.simd else 4  # the length of a work-item's vector
        self.units = int(self.device.max_compute_units)

    def section(self) -> Bench:
        """Return a copy with another stream, whose buffers are freed at the end of the ``with`` block."""
        part = copy(self)
        part.stream = Stream(self.queue)
        return part

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.__exit__(*error)

    def kernel(self, name: str, function: str, **numbers: int | None) -> Any:
        """Return ``function`` of benchmarks/cl_kernels/<name>.cl with macros, whose value may be None."""
        options = [f"-D{key}" if value is None else f"-D{key}={value}" for key, value in numbers.items()]
        options += ["-DWIDE_PAIR"] * (self.profile.wide == "pair")
        text = f"{sources.cl()}\n{(TEXTS / f'{name}.cl').read_text('utf-8')}"
        return self.stream.kernel(text, options, function)


@dataclass
class Clock:
    """The best wall time of each of several interleaved launches.

    A batch repeats a launch for at least ``batch`` seconds and waits for the last one. Each round has a batch of each
    launch. Rounds go on for ``seconds``, and there are at least ``rounds``.
    """

    seconds: float
    rounds: int = 3
    batch: float = 0.004
    best: dict[str, float] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def run(self, bench: Bench, launches: Mapping[str, Launch]) -> None:
        for name, launch in launches.items():
            launch()  # the first launch also compiles and touches memory, so it is not timed
            bench.stream.finish()
            first = self._read(bench, launch, 1)
            self._counts[name] = max(1, int(self.batch / first))
            self.best[name] = min(first, self.best.get(name, first))
        start, done = time.perf_counter(), 0
        while done < self.rounds or time.perf_counter() - start < self.seconds:
            for name, launch in launches.items():
                self.best[name] = min(self.best[name], self._read(bench, launch, self._counts[name]))
            done += 1

    @staticmethod
    def _read(bench: Bench, launch: Launch, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            launch()
        bench.stream.finish()
        return (time.perf_counter() - start) / count


class Peaks:
    """Float32 multiply-adds and reads a second, the best over several shapes of kernels.

    numbers: how many float32 numbers a launch reads. steps: multiply-adds of a chain.
    """

    def __init__(self, bench: Bench, numbers: int, steps: int) -> None:
        self._work: dict[str, float] = {}  # flops or bytes of a launch
        self.launches: dict[str, Launch] = {}
        stream, simd = bench.stream, bench.simd
        first = stream.upload(np.linspace(0.1, 0.9, 256, dtype=np.float32))
        out = stream.buffer(4 * max(bench.units * 2048, 4096))
        items, local = bench.units * (8 if simd else 2048), (1,) if simd else (64,)
        for lanes, chains in FMA_SHAPES:
            kernel = bench.kernel("peaks", "fma_chains", LANES=lanes, CHAINS=chains)
            work = 2.0 * items * steps * lanes * chains
            self._add(
                f"fma: {chains} chains of float{lanes}", work, kernel, (items,), local, steps, 0.999, 0.001, first, out
            )
        numbers = max(numbers // 65536, 1) * 65536
        x = stream.buffer(4 * numbers)
        stream.clear(x, 4 * numbers)
        for lanes, chains, streams in READ_SHAPES:
            pieces: dict[str, int | None] = {"PIECES": None} if simd else {}
            kernel = bench.kernel("peaks", "read_sum", LANES=lanes, CHAINS=chains, STREAMS=streams, **pieces)
            for items in (16, 128) if simd else (4096, 2048 * bench.units):
                if count := numbers // (lanes * items) // (chains * streams) * (chains * streams):
                    name = f"read: {streams} x {chains // streams} float{lanes} of {items} items"
                    self._add(name, 4.0 * items * count * lanes, kernel, (items,), local, count, x, out)

    def _add(self, name: str, work: float, kernel: Any, *arguments: Any) -> None:
        self._work[name] = work
        self.launches[name] = lambda: kernel(*arguments)

    def rates(self, clock: Clock) -> dict[str, Any]:
        """Return fma_gflops and read_gbs, in 10^9 a second, and the shapes that reached them."""
        rates = {name: work / clock.best[name] / 1e9 for name, work in self._work.items()}
        found: dict[str, Any] = {}
        for kind, unit in (("fma", "gflops"), ("read", "gbs")):
            best = max((name for name in rates if name.startswith(kind)), key=lambda name: rates[name])
            found |= {f"{kind}_{unit}": rates[best], f"{kind}_shape": best}
        return found


def speed(bench: Bench) -> float:
    """Estimate the device's GFLOP/s in float32 by one shape of the arithmetic peak."""
    lanes, chains, steps = 16 if bench.simd else 4, 8, TRIAL[bench.profile.style]
    items = bench.units * (8 if bench.simd else 2048)
    with bench.section() as part:
        first, out = part.stream.upload(np.full(256, 0.5, np.float32)), part.stream.buffer(4 * items)
        kernel = part.kernel("peaks", "fma_chains", LANES=lanes, CHAINS=chains)
        size = (items,), (1,) if bench.simd else (64,)
        clock = Clock(0.0)
        clock.run(part, {"fma": lambda: kernel(*size, steps, 0.999, 0.001, first, out)})
    return 2e-9 * items * steps * lanes * chains / clock.best["fma"]


def peaks_of(bench: Bench) -> Peaks:
    """Return peaks whose launches take at most about LAUNCH seconds."""
    nbytes, chain = TRIAL_SIZES
    with bench.section() as part:
        first, clock = Peaks(part, nbytes // 4, chain), Clock(0.0, rounds=1)
        clock.run(part, first.launches)
        rates = first.rates(clock)
    chain = max(chain, min(CHAIN, int(chain * LAUNCH / clock.best[rates["fma_shape"]])))
    readable = int(1e9 * rates["read_gbs"] * LAUNCH)
    nbytes = max(nbytes, min(READ, readable, bench.stream.largest, bench.stream.limit // 8))
    return Peaks(bench, nbytes // 4, chain)


class Laid:
    """Rows X on the device in a layout, in a fit's choice if kind is "auto". nbytes: the bytes of the rows."""

    def __init__(
        self, stream: Stream, X: Any, kernel: Kernel, kind: str = "dense", working: int | str = "auto"
    ) -> None:
        held, plan = stream.allocated, layouts.choose(stream.profile, X, kernel.spec, kind, working, all_rows=True)
        self.X, self.rows = X, layouts.build(stream, X, plan, "float32")
        stream.finish()
        self.nbytes = stream.allocated - held
        self.gram = Gram(stream, self.rows, kernel)


class Product:
    """K(X, U) for the rows ``chosen`` of X as U, stored in ``out``, or summed as c += K D.

    gram: the object that computes the product, by default the one of ``laid``. nbytes: the bytes of the rows, the
    right-hand rows and K, each counted once.
    """

    def __init__(
        self, laid: Laid, chosen: NDArray[Any], stored: bool = True, out: Buffer | None = None, gram: Gram | None = None
    ) -> None:
        gram = gram or laid.gram
        self.laid, self.chosen, self.stored, rows = laid, chosen, stored, laid.rows
        self.stream, self.W, self.gram = gram.stream, len(chosen), gram
        self.panel = gram.panel(self.W)
        self.count = self.stream.upload(np.array([self.W], np.int32))
        at = np.full(self.panel.capacity, -1, np.int32)
        at[: self.W] = rows.position[chosen]
        self.at = self.stream.upload(at)
        self.gather()
        written = self.values_bytes(laid, self.W) if stored else 8 * rows.n_pad
        self.out = self.stream.zeros(written) if out is None else out
        self._given: tuple[Store | None, Update | None] = (
            Store((self.out,), self.W, rows.n_pad, gram.slot(self.panel.capacity)), None
        )  # fmt: skip
        if not stored:
            weights = self.stream.wide(np.full((1, self.panel.capacity), 1.0 / self.W))
            self._given = None, Update(1, rows.n_pad, self.out, weights, self.panel.capacity)
        self._written = written
        blocks = self.panel.capacity // self.panel.width if self.panel.rows_stay else 1  # a panel of CSR has one block
        self.nbytes = laid.nbytes + blocks * self.panel.nbytes + written

    @staticmethod
    def values_bytes(laid: Laid, W: int) -> int:
        """Return the bytes of K(X, U) for W right-hand rows."""
        return 4 * W * int(laid.rows.n_pad)

    def gather(self) -> None:
        """Gather the right-hand rows."""
        self.gram.gather(self.panel, self.at, self.count)

    def launch(self) -> None:
        """Enqueue the product."""
        self.gram.accumulate(self.panel, self.count, *self._given)

    def clear(self) -> None:
        """Set the output to zero."""
        self.stream.clear(self.out, self._written)

    def error(self) -> float:
        """Return the largest error of a fresh launch, on a sample of the rows and the right-hand rows."""
        self.clear()
        self.launch()
        n, n_pad = self.laid.rows.n, self.laid.rows.n_pad
        sample, ends = some_of(n, 64), some_of(self.W, 8 if self.stored else self.W)
        at = self.laid.rows.position[sample]
        K = exact(self.laid.X, sample, self.chosen[ends], float(self.gram.kernel.params["gamma"]))
        if not self.stored:
            return apart(self.stream.read_wide(self.out, n_pad)[at], K.mean(axis=0))
        rows = [self.stream.read(self.out, np.float32, n_pad, 4 * w * n_pad)[at] for w in ends.tolist()]
        return apart(np.stack(rows), K)

    def free(self) -> None:
        """Free the buffers except for the rows and the output."""
        self.stream.free(*self.panel.buffers(), self.count, self.at)


def some_of(n: int, most: int) -> NDArray[np.int64]:
    """Return up to ``most`` evenly spaced indices below n, with 0 and n - 1."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def exact(X: Any, rows: NDArray[Any], working: NDArray[Any], gamma: float) -> NDArray[np.float64]:
    """Return K (len(working), len(rows)) of rows of X in float64."""
    x, u = (np.asarray(dense(X[some]), np.float64) for some in (rows, working))
    return np.exp(-gamma * np.stack([np.square(x - row).sum(axis=1) for row in u]))


def apart(got: NDArray[Any], K: NDArray[np.float64]) -> float:
    """Return the largest difference of two arrays, or infinity if the first has a NaN."""
    return float(np.nan_to_num(np.abs(got - K), nan=np.inf).max())
