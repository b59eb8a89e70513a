"""The rungs: kernel rows K[w, i] = exp(-gamma |x_i - u_w|^2) the same way over and over, each time a little better; and
the smallest and the largest of n float32 and where they stand, in several forms.

Letters: n rows, d features, W working rows u_w = x_rows[w]; ld >= n: columns of X and rows of K begin ld floats apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench, Laid, Launch, Product
from clsvm import kernels

# isort: split
import pyopencl as cl  # (after clsvm.device, which prepares the loader)

STAGED = 256  # features of a working row in local memory at a time
PIXELS = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT)


class Problem:
    """X (n, d) float32, uniform in [0, 1), on the device in the layouts that rungs ask for, each made once; W of its
    rows, and room for their kernel rows."""

    def __init__(self, bench: Bench, n: int, d: int, W: int) -> None:
        self.bench, self.n, self.d, self.W = bench, n, d, W
        self.X = np.random.default_rng(n + d).random((n, d), np.float32)
        # Cache lines, and an odd number of two of them: columns a multiple of 4 KB apart would share their cache sets.
        self.ld = (-(-n // 32) | 1) * 32
        self.gamma = 6.0 / d  # kernel values of about exp(-1)
        self.block = 2 if W <= 2 else 8  # working rows that share a pass over X in the rungs written here
        self.working = np.random.default_rng(W).integers(0, n, W).astype(np.int32)
        self.at = bench.stream.upload(self.working)
        self._nbytes = 4 * W * self.ld
        self.K = bench.stream.buffer(self._nbytes)

    @cached_property
    def rows(self) -> Any:
        return self.bench.stream.upload(self.X)

    @cached_property
    def columns(self) -> Any:
        turned = np.zeros((self.d, self.ld), np.float32)
        turned[:, : self.n] = self.X.T
        return self.bench.stream.upload(turned)

    @cached_property
    def laid(self) -> Laid:
        """Return clsvm's own dense layout of the same rows."""
        return Laid(self.bench.stream, self.X, kernels.make("rbf", gamma=self.gamma))

    def clear(self) -> None:
        """Clear K. Kernel values are positive, so what a rung does not write will not pass for right."""
        self.bench.stream.clear(self.K, self._nbytes)

    def read(self, sample: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return K[:, sample] from the device, (W, len(sample))."""
        K = self.bench.stream.read(self.K, np.float32, (self.W, self.ld))
        return np.ascontiguousarray(K[:, sample])

    def error(self, into: Problem | Product, m: int) -> float:
        """Return the largest difference of K from float64 on up to 64 of the first m rows, both ends among them."""
        sample = np.unique(np.linspace(0, m - 1, min(m, 64)).astype(np.int64))
        x, u = (self.X[some].astype(np.float64) for some in (sample, self.working))
        distances = np.stack([np.square(x - row).sum(axis=1) for row in u])
        difference = np.abs(into.read(sample) - np.exp(-self.gamma * distances))
        return float(np.nan_to_num(difference, nan=np.inf).max())


class Ready(NamedTuple):
    """A rung ready to run on a problem: ``launch`` enqueues K of the first m rows ``into`` the problem or a product.

    A product is of all rows, whatever m.
    """

    launch: Callable[[int], None]
    into: Problem | Product


@dataclass(frozen=True)
class Rung:
    """One way to compute kernel rows; a new one is one more record.

    lacks: why the problem's device cannot run it, or the empty string.
    """

    name: str
    what: str
    prepare: Callable[[Problem], Ready]
    lacks: Callable[[Problem], str] = lambda problem: ""


def _range(items: int, group: int) -> tuple[tuple[int], tuple[int]]:
    return (-(-items // group) * group,), (group,)


def _scalar(name: str, stored: str, p: Problem) -> Ready:
    """Give each row a work-item; X is stored by "rows" or "columns"."""
    group = 64 if p.bench.vector else p.bench.profile.group
    kernel, X = p.bench.kernel(name, name, U=p.block), getattr(p, stored)
    head, tail = (p.d, p.W, p.at, p.gamma, p.ld), (X, p.K)
    return Ready(lambda rows: kernel(*_range(rows, group), rows, *head, *tail), p)


def _vectors(local: bool, p: Problem) -> Ready:
    """Give each work-item a vector of rows; local: working rows are staged in local memory."""
    lanes, group = p.bench.lanes, 1 if p.bench.vector else p.bench.profile.group
    more = {}
    if local:
        group = 16 if p.bench.vector else min(128, group)
        more = {"GROUP": group, "DEPTH": STAGED}
    name = "local_memory" if local else "vectorised"
    kernel = p.bench.kernel(name, name, U=p.block, LANES=lanes, **more)
    tail = (p.d, p.W, p.at, p.gamma, p.ld, p.columns, p.K)
    return Ready(lambda rows: kernel(*_range(-(-rows // lanes), group), rows, *tail), p)


def _lacks_local(p: Problem) -> str:
    need, there = 4 * STAGED * p.block, int(p.bench.device.local_mem_size)
    return f"{need} bytes of local memory needed, {there} there" if need > there else ""


def _image_size(p: Problem) -> tuple[int, int]:
    """Return the width in pixels of 4 floats, and lines of a working row: as few as the widest image allows."""
    pixels = -(-p.d // 4)
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


def _images(copy: str, p: Problem) -> Ready:
    """Read working rows from an image, which a launch fills by a kernel or clEnqueueCopyBufferToImage ("": not)."""
    bench, lanes = p.bench, p.bench.lanes
    group = 1 if bench.vector else bench.profile.group
    width, lines = _image_size(p)
    image = cl.create_image(bench.context, cl.mem_flags.READ_WRITE, PIXELS, shape=(width, lines * p.W))
    numbers = {"U": p.block, "LANES": lanes}
    compute = bench.kernel("images", "images", **numbers)
    into_image = bench.kernel("images", "copy_to_image", **numbers)
    into_buffer = bench.kernel("images", "copy_to_buffer", **numbers)
    packed = bench.stream.buffer(16 * width * lines * p.W)
    whole: dict[str, Any] = {"offset": 0, "origin": (0, 0), "region": (width, lines * p.W)}
    source, pixels = (p.d, p.at, p.ld, p.columns), (width * lines, p.W)

    def by_kernel() -> None:
        into_image(pixels, None, *source, lines, image)

    def by_api() -> None:
        into_buffer(pixels, None, *source, packed)  # the call wants pixels in a row; columns of X are not
        cl.enqueue_copy(bench.queue, image, packed, **whole)

    fill = {"": lambda: None, "kernel": by_kernel, "api": by_api}[copy]
    if not copy:
        by_kernel()
    tail = (p.d, p.W, image, p.gamma, p.ld, p.columns, lines, p.K)

    def launch(rows: int) -> None:
        fill()
        compute(*_range(-(-rows // lanes), group), rows, *tail)

    return Ready(launch, p)


def _ours(with_gather: bool, p: Problem) -> Ready:
    """Store the rows of clsvm's own product."""
    product = Product(p.laid, p.working)

    def launch(_rows: int) -> None:
        if with_gather:
            product.gather()
        product.launch()

    return Ready(launch, product)


RUNGS = (
    Rung("row-major", "a work-item a row, rows of X one after another", partial(_scalar, "row_major", "rows")),
    Rung("column-major", "a work-item a row, columns of X padded", partial(_scalar, "column_major", "columns")),
    Rung("vectorised", "a work-item owns a vector of rows", partial(_vectors, False)),
    Rung("images", "working rows in an image that is already filled", partial(_images, ""), _lacks_images),
    Rung("images, own copy", "the image filled by a kernel each time", partial(_images, "kernel"), _lacks_images),
    Rung("images, API copy", "packed, then clEnqueueCopyBufferToImage", partial(_images, "api"), _lacks_images),
    Rung("local memory", "working rows staged in local memory", partial(_vectors, True), _lacks_local),
    Rung("clsvm", "the product of the solver, storing its rows", partial(_ours, False)),
    Rung("clsvm, gather", "the same and the gather of its working rows", partial(_ours, True)),
)


class Shape(NamedTuple):
    """Macros of extremes.cl."""

    lanes: int
    chains: int
    together: int


VECTOR_SHAPES = Shape(8, 2, 4), Shape(16, 2, 8)  # which of them keeps up with memory depends on the processor
GROUP_SHAPES = Shape(4, 4, 1), Shape(4, 2, 2), Shape(4, 2, 4)
PARTS = 8  # work-groups for each compute unit, at most


@dataclass(frozen=True)
class Form:
    """macros of extremes.cl; of its results: 0 the minimum, 1 the maximum; whether indices come with them."""

    name: str
    macros: tuple[str, ...]
    results: tuple[int, ...]
    indices: bool = True


FORMS = (
    Form("min", ("VALUES_ONLY",), (0,), False),
    Form("argmin", (), (0,)),
    Form("argmin ?:", ("TERNARY",), (0,)),
    Form("argmax", ("MAXIMUM",), (1,)),
    Form("argmin + argmax", ("BOTH",), (0, 1)),
)


def shapes(bench: Bench) -> tuple[Shape, ...]:
    """Return what a device may like; the best counts."""
    return VECTOR_SHAPES if bench.vector else GROUP_SHAPES


class Extremes:
    """One form over vectors of up to ``most`` numbers."""

    def __init__(self, bench: Bench, form: Form, most: int, shape: Shape | None = None) -> None:
        self.bench, self.form, self.shape = bench, form, shape or shapes(bench)[0]
        self.group = 1 if bench.vector else bench.profile.group
        lanes, chains, together = self.shape
        macros: dict[str, int | None] = dict.fromkeys(form.macros)
        macros |= {"GROUP": self.group, "LANES": lanes, "CHAINS": chains, "TOGETHER": together}
        self._stages = [bench.kernel("extremes", name, **macros) for name in ("extremes", "last")]
        parts = self._parts(most)[0] if bench.vector else PARTS * bench.units
        stream, room = bench.stream, 4 * len(form.results) * parts
        self._values, self._indices = stream.buffer(room), stream.buffer(room)
        self.value, self.index = stream.buffer(64), stream.buffer(64)

    def _parts(self, n: int) -> tuple[int, int]:
        """Return parts and the numbers of one (which only the vector shape wants): pieces of 128 KB at least."""
        step = self.shape.lanes * self.shape.chains * self.shape.together
        if not self.bench.vector:  # (as many as leave few numbers after the last whole step)
            whole = max(1, n // (self.group * step))
            return whole // -(-whole // (PARTS * self.bench.units)), 0
        piece = -(-max(-(-n // 128), 32768) // step) * step
        return -(-n // piece), piece

    def launch(self, x: Any, n: int) -> Launch:
        """Return what reduces x[:n]; one stage where one part is all."""
        first, last = self._stages
        parts, piece = self._parts(n)
        size = (parts * self.group,), (self.group,)
        if parts == 1:
            return lambda: first(*size, n, piece, x, self.value, self.index)

        def both() -> None:
            first(*size, n, piece, x, self._values, self._indices)
            last((self.group,), (self.group,), parts, self._values, self._indices, self.value, self.index)

        return both

    def read(self) -> tuple[list[float], list[int]]:
        """Return values and indices, of the minimum before the maximum."""
        count = len(self.form.results)
        values = self.bench.stream.read(self.value, np.float32, count)
        return values.tolist(), self.bench.stream.read(self.index, np.int32, count).tolist()

    def right(self, x: NDArray[np.float32]) -> bool:
        """Return whether what it last found in x is what NumPy finds: of equal numbers the first."""
        expected = [int((x.argmin, x.argmax)[which]()) for which in self.form.results]
        values, indices = self.read()
        same = values == [float(x[i]) for i in expected]
        return same and (indices == expected or not self.form.indices)
