"""A ladder of kernels for kernel rows, from the plainest one to clsvm's own, and reductions, beside the device's peaks.

A rung computes kernel rows K[w, i] = exp(-gamma |x_i - u_w|^2) for n rows x_i of d features and W right-hand rows u_w.
A reduction finds the minimum or the maximum of n float32 numbers, or its index. Times are the best of interleaved
batches of launches (bench.Clock). GFLOP/s count 2 n W d for every rung, although the rungs that sum (x - u)^2 do half
as much again. GB/s count X read once and the results written once. Columns of X and rows of K begin ld >= n floats
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import table
from benchmarks.bench import TOLERANCE, Bench, Clock, Laid, Launch, Peaks, Product, apart, exact, some_of
from benchmarks.command import Asked, Command, Part
from benchmarks.table import Row, Shown, shown
from clsvm import kernels

# isort: split
import pyopencl as cl  # (after clsvm.device, which prepares the loader)

STAGED = 256  # features of a right-hand row in local memory at a time
PIXELS = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT)


class Problem:
    """Uniform rows X (n, d) float32 in the layouts that rungs read, and a buffer for the kernel rows of W of them."""

    def __init__(self, bench: Bench, n: int, d: int, W: int) -> None:
        self.bench, self.n, self.d, self.W = bench, n, d, W
        self.X = np.random.default_rng(n + d).random((n, d), np.float32)
        # An odd number of pairs of cache lines, since columns a multiple of 4 KB apart would share their cache sets.
        self.ld = (-(-n // 32) | 1) * 32
        self.gamma = 6.0 / d  # for kernel values of about exp(-1)
        self.block = 2 if W <= 2 else 8  # right-hand rows that share a pass over X in all rungs but clsvm's
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
        """Return the rows in clsvm's dense layout."""
        return Laid(self.bench.stream, self.X, kernels.make("rbf", gamma=self.gamma))

    def clear(self) -> None:
        """Set K to zero, which no kernel value is, so that the check notices values that a rung does not write."""
        self.bench.stream.clear(self.K, self._nbytes)

    def error(self) -> float:
        """Return the largest error of K on up to 64 rows, the first and the last among them."""
        sample = some_of(self.n, 64)
        K = self.bench.stream.read(self.K, np.float32, (self.W, self.ld))[:, sample]
        return apart(K, exact(self.X, sample, self.working, self.gamma))


class Ready(NamedTuple):
    """A rung ready to run: ``launch`` enqueues K ``into`` the problem, or into a product."""

    launch: Launch
    into: Problem | Product


@dataclass(frozen=True)
class Rung:
    """One way to compute kernel rows. lacks: returns why the problem's device cannot run it, or an empty string."""

    name: str
    what: str
    prepare: Callable[[Problem], Ready]
    lacks: Callable[[Problem], str] = lambda problem: ""


