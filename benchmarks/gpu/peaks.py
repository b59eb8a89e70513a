"""What the device can do at most: multiply-adds, reads, local memory, launches, copies.

Times are the best wall times of batches of launches in which everything takes its turn (ladder_device.Clock).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.plan import Asked
from benchmarks.ladder_device import Bench, Clock, Launch, Peaks

# isort: split
import pyopencl as cl  # (after clsvm.device, which prepares the loader)

READ = 1 << 29  # bytes that the read peak reads, where the device has them: more than caches hold
COPIED = 1 << 26  # bytes of a copy
LOOK = 1 << 22, 64  # bytes and multiply-adds of a chain in a first look at the peaks
LAUNCH = 0.02  # seconds that a launch takes at most, about, by that look
CHAIN = 1 << 15  # multiply-adds of a chain at most
# Rounds of a launch, by the shape of the device's kernels: a millisecond or more of work.
TRIAL = {"vector": 1 << 13, "group": 1 << 11}  # of multiply-adds
LOCAL = {"vector": 1 << 13, "group": 1 << 11}  # of reads from local memory


def calls(function: Callable[..., Any], *arguments: Any, **more: Any) -> Launch:
    """A launch that calls it and forgets the answer."""

    def launch() -> None:
        function(*arguments, **more)

    return launch


def speed(bench: Bench) -> float:
    """About how many GFLOP/s of float32 the device does: one shape of the arithmetic peak."""
    lanes, chains, steps = 16 if bench.vector else 4, 8, TRIAL[bench.profile.shape]
    items = bench.units * (8 if bench.vector else 2048)
    with bench.section() as part:
        first, out = part.stream.upload(np.full(256, 0.5, np.float32)), part.stream.buffer(4 * items)
        kernel = part.kernel("peaks", "fma_chains", LANES=lanes, CHAINS=chains)
        size = (items,), (1,) if bench.vector else (64,)
        clock = Clock(0.0)
        clock.run(part, {"fma": lambda: kernel(*size, steps, 0.999, 0.001, first, out)})
    return 2e-9 * items * steps * lanes * chains / clock.best["fma"]


def peaks_of(bench: Bench, exps: bool = False) -> Peaks:
    """The arithmetic and read peaks, and exponentials where asked for, to take turns with what is measured; as long as
    a first look allows."""
    nbytes, chain = LOOK
    with bench.section() as part:
        look, clock = Peaks(part, nbytes // 4, chain), Clock(0.0, rounds=1)
        clock.run(part, look.launches)
        rates = look.rates(clock)
    chain = max(chain, min(CHAIN, int(chain * LAUNCH / clock.best[rates["fma_shape"]])))
    readable = int(1e9 * rates["read_gbs"] * LAUNCH)
    nbytes = max(nbytes, min(READ, readable, bench.stream.largest, bench.stream.limit // 8))
    return Peaks(bench, nbytes // 4, chain, exps)


def peaks(asked: Asked) -> Iterator[dict[str, Any]]:
    """Multiply-adds, reads, local memory, launches, copies."""
    with Bench(asked.device) as bench:
        some = min(0.5, asked.seconds / 30)
        yield {"microseconds": _latencies(bench, some)}
        yield {"copies_gbs": _copies(bench, some)}
        yield {"local": _local(bench, some)}
        clock, most = Clock(min(8.0, asked.seconds / 4)), peaks_of(bench)
        clock.run(bench, most.launches)
        yield {"peaks": most.rates(clock)}


def _local(bench: Bench, seconds: float) -> dict[str, Any]:
    """GB/s of reads from local memory, over all compute units, and the shape that reached them."""
    group = 1 if bench.vector else min(256, bench.profile.group)
    groups, steps = (8 if bench.vector else 16) * bench.units, LOCAL[bench.profile.shape]
    work, launches = {}, {}
    with bench.section() as part:
        first, out = part.stream.upload(np.full(4096, 0.5, np.float32)), part.stream.buffer(4 * groups * group)
        for lanes in (8, 16) if bench.vector else (2, 4):
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
    """Microseconds of a launch among many, of a launch and the wait for it, of reading one number."""
    with bench.section() as part:
        stream = part.stream
        room, kernel = stream.zeros(64), part.kernel("idle", "idle")

        def launch() -> None:
            kernel((64,), (1,) if bench.vector else (64,), room)

        def wait() -> None:
            launch()
            stream.finish()

        launches: dict[str, Launch] = {
            "launch": launch,
            "launch and wait": wait,
            "read of a number": calls(stream.read, room, np.float32, 1),
        }
        clock = Clock(seconds)
        clock.run(part, launches)
    return {name: 1e6 * seconds for name, seconds in clock.best.items()}


def _copies(bench: Bench, seconds: float) -> dict[str, Any]:
    """GB/s of copies as clsvm makes them (from and to NumPy's memory), with pinned memory, and within the device."""
    nbytes = min(COPIED, bench.stream.largest, bench.stream.limit // 8)
    with bench.section() as part:
        stream, queue = part.stream, bench.queue
        here, there = stream.zeros(nbytes), stream.zeros(nbytes)
        numbers = np.ones(nbytes // 4, np.float32)
        launches: dict[str, Launch] = {
            "to the device": calls(stream.write, here, numbers),
            "from the device": calls(stream.read, here, np.float32, nbytes // 4),
            "within the device": calls(cl.enqueue_copy, queue, there, here, byte_count=nbytes),
        }
        rates: dict[str, Any] = {}
        try:
            memory = cl.Buffer(bench.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, nbytes)
            pinned, _ = cl.enqueue_map_buffer(queue, memory, cl.map_flags.WRITE, 0, numbers.shape, numbers.dtype)
            pinned[:] = 1
            launches["to the device, pinned"] = calls(cl.enqueue_copy, queue, here, pinned, is_blocking=True)
            launches["from the device, pinned"] = calls(cl.enqueue_copy, queue, pinned, here, is_blocking=True)
        except cl.Error as error:
            rates["pinned"] = f"{type(error).__name__}: {error}"
        clock = Clock(seconds)
        clock.run(part, launches)
    rates |= {name: 1e-9 * nbytes / seconds for name, seconds in clock.best.items()}
    return rates  # (within the device: bytes copied, each of which is read and written)
