"""The rungs: kernel rows K[w, i] = exp(-gamma |x_i - u_w|^2) the same way over and over, each time a little better.

Letters: n rows, d features, W working rows u_w = x_rows[w]; ld >= n: columns of X and rows of K begin ld floats apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.ladder_device import Bench
from clsvm import kernels
from clsvm.gram import layouts
from clsvm.gram.products import Gram, Store

# isort: split
import pyopencl as cl  # (after clsvm.device, which prepares the loader)

Rows = Callable[[int], None]
"""Enqueues K of the first m rows (0 < m <= n) against all working rows."""
STAGED = 256  # features of a working row in local memory at a time
PIXELS = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT)


class Matrix:
    """X (n, d) float32, uniform in [0, 1), on the device in the layouts that rungs ask for, each made once."""

    def __init__(self, bench: Bench, n: int, d: int) -> None:
        self.bench, self.n, self.d = bench, n, d
        self.X = np.random.default_rng(n + d).random((n, d), np.float32)
        # Cache lines, and an odd number of two of them: columns a multiple of 4 KB apart would share their cache sets.
        self.ld = (-(-n // 32) | 1) * 32
        self.gamma = 6.0 / d  # kernel values of about exp(-1)

    @cached_property
    def rows(self) -> Any:
        return self.bench.stream.upload(self.X)

    @cached_property
    def columns(self) -> Any:
        turned = np.zeros((self.d, self.ld), np.float32)
        turned[:, : self.n] = self.X.T
        return self.bench.stream.upload(turned)

    @cached_property
    def gram(self) -> Gram:
        """clsvm's own product over the dense layout of the same rows."""
        stream, rbf = self.bench.stream, kernels.make("rbf", gamma=self.gamma)
        plan = layouts.choose(stream.profile, self.X, rbf.spec, "dense")
        return Gram(stream, layouts.build(stream, self.X, plan, "float32"), rbf)


class Problem:
    """W working rows of a matrix, and room for their kernel rows."""

    def __init__(self, matrix: Matrix, W: int) -> None:
        self.matrix, self.W, self.bench = matrix, W, matrix.bench
        self.block = 2 if W <= 2 else 8  # working rows that share a pass over X in the rungs written here
        self.working = np.random.default_rng(W).integers(0, matrix.n, W).astype(np.int32)
        self.at = self.bench.stream.upload(self.working)
        self._nbytes = 4 * W * matrix.ld
        self.K = self.bench.stream.buffer(self._nbytes)

    def clear(self) -> None:
        """Kernel values are positive, so what a rung does not write will not pass for right."""
        self.bench.stream.clear(self.K, self._nbytes)

    def read(self, sample: NDArray[np.int64]) -> NDArray[np.float32]:
        """K[:, sample] from the device, (W, len(sample))."""
        K = self.bench.stream.read(self.K, np.float32, (self.W, self.matrix.ld))
        return np.ascontiguousarray(K[:, sample])

    def error(self, read: Callable[[NDArray[np.int64]], NDArray[np.float32]], m: int) -> float:
        """The largest difference of K from float64 on up to 64 of the first m rows, both ends among them."""
        sample = np.unique(np.linspace(0, m - 1, min(m, 64)).astype(np.int64))
        x = self.matrix.X[sample].astype(np.float64)
        u = self.matrix.X[self.working].astype(np.float64)
        distances = np.stack([np.square(x - row).sum(axis=1) for row in u])
        difference = np.abs(read(sample) - np.exp(-self.matrix.gamma * distances))
        return float(np.nan_to_num(difference, nan=np.inf).max())


@dataclass(frozen=True)
class Prepared:
    """A rung ready to run on a problem.

    clear and read: of what it stores; partial: whether it can do fewer rows than all.
    """

    launch: Rows
    clear: Callable[[], None]
    read: Callable[[NDArray[np.int64]], NDArray[np.float32]]
    partial: bool = True


@dataclass(frozen=True)
class Rung:
    """One way to compute kernel rows; a new one is one more record.

    lacks: why the problem's device cannot run it, or the empty string.
    """

    name: str
    what: str
    prepare: Callable[[Problem], Prepared]
    lacks: Callable[[Problem], str] = lambda problem: ""