def _range(items: int, group: int) -> tuple[tuple[int], tuple[int]]:
    return (-(-items // group) * group,), (group,)


def _scalar(name: str, stored: str, p: Problem) -> Ready:
    """Give each row a work-item. stored: whether X is stored by "rows" or "columns"."""
    group = 64 if p.bench.simd else p.bench.profile.group
    kernel, X = p.bench.kernel(name, name, U=p.block), getattr(p, stored)
    return Ready(partial(kernel, *_range(p.n, group), p.n, p.d, p.W, p.at, p.gamma, p.ld, X, p.K), p)


def _vectors(local: bool, p: Problem) -> Ready:
    """Give each work-item a vector of rows. local: whether right-hand rows are staged in local memory."""
    lanes, group = p.bench.lanes, 1 if p.bench.simd else p.bench.profile.group
    more = {}
    if local:
        group = 16 if p.bench.simd else min(128, group)
        more = {"GROUP": group, "DEPTH": STAGED}
    name = "local_memory" if local else "vectorised"
    kernel = p.bench.kernel(name, name, U=p.block, LANES=lanes, **more)
    given = (p.n, p.d, p.W, p.at, p.gamma, p.ld, p.columns, p.K)
    return Ready(partial(kernel, *_range(-(-p.n // lanes), group), *given), p)


def _lacks_local(p: Problem) -> str:
    need, there = 4 * STAGED * p.block, int(p.bench.device.local_mem_size)
    return f"{need} bytes of local memory needed, {there} there" if need > there else ""


def _image_size(p: Problem) -> tuple[int, int]:
    """Return the image's width in pixels of 4 floats, and the lines of a right-hand row, as few as possible."""
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
    """Read right-hand rows from an image. copy: "kernel" or "api", by which a launch fills the image first, or ""."""
    bench, lanes = p.bench, p.bench.lanes
    group = 1 if bench.simd else bench.profile.group
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

    def launch() -> None:
        fill()
        size = _range(-(-p.n // lanes), group)
        compute(*size, p.n, p.d, p.W, image, p.gamma, p.ld, p.columns, lines, p.K)

    return Ready(launch, p)


def _ours(with_gather: bool, p: Problem) -> Ready:
    """Store the kernel rows of clsvm's product. with_gather: whether a launch gathers the right-hand rows first."""
    product = Product(p.laid, p.working)

    def launch() -> None:
        if with_gather:
            product.gather()
        product.launch()

    return Ready(launch, product)


RUNGS = (
    Rung("row-major", "a work-item a row, rows of X one after another", partial(_scalar, "row_major", "rows")),
    Rung("column-major", "a work-item a row, columns of X padded", partial(_scalar, "column_major", "columns")),
    Rung("vectorised", "a work-item owns a vector of rows", partial(_vectors, False)),
    Rung("images", "right-hand rows in an image that is already filled", partial(_images, ""), _lacks_images),
    Rung("images, own copy", "the image filled by a kernel each time", partial(_images, "kernel"), _lacks_images),
    Rung("images, API copy", "packed, then clEnqueueCopyBufferToImage", partial(_images, "api"), _lacks_images),
    Rung("local memory", "right-hand rows staged in local memory", partial(_vectors, True), _lacks_local),
    Rung("clsvm", "the product of the solver, storing its rows", partial(_ours, False)),
    Rung("clsvm, gather", "the product and the gather of its right-hand rows", partial(_ours, True)),
)


class Shape(NamedTuple):
    """Macros of extremes.cl."""

    lanes: int
    chains: int
    together: int


SIMD_SHAPES = Shape(8, 2, 4), Shape(16, 2, 8)  # the faster one depends on the processor
WORKGROUP_SHAPES = Shape(4, 4, 1), Shape(4, 2, 2), Shape(4, 2, 4)
PARTS = 8  # work-groups for each compute unit, at most


@dataclass(frozen=True)
class Form:
    """A form of the reduction.

    macros: those of extremes.cl. results: 0 for the minimum, 1 for the maximum. indices: whether the form finds them.
    """

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
    """Return the shapes to try on a device; the fastest one counts."""
    return SIMD_SHAPES if bench.simd else WORKGROUP_SHAPES


class Extremes:
    """A form of the reduction with its kernels and buffers, for up to ``most`` numbers."""

    def __init__(self, bench: Bench, form: Form, most: int, shape: Shape | None = None) -> None:
        self.bench, self.form, self.shape = bench, form, shape or shapes(bench)[0]
        self.group = 1 if bench.simd else bench.profile.group
        lanes, chains, together = self.shape
        macros: dict[str, int | None] = dict.fromkeys(form.macros)
        macros |= {"GROUP": self.group, "LANES": lanes, "CHAINS": chains, "TOGETHER": together}
        self._stages = [bench.kernel("extremes", name, **macros) for name in ("extremes", "last")]
        parts = self._parts(most)[0] if bench.simd else PARTS * bench.units
        stream, room = bench.stream, 4 * len(form.results) * parts
        self._values, self._indices = stream.buffer(room), stream.buffer(room)
        self.value, self.index = stream.buffer(64), stream.buffer(64)

    def _parts(self, n: int) -> tuple[int, int]:
        """Return the number of parts, and for the vector shape the numbers of a part, 128 KB at least."""
        step = self.shape.lanes * self.shape.chains * self.shape.together
        if not self.bench.simd:  # as many parts as leave few numbers after the last whole step
            whole = max(1, n // (self.group * step))
            return whole // -(-whole // (PARTS * self.bench.units)), 0
        piece = -(-max(-(-n // 128), 32768) // step) * step
        return -(-n // piece), piece

    def launch(self, x: Any, n: int) -> Launch:
        """Return a function that reduces x[:n], in one stage if there is one part, else in two."""
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
        """Read the values and the indices of the minimum and the maximum."""
        count = len(self.form.results)
        values = self.bench.stream.read(self.value, np.float32, count)
        return values.tolist(), self.bench.stream.read(self.index, np.int32, count).tolist()

    def right(self, x: NDArray[np.float32]) -> bool:
        """Return whether the last reduction of x agrees with NumPy, which takes the first of equal numbers."""
        expected = [int((x.argmin, x.argmax)[which]()) for which in self.form.results]
        values, indices = self.read()
        same = values == [float(x[i]) for i in expected]
        return same and (indices == expected or not self.form.indices)


FEATURES = 784
GROUPS = ((2, 102400), (16, 102400), (512, 20480))  # (W, n) of each group of rungs
SWEEP = tuple(1 << k for k in range(10, 18))  # values of n at W = 2
REDUCED = tuple(1 << k for k in range(10, 27, 2))  # lengths of reductions
READ, CHAIN = 1 << 27, 1 << 15  # numbers of the read peak, multiply-adds of a chain of the arithmetic peak
SECONDS = 40.0  # of a group, and of all reductions


def measure(asked: Asked) -> Row:
    """Measure the rungs, the reductions and the peaks of a device."""
    with Bench(asked.device) as bench:
        peaks = Peaks(bench, READ, CHAIN)
        groups = [_group(bench, W, n, peaks) for W, n in GROUPS]
        reductions = _reductions(bench, peaks)
        best = max(groups, key=lambda group: group["peaks"]["fma_gflops"])["peaks"]
        fastest = max((*groups, reductions), key=lambda part: part["peaks"]["read_gbs"])["peaks"]
        return {
            "profile": bench.profile.name,
            "lanes": bench.lanes,
            "peaks": {name: (fastest if name.startswith("read") else best)[name] for name in best},
            "groups": groups,
            "sweep": [_sweep(bench, n) for n in SWEEP],
            "reductions": reductions,
        }


def _group(bench: Bench, W: int, n: int, peaks: Peaks) -> Row:
    """Measure all rungs at one W and n, interleaved with the peaks, so that shares of the peaks are comparable."""
    clock = Clock(SECONDS)
    with bench.section() as part:
        problem = Problem(part, n, FEATURES, W)
        rungs = _measured(problem, clock, peaks.launches)
    rates = peaks.rates(clock)
    for row in rungs:
        if not row["reason"]:
            row["of_bandwidth"] = row["gbs"] / rates["read_gbs"]
            row["of_arithmetic"] = row["gflops"] / rates["fma_gflops"]
    return {"W": W, "n": n, "d": FEATURES, "block": problem.block, "peaks": rates, "rungs": rungs}


def _measured(problem: Problem, clock: Clock, others: Mapping[str, Launch]) -> list[Row]:
    """Return a record for each rung, measured interleaved with other launches."""
    rungs, prepared = _prepared(problem)
    clock.run(problem.bench, {**others, **{name: one.launch for name, one in prepared.items()}})
    flops, nbytes = 2e-9 * problem.n * problem.W * problem.d, 4e-9 * problem.n * (problem.d + problem.W)
    for row in rungs:
        if not row["reason"]:
            one, seconds = prepared[row["name"]], clock.best[row["name"]]
            row |= {"seconds": seconds, "gflops": flops / seconds, "gbs": nbytes / seconds}
            one.into.clear()
            one.launch()
            problem.bench.stream.finish()
            row["error"] = one.into.error()
            row["right"] = row["error"] <= TOLERANCE
    return rungs


def _prepared(problem: Problem) -> tuple[list[Row], dict[str, Ready]]:
    """Return a record for each rung, and the rungs that the device can run, after a first launch."""
    records, prepared = [], {}
    for rung in RUNGS:
        record: Row = {"name": rung.name, "what": rung.what, "reason": rung.lacks(problem)}
        records.append(record)
        if record["reason"]:
            continue
        try:
            one = rung.prepare(problem)
            one.launch()
            problem.bench.stream.finish()
            prepared[rung.name] = one
        except Exception as error:  # a driver's refusal is a result, and the other rungs still count
            first = str(error).strip().partition("\n")[0]
            record["reason"] = f"{type(error).__name__}: {first}"
    return records, prepared


def _sweep(bench: Bench, n: int) -> Row:
    """Return GFLOP/s of every rung at W = 2 and this n, or None if the rung cannot run or is wrong."""
    with bench.section() as part:
        rows = _measured(Problem(part, n, FEATURES, 2), Clock(SECONDS / 10), {})
    return {"n": n, "gflops": {row["name"]: row["gflops"] if row.get("right") else None for row in rows}}


def _reductions(bench: Bench, peaks: Peaks) -> Row:
    """Return a row for every form at every size in its best shape, and the peaks that were interleaved with them."""
    most = max(REDUCED)
    with bench.section() as part:
        numbers = np.random.default_rng(0).standard_normal(most, np.float32)
        x = part.stream.upload(numbers)
        forms = {form.name: [Extremes(part, form, most, shape) for shape in shapes(part)] for form in FORMS}
        every = {(name, n): {one.shape: one for one in some} for n in REDUCED for name, some in forms.items()}
        launches = {
            f"{name} {n} {shape}": one.launch(x, n) for (name, n), some in every.items() for shape, one in some.items()
        }
        clock = Clock(SECONDS)
        clock.run(part, peaks.launches | launches)
        rates, rows = peaks.rates(clock), []
        for (name, n), some in every.items():
            spent = {shape: clock.best[f"{name} {n} {shape}"] for shape in some}
            best = min(spent, key=spent.__getitem__)
            launches[f"{name} {n} {best}"]()
            seconds = spent[best]
            row = {"n": n, "name": name, "lanes": best.lanes, "seconds": seconds, "gbs": 4e-9 * n / seconds}
            row |= {"right": some[best].right(numbers[:n]), "of_bandwidth": row["gbs"] / rates["read_gbs"]}
            rows.append(row)
    return {"peaks": rates, "rows": rows}


def _holds(result: Row) -> bool:
    rungs = [row for group in result["groups"] for row in group["rungs"] if not row["reason"]]
    return all(row["right"] for row in (*rungs, *result["reductions"]["rows"]))


def _peaks(part: Row) -> str:
    return f"{part['peaks']['fma_gflops']:.0f} GFLOP/s, {part['peaks']['read_gbs']:.1f} GB/s"


def show(result: Row) -> list[Shown]:
    """Return the tables of rungs, of rungs over n, and of reductions."""
    rows, notes = [], []
    for group in result["groups"]:
        words = f"{group['block']} right-hand rows share a pass over X in all rungs but clsvm's"
        notes.append(f"W = {group['W']}: {words}; peaks meanwhile {_peaks(group)}")
        for row in group["rungs"]:
            rows.append(row | {"label": f"{group['W']}, {group['n']}", "right": row.get("right", True)})
            if row["reason"] or row.get("rows", group["n"]) < group["n"]:
                notes.append(f"W = {group['W']}, {row['name']}: {row['reason'] or 'on {rows} rows'.format_map(row)}")
    rungs = (
        ("W, n", "{label}"), ("rung", lambda row: row["name"] + "*" * (not row["right"])),
        ("GFLOP/s", "{gflops:.1f}"), ("GB/s", "{gbs:.1f}"), ("of bandwidth", "{of_bandwidth:.1%}"),
        ("of multiply-adds", "{of_arithmetic:.1%}"), ("max error", "{error:.0e}"),
    )  # fmt: skip
    words = "shares are of the peaks that were interleaved with the rungs; a rung with * is wrong and does not count"
    title = f"{table.where(result)}; peaks {_peaks(result)}"
    cells: dict[int, Row] = {}
    for row in result["reductions"]["rows"]:
        text = f"{row['gbs']:.1f} ({row['of_bandwidth']:.0%})" + "*" * (not row["right"])
        cells.setdefault(row["n"], {"n": row["n"]})[row["name"]] = text
    meanwhile = f"reductions, GB/s and share of the bandwidth; peaks meanwhile {_peaks(result['reductions'])}"
    sweep = [
        {"n": one["n"]} | {name: "-" if rate is None else f"{rate:.1f}" for name, rate in one["gflops"].items()}
        for one in result["sweep"]
    ]
    return [
        shown(title, rungs, rows, words, *notes, left=2),
        _by_n("two kernel rows, GFLOP/s", sweep),
        _by_n(meanwhile, [*cells.values()]),
    ]


def _by_n(title: str, rows: list[Row]) -> Shown:
    """Return a table with a column for each name in the rows."""
    names = [name for name in rows[0] if name != "n"]
    columns: list[table.Column] = [("n", lambda row: f"2^{np.log2(row['n']):g}")]
    columns += [(name, lambda row, name=name: row[name]) for name in names]  # type: ignore[misc]
    return shown(title, columns, rows)


COMMAND = Command(
    "ladder",
    "kernel rows in ever better ways, and reductions, against the device's peaks",
    (),
    Part(measure, show, _holds),
)
