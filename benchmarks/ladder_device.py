"""What every part of the ladder stands on: a stream whose queue is known, a clock, and the device's two peaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clsvm.opencl import sources
from clsvm.opencl.devices import find
from clsvm.opencl.stream import Stream

# isort: split
import pyopencl as cl  # (after clsvm.device, which prepares the loader)

Launch = Callable[[], None]
"""Enqueues one evaluation and does not wait for it."""

READ_SHAPES = ((16, 8, 1), (16, 8, 4), (16, 16, 4), (8, 8, 1), (8, 8, 4), (4, 8, 1))  # LANES, CHAINS, STREAMS
FMA_SHAPES = ((16, 8), (16, 10), (16, 12), (16, 16), (8, 12), (8, 16), (4, 8), (4, 16))  # LANES, CHAINS
EXP_SHAPES = ((16, 1), (16, 2), (16, 4), (8, 4), (4, 4))  # LANES, CHAINS
EXP = 16  # multiply-adds that an exponential takes, about


class Bench:
    """A device as the ladder uses it: the stream for buffers and kernels, device, context and queue for images."""

    def __init__(self, spec: Any = None) -> None:
        info = find(spec)
        self.device = [one for platform in cl.get_platforms() for one in platform.get_devices()][info.index]
        self.context = cl.Context([self.device])
        self.queue = cl.CommandQueue(self.context)
        self.stream = Stream(self.queue)
        self.profile = self.stream.profile
        self.vector = self.profile.shape == "vector"
        wide = int(self.device.native_vector_width_float)
        self.lanes = min(16, max(4, wide)) if self.vector else 4  # rows or numbers of a work-item's vector
        self.units = int(self.device.max_compute_units)

    def section(self) -> Bench:
        """The same device with a stream of its own, whose buffers go when the section ends (a context manager)."""
        part = copy(self)
        part.stream = Stream(self.queue)
        return part

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.__exit__(*error)

    def kernel(self, name: str, function: str, **numbers: int | None) -> Any:
        """``function`` of benchmarks/cl_kernels/<name>.cl with macros (None: defined without a value)."""
        options = [f"-D{key}" if value is None else f"-D{key}={value}" for key, value in numbers.items()]
        options += ["-DWIDE_PAIR"] * (self.profile.wide == "pair")
        text = f"{sources.cl()}\n{(TEXTS / f'{name}.cl').read_text('utf-8')}"
        return self.stream.kernel(text, options, function)


TEXTS = Path(__file__).parent / "cl_kernels"


@dataclass
class Clock:
    """The best wall time of each of several launches, taken in turn so that noise and clock rates meet all alike.

    One reading is a batch of launches and the wait for the last one; a batch lasts at least ``batch`` seconds. Rounds
    go on until ``seconds`` have passed, and there are at least ``rounds`` of them.
    """

    seconds: float
    rounds: int = 3
    batch: float = 0.004
    best: dict[str, float] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def run(self, bench: Bench, launches: Mapping[str, Launch]) -> None:
        for name, launch in launches.items():
            launch()  # what a first launch pays for (first touch, lazy compilation) is nobody's time
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
    """Float32 multiply-adds and reads a second, each the best over a few shapes of kernels that do nothing else."""

    def __init__(self, bench: Bench, numbers: int, steps: int, exps: bool = False) -> None:
        """``numbers`` float32 are read, in a buffer of their own; ``steps`` multiply-adds make a chain. exps: whether
        the exponential function is measured as well."""
        self._work: dict[str, float] = {}  # flops or bytes of a launch
        self.launches: dict[str, Launch] = {}
        stream, vector = bench.stream, bench.vector
        first = stream.upload(np.linspace(0.1, 0.9, 256, dtype=np.float32))
        out = stream.buffer(4 * max(bench.units * 2048, 4096))
        local = (1,) if vector else (64,)
        for lanes, chains in FMA_SHAPES:
            items = bench.units * (8 if vector else 2048)
            kernel = bench.kernel("peaks", "fma_chains", LANES=lanes, CHAINS=chains)
            self._add(f"fma: {chains} chains of float{lanes}", 2.0 * items * steps * lanes * chains, kernel,
                      (items,), local, steps, 0.999, 0.001, first, out)  # fmt: skip
        for lanes, chains in EXP_SHAPES if exps else ():
            items, some = bench.units * (8 if vector else 2048), max(1, steps // EXP)
            kernel = bench.kernel("peaks", "exp_chains", LANES=lanes, CHAINS=chains)
            self._add(f"exp: {chains} chains of float{lanes}", float(items) * some * lanes * chains, kernel,
                      (items,), local, some, -0.999, first, out)  # fmt: skip
        numbers = max(numbers // 65536, 1) * 65536
        x = stream.buffer(4 * numbers)
        stream.clear(x, 4 * numbers)
        for lanes, chains, streams in READ_SHAPES:
            pieces: dict[str, int | None] = {"PIECES": None} if vector else {}
            kernel = bench.kernel("peaks", "read_sum", LANES=lanes, CHAINS=chains, STREAMS=streams, **pieces)
            for items in (16, 128) if vector else (4096, 2048 * bench.units):
                count = numbers // (lanes * items) // (chains * streams) * (chains * streams)
                if count:
                    self._add(f"read: {streams} x {chains // streams} float{lanes} of {items} items",
                              4.0 * items * count * lanes, kernel, (items,), local, count, x, out)  # fmt: skip

    def _add(self, name: str, work: float, kernel: Any, *arguments: Any) -> None:
        self._work[name] = work
        self.launches[name] = lambda: kernel(*arguments)

    def rates(self, clock: Clock) -> dict[str, Any]:
        """fma_gflops and read_gbs, exp_gs where exponentials are measured (10^9 a second), and the shapes that reached
        them."""
        rates = {name: work / clock.best[name] / 1e9 for name, work in self._work.items()}
        found: dict[str, Any] = {}
        for kind, unit in (("fma", "gflops"), ("read", "gbs"), ("exp", "gs")):
            if mine := [name for name in rates if name.startswith(kind)]:
                best = max(mine, key=lambda name: rates[name])
                found |= {f"{kind}_{unit}": rates[best], f"{kind}_shape": best}
        return found