def _range(items: int, group: int) -> tuple[tuple[int], tuple[int]]:
    return (-(-items // group) * group,), (group,)


def _scalar(name: str, stored: str, p: Problem) -> Prepared:
    """A work-item a row; X stored by "rows" or "columns"."""
    m, group = p.matrix, 64 if p.bench.vector else p.bench.profile.group
    kernel, X = p.bench.kernel(name, name, U=p.block), getattr(m, stored)
    head, tail = (m.d, p.W, p.at, m.gamma, m.ld), (X, p.K)
    return Prepared(lambda rows: kernel(*_range(rows, group), rows, *head, *tail), p.clear, p.read)


def _vectorised(p: Problem) -> Prepared:
    m, lanes, group = p.matrix, p.bench.lanes, 1 if p.bench.vector else p.bench.profile.group
    kernel = p.bench.kernel("vectorised", "vectorised", U=p.block, LANES=lanes)
    tail = (m.d, p.W, p.at, m.gamma, m.ld, m.columns, p.K)
    return Prepared(lambda rows: kernel(*_range(-(-rows // lanes), group), rows, *tail), p.clear, p.read)


def _local_memory(p: Problem) -> Prepared:
    m, lanes, group = p.matrix, p.bench.lanes, _group(p)
    kernel = p.bench.kernel("local_memory", "local_memory", U=p.block, LANES=lanes, GROUP=group, DEPTH=STAGED)
    tail = (m.d, p.W, p.at, m.gamma, m.ld, m.columns, p.K)
    return Prepared(lambda rows: kernel(*_range(-(-rows // lanes), group), rows, *tail), p.clear, p.read)


def _group(p: Problem) -> int:
    return 16 if p.bench.vector else min(128, p.bench.profile.group)


def _lacks_local(p: Problem) -> str:
    need, there = 4 * STAGED * p.block, int(p.bench.device.local_mem_size)
    return f"{need} bytes of local memory needed, {there} there" if need > there else ""


def _image_size(p: Problem) -> tuple[int, int]:
    """Width in pixels of 4 floats, and lines of a working row: as few as the device's widest image allows."""
    pixels = -(-p.matrix.d // 4)
    lines = -(-pixels // int(p.bench.device.image2d_max_width))
    return -(-pixels // lines), lines


def _lacks_images(p: Problem) -> str:
    if not p.bench.device.image_support:
        return "the device has no images"
    kind = cl.mem_object_type.IMAGE2D
    if PIXELS not in cl.get_supported_image_formats(p.bench.context, cl.mem_flags.READ_WRITE, kind):
        return "the device has no images of RGBA floats"
    _width, lines = _image_size(p)
    highest = int(p.bench.device.image2d_max_height)
    return f"{lines * p.W} lines of pixels needed, images have at most {highest}" if lines * p.W > highest else ""


def _images(copy: str, p: Problem) -> Prepared:
    """copy: "" measures a filled image; "kernel" fills it before each launch, "api" by clEnqueueCopyBufferToImage."""
    bench, m, lanes = p.bench, p.matrix, p.bench.lanes
    group = 1 if bench.vector else bench.profile.group
    width, lines = _image_size(p)
    image = cl.create_image(bench.context, cl.mem_flags.READ_WRITE, PIXELS, shape=(width, lines * p.W))
    numbers = {"U": p.block, "LANES": lanes}
    compute = bench.kernel("images", "images", **numbers)
    into_image = bench.kernel("images", "copy_to_image", **numbers)
    into_buffer = bench.kernel("images", "copy_to_buffer", **numbers)
    packed = bench.stream.buffer(16 * width * lines * p.W)
    whole: dict[str, Any] = {"offset": 0, "origin": (0, 0), "region": (width, lines * p.W)}
    source, pixels = (m.d, p.at, m.ld, m.columns), (width * lines, p.W)

    def by_kernel() -> None:
        into_image(pixels, None, *source, lines, image)

    def by_api() -> None:
        into_buffer(pixels, None, *source, packed)  # the call wants pixels in a row; columns of X are not
        cl.enqueue_copy(bench.queue, image, packed, **whole)

    fill = {"": lambda: None, "kernel": by_kernel, "api": by_api}[copy]
    if not copy:
        by_kernel()
    tail = (m.d, p.W, image, m.gamma, m.ld, m.columns, lines, p.K)

    def launch(rows: int) -> None:
        fill()
        compute(*_range(-(-rows // lanes), group), rows, *tail)

    return Prepared(launch, p.clear, p.read)


def _ours(with_gather: bool, p: Problem) -> Prepared:
    """clsvm's Gram storing its rows."""
    gram, stream = p.matrix.gram, p.bench.stream
    rows, panel = gram.rows, gram.panel(p.W)
    places = np.full(panel.capacity, -1, np.int32)
    places[: p.W] = rows.position[p.working]
    at, count = stream.upload(places), stream.upload(np.array([p.W], np.int32))
    nbytes = 4 * p.W * rows.n_pad
    K = stream.zeros(nbytes)
    store = Store((K,), p.W, rows.n_pad, stream.upload(np.arange(panel.capacity, dtype=np.int32)))
    gram.gather(panel, at, count)

    def launch(_rows: int) -> None:
        if with_gather:
            gram.gather(panel, at, count)
        gram.accumulate(panel, count, store, None)

    def read(sample: NDArray[np.int64]) -> NDArray[np.float32]:
        stored = stream.read(K, np.float32, (p.W, rows.n_pad))
        return np.ascontiguousarray(stored[:, rows.position[sample]])

    def clear() -> None:
        stream.clear(K, nbytes)

    return Prepared(launch, clear, read, partial=False)


RUNGS = (
    Rung("row-major", "a work-item a row, rows of X one after another", partial(_scalar, "row_major", "rows")),
    Rung("column-major", "a work-item a row, columns of X padded", partial(_scalar, "column_major", "columns")),
    Rung("vectorised", "a work-item owns a vector of rows", _vectorised),
    Rung("images", "working rows in an image that is already filled", partial(_images, ""), _lacks_images),
    Rung("images, own copy", "the image filled by a kernel each time", partial(_images, "kernel"), _lacks_images),
    Rung("images, API copy", "packed, then clEnqueueCopyBufferToImage", partial(_images, "api"), _lacks_images),
    Rung("local memory", "working rows staged in local memory", _local_memory, _lacks_local),
    Rung("clsvm", "the product of the solver, storing its rows", partial(_ours, False)),
    Rung("clsvm, gather", "the same and the gather of its working rows", partial(_ours, True)),
)
