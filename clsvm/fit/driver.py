"""Choose dtype, solver and device for each dual problem of a fit, and solve it.

Each dual problem is called a subproblem. Kernel values are first computed in float32, unless the user chose float64, or
all subproblems are small and few. Subproblems that float32 cannot solve precisely enough are solved further in float64.
In each dtype:

- Small subproblems are solved many at a time on each device (solvers/batch.py).
- Large subproblems are solved one after another on each device (prepare.py). Subproblems over the same rows share a
  cache of rows of the kernel matrix.
- The host finishes subproblems of few rows that stall (host.py).
- Rows are divided into shards, one on each device, if Dask's workers store them or several devices solve a single
  subproblem (sharded.py).

The limit max_time, the progress display and the checkpoint are for all subproblems of the fit together. Several devices
take pieces of work from one queue. A piece of work is a list of indices of subproblems.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np

from clsvm.arrays import Data
from clsvm.distribute import run_pieces
from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.fit import checkpoint, host, prepare, sharded
from clsvm.fit.run import FitContext, Fitted, Worker
from clsvm.gram import layouts, store
from clsvm.gram.blocks import products_of
from clsvm.gram.exact import HostBlocks
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.csr import CSR
from clsvm.gram.layouts.lanes import DeviceRows
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Operator
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.devices import default_profile, device_list, find
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Problem, Subproblem
from clsvm.report import Display, Point, Status
from clsvm.solvers import batch, certificate
from clsvm.solvers.result import Result, ended

DTYPES = "float32", "float64"  # kernel values are computed in float32 first, then in float64 for problems that need it
FEW = 4  # subproblems are few if they have at most FEW * Profile.double_rows rows in all
PIECES = 4  # with several devices, work is divided into PIECES pieces for each, so that all end at about the same time
Devices = Mapping[str, Sequence[Any]]  # the chosen devices that support a dtype, by the dtype's name


def solve(
    X: Any,
    subproblems: Sequence[Subproblem],
    kernel: Kernel | Precomputed,
    options: Options,
    since: float,
    before: Fitted | None = None,
) -> Fitted:
    """Solve the dual problems of a fit, and return the outcome of the fit.

    X: rows (n, d) as a dense or CSR array (arrays.canonical), or as :class:`clsvm.fit.sharded.RemoteRows`. With a
        precomputed kernel, X is the kernel matrix (n, n).
    subproblems: dual problems, each over all rows or some of them.
    since: perf_counter() at the start of the fit.
    before: result of the previous call of this function in the same fit, for other subproblems over the same rows X.
        None if this is the first call.

    Raises ValueError if memory is too small, if no device supports ``options.dtype``, or if a row's squared norm or a
    kernel value is too large for the dtype. Raises CheckpointError if the checkpoint belongs to another fit.
    """
    with (
        checkpoint.open_checkpoint(options, X, subproblems, kernel) as saved,
        Display(options.verbose, options.tol, options.gap_tol) as progress,
    ):
        starts = saved.b if saved else [one.start for one in subproblems]
        restarted = [one.with_start(b) for one, b in zip(subproblems, starts, strict=True)]
        run = replace(before.run, progress=progress, reason="") if before else Worker(options, progress)
        if not before:
            run.lap("check", since)
        context = FitContext(X, restarted, kernel, options, since, run, saved)
        _solve(context)
        return Fitted(_results(context), run, perf_counter() - since, before)


def _solve(context: FitContext) -> None:
    """Choose the devices of a fit, and solve every subproblem (dual problem) of the fit."""
    X, options, run, one = context.X, context.options, context.run, len(context.subproblems) == 1
    named = device_list(options.device)
    if sharded.is_remote(X) or (one and len(named) > 1):
        context.shards = True
        _passes(context, {dtype: [options.device] for dtype in DTYPES})  # sharded.py checks what devices support
        return
    profiles = [default_profile(find(device)) for device in named]
    capable = {
        dtype: [device for device, profile in zip(named, profiles, strict=True) if not profile.lacks(dtype)]
        for dtype in DTYPES
    }
    if not capable[options.dtype]:
        words = f"dtype {options.dtype!r} needs a device with double precision, {find(named[0])} has none"
        raise ValueError(f"{words}: use 'float32'")
    if not one or _suits_batch(context, profiles[0]):
        context.max_batch_rows, context.batch_size = _batch_limits(capable[options.dtype], options)
        context.double_rows = min(profile.double_rows for profile in profiles)
    _passes(context, capable)
    if not one:
        run.reason = _counts(context)
    if run.plan is None and not isinstance(context.kernel, Precomputed):
        with Stream(named[0], options.memory_limit) as stream:
            run.plan = prepare.planned(stream.profile, X, context.kernel, options)


def _passes(context: FitContext, devices: Devices) -> None:
    """Solve the subproblems (dual problems) of a fit, first with kernel values in ``options.dtype``, then in float64.

    If all subproblems are small and few, there is only a pass in float64 (:attr:`Profile.double_rows`). Otherwise, this
    pass solves only the subproblems that float32 did not solve: SMO stalled, or rounding errors of float32 are too
    large for the tolerance tol. Only devices that support float64 take part in this pass. Each pass skips the
    subproblems that already have a final result.

    devices: for each dtype's name, the chosen devices that support the dtype.
    """
    sizes = [len(one.rows) for one in context.subproblems]
    few = max(sizes) <= min(context.double_rows, context.max_batch_rows) and sum(sizes) <= FEW * context.double_rows
    for dtype in DTYPES[1 if few else DTYPES.index(context.options.dtype) :]:
        capable, todo = devices[dtype], [index for index in range(len(sizes)) if index not in context.ended]
        if not todo or not capable:
            return
        small = [index for index in todo if sizes[index] <= context.max_batch_rows]
        large = [index for index in todo if sizes[index] > context.max_batch_rows]
        context.few = len(small) <= host.SEVERAL
        try:
            if small and context.seconds_left() > 0:
                pieces = _small_pieces(sizes, small, len(capable), context.batch_size)
                _run_on_devices(context, capable, pieces, partial(_solve_small, context, dtype))
        except (MemoryLimitError, BufferSizeError):  # start again with one subproblem at a time, in less memory
            for index, size in enumerate(sizes):
                if size <= context.max_batch_rows:
                    context.results.pop(index, None)
                    context.ended.discard(index)
            context.max_batch_rows = 0
            _passes(context, devices)
            return
        if large:
            pieces = [[index] for index in large]
            if not context.shards:
                pieces = _large_pieces(sizes, large, context.X.shape[0], len(capable))
            _run_on_devices(context, capable, pieces, partial(_solve_large, context, dtype))


def _run_on_devices(
    context: FitContext,
    devices: Sequence[Any],
    pieces: Iterable[list[int]],
    work: Callable[[Worker, Iterator[list[int]]], Generator[None]],
) -> None:
    """Run the function ``work`` for each device. The devices take pieces of work from one queue.

    Only the first device shows its progress.

    pieces: the pieces of work, each a list of indices of subproblems.
    """
    run = context.run
    workers = [Worker(context.options.replace(device=one), plan=run.plan) for one in devices]
    workers[0].progress = run.progress
    try:
        for _ in run_pieces(workers, pieces, work):
            pass
    finally:
        run.add(workers)


def _counts(context: FitContext) -> str:
    """Return a text for the report that says how many subproblems each solver solved."""
    most, count = context.max_batch_rows, len(context.subproblems)
    large = sum(len(one.rows) > most for one in context.subproblems)
    return f"{count - large} problems of up to {most} rows solved whole, {large} by decomposition"


def _results(context: FitContext) -> list[Result]:
    """Return the result of each subproblem, in order.

    If max_time ended the fit before a subproblem was begun, the result has the subproblem's start coefficients.
    """
    options = context.options

    def not_begun(one: Subproblem) -> Result:
        return Result(
            b=one.initial,
            f=np.full_like(one.initial, np.nan),
            rho=np.zeros((one.problem.problems, one.problem.groups)),
            primal=np.inf,
            dual=np.nan,
            violation=np.inf,
            steps=0,
            status=Status.MAX_TIME,
            error_bound=0.0,
            exact_rows=0,
            working_set=0,
            dtype=options.dtype,
            precision=options.dtype,
            device=" and ".join(dict.fromkeys(str(find(device)) for device in device_list(options.device))),
        )

    return [context.results.get(index) or not_begun(one) for index, one in enumerate(context.subproblems)]


def _suits_batch(context: FitContext, profile: Profile) -> bool:
    """Return whether to use the batch solver for a fit that consists of one dual problem.

    The batch solver keeps the whole kernel matrix of a small dual problem on the device. The batch solver needs fewer
    OpenCL kernel launches than the solver for large problems. It is chosen if the problem has at most
    ``profile.batch_rows`` rows, the device supports double precision, and the whole kernel matrix fits in the option
    cache_size. The batch solver ignores the options for layout, working set, duality gap and checkpoint, so these
    options must have their defaults. The batch solver cannot solve Crammer and Singer's multiclass SVM.
    """
    (one,), options = context.subproblems, context.options
    if one.problem.constraint is Constraint.COUPLED or profile.wide != "double" or len(one.rows) > profile.batch_rows:
        return False
    defaults = options.working_set_size == options.layout == "auto"
    values = np.dtype(options.dtype).itemsize * len(one.rows) ** 2  # bytes of all of K
    fits_cache = options.cache_size == "auto" or 1e6 * float(options.cache_size) >= values
    return defaults and fits_cache and options.gap_tol is None and options.checkpoint is None


def _batch_limits(devices: Sequence[Any], options: Options) -> tuple[int, int]:
    """Return two limits of the batch solver that hold for all ``devices``.

    The first limit is the largest number of rows that a subproblem may have. The second is the smallest number of
    subproblems in a batch that keeps every device busy.
    """
    with ExitStack() as stack:
        streams = [stack.enter_context(Stream(device, options.memory_limit)) for device in devices]
        return min(map(batch.max_rows, streams)), max(map(batch.batch_size, streams))


def _large_pieces(sizes: Sequence[int], large: list[int], n: int, devices: int) -> list[list[int]]:
    """Divide the subproblems with the indices ``large`` into pieces of work: lists of indices.

    The subproblems over all n rows are divided equally into one piece for each device. The subproblems of such a piece
    share a cache of rows of the kernel matrix. Each subproblem over fewer than n rows is a piece of its own. These
    pieces come after the pieces of subproblems over all rows, in descending order of their numbers of rows.

    sizes: number of rows of each subproblem.
    n: number of rows of X.
    devices: number of devices.
    """
    whole = [index for index in large if sizes[index] == n]
    parts = [part.tolist() for part in np.array_split(whole, min(devices, len(whole)))] if whole else []
    return [*parts, *([index] for index in sorted(large, key=lambda index: -sizes[index]) if sizes[index] < n)]


def _small_pieces(sizes: Sequence[int], todo: list[int], devices: int, batch_size: int) -> list[list[int]]:
    """Divide the subproblems with the indices ``todo`` into pieces of work, subproblems with most rows first.

    A single device gets one piece. Several devices get up to PIECES pieces each, so that all end at about the same
    time. A piece then has at least ``batch_size`` subproblems. If there are too few subproblems for this, each device
    gets one piece.

    sizes: number of rows of each subproblem.
    devices: number of devices.
    batch_size: number of subproblems that keep a device busy.
    """
    share = -(-len(todo) // devices)
    size = share if devices == 1 else max(-(-len(todo) // (PIECES * devices)), min(batch_size, share))
    ordered = sorted(todo, key=lambda index: -sizes[index])
    return [ordered[first : first + size] for first in range(0, len(ordered), size)]


def _solve_large(context: FitContext, dtype: str, worker: Worker, pieces: Iterator[list[int]]) -> Generator[None]:
    """Solve large subproblems one after another, on one device or on several that share the rows.

    The subproblems of a piece of work are over the same rows, and share a cache of rows of the kernel matrix.

    pieces: pieces of work, each a list of indices of subproblems.
    """
    with _device_copy(context, worker) as copied:
        for indices in pieces:
            if len(context.subproblems) > 1 and context.seconds_left() <= 0:
                break
            some, rows = context.subproblems[indices[0]].rows, context.X
            # A subproblem of at most host.MOST rows takes its rows from the host's X: the host may have to finish it.
            if copied is not None and len(some) > host.MOST:
                rows = copied[some] if len(some) < len(copied) else copied
            elif len(some) < context.X.shape[0] and not context.shards:
                rows = context.rows(some)
            _solve_same_rows(context, dtype, worker, indices, rows)
            yield


@contextmanager
def _device_copy(context: FitContext, worker: Worker) -> Iterator[DeviceRows | None]:
    """Copy X to the device and yield the copy, or yield None if no copy is made.

    The rows of each subproblem are taken from the copy, so that X is sent to the device only once. A copy is made only
    if it saves time and all of these conditions hold:

    - the device has memory of its own, and the copy fits there
    - X has features, not kernel values, and is not divided among devices
    - the large subproblems together have more rows than X
    """
    options, X, kernel = worker.options, context.X, context.kernel
    sizes = [len(one.rows) for one in context.subproblems]
    large = [rows for rows in sizes if rows > max(context.max_batch_rows, host.MOST)]
    if context.shards or isinstance(kernel, Precomputed) or sum(large) <= X.shape[0]:
        yield None
        return
    with Stream(options.device, options.memory_limit) as stream:
        plan = None if stream.unified else prepare.planned(stream.profile, X, kernel, options)
        copied = plan and prepare.on_device(stream, X, plan)
        yield copied if isinstance(copied, DeviceRows) else None


def _solve_same_rows(context: FitContext, dtype: str, worker: Worker, indices: list[int], rows: Any) -> None:
    """Solve the large subproblems with the indices ``indices`` one after another.

    The subproblems are over the same ``rows``. They share the rows on the device and a cache of rows of the kernel
    matrix.
    """
    began, whole = perf_counter(), rows.shape[0] == context.X.shape[0]
    kernel, options, plan = context.kernel, worker.options, worker.plan if whole else None
    laid_out = sharded.in_shards if context.shards else partial(prepare.on_one_device, plan=plan)
    with laid_out(rows, kernel, options, dtype) as prepared:
        worker.lap("layout", began)
        for index in indices:
            one, before = context.subproblems[index], context.results.get(index)
            restarted = one.with_start(before.b) if before else one
            restarted = restarted.embedded(rows.shape[0]) if context.shards else restarted
            settings = {"start": restarted.start, "progress": worker.progress, **context.solve_settings(index)}
            found = prepared.solve(restarted.problem, **settings)
            if found is None:
                continue
            worker.add_seconds(found.seconds)
            if context.shards:
                found = replace(found, b=found.b[:, one.rows], f=found.f[:, one.rows])
            precision = prepared.precision if found.dtype == "float32" else found.dtype
            found = replace(
                found.after(before), precision=precision, device=prepared.device, layout=prepared.describe()
            )
            context.store(index, found, prepared.is_finest)
        worker.reason, worker.peak = prepared.reason, max(worker.peak, prepared.peak())
        if whole:
            worker.plan = worker.plan or prepared.plan


# The limits LONG_ROWS, COMMON_VALUES and K_SHARE are explained in the docstring of the function _stored_plan.
LONG_ROWS, COMMON_VALUES, K_SHARE = 128, 1.3, 0.25
# With more than WIDE columns, the host gets no sampled rows to check, because it would convert them to dense rows.
WIDE = 4096


def _solve_small(context: FitContext, dtype: str, worker: Worker, pieces: Iterator[list[int]]) -> Generator[None]:
    """Solve small subproblems on one device.

    The device solves the subproblems of a piece of work as a batch. Then the host finishes subproblems of the piece
    that SMO did not solve well enough.

    pieces: pieces of work, each a list of indices of subproblems.
    """
    if (first := next(pieces, None)) is None:
        return
    with Stream(worker.options.device, worker.options.memory_limit) as stream:
        began = perf_counter()
        work = _SmallSolver(stream, context, worker, dtype, first)
        worker.lap("layout", began)
        for todo in chain([first], pieces):
            if context.seconds_left() <= 0:
                break
            for part, step in ("subproblem", work.on_device), ("active set", work.on_host):
                began = perf_counter()
                step(todo)
                worker.lap(part, began)
            worker.peak = max(worker.peak, stream.peak)
            yield


def _stored_plan(stream: Stream, dtype: str, X: Data, plans: tuple[Plan, Plan], sizes: list[int]) -> Plan | None:
    """Choose whether to compute the kernel matrix K of all rows once. Return the rows' storage format, or None for no.

    If K is computed, all subproblems take their kernel values from it. This needs a CPU, and three conditions:

    - the kernel matrices of all subproblems together have at least COMMON_VALUES times as many values as K
    - a row of X takes at least as many bytes as LONG_ROWS kernel values
    - K takes at most the share K_SHARE of the free memory

    plans: two storage formats of rows on the device: one for products with all rows, and one for rows of a subproblem.
    sizes: number of rows of each subproblem.
    """
    if stream.profile.style != "simd":
        return None
    n, itemsize = X.shape[0], np.dtype(dtype).itemsize

    def cells(plan: Plan) -> float:
        # The storage format "hybrid" stores some columns densely, and the others in CSR.
        # If no column is worth storing densely, plan.costs has no entry "hybrid", and the cost of "csr" is returned.
        return plan.costs.get(plan.kind, plan.costs.get(CSR.name, np.inf))

    gathered_plan = plans[1]
    best = min((plan for plan in plans if LAYOUTS[plan.kind].in_order), key=cells)
    long = LAYOUTS[gathered_plan.kind].row_bytes(gathered_plan, X, itemsize) >= LONG_ROWS * itemsize
    shared = sum(size**2 for size in sizes) >= COMMON_VALUES * n**2
    left = stream.limit - stream.allocated - n * layouts.row_bytes(best, X, itemsize)
    return best if long and shared and store.nbytes(n, dtype) <= K_SHARE * left else None


class _SmallSolver:
    """Solve small subproblems on one device in one dtype. Each solve starts from the subproblem's last coefficients.

    Attributes
    ----------
    gram
        operator that computes the kernel matrices of the subproblems.
    scale
        largest rounding errors of kernel values, in units of eps (:class:`clsvm.gram.precision.Scales`).
    plan
        storage format for the rows of a subproblem on the device, None for a precomputed kernel.
    quick
        whether the host can store the kernel matrix of all rows, and computes it faster than it could build an OpenCL
        program.
    """

    def __init__(self, stream: Stream, context: FitContext, worker: Worker, dtype: str, first: list[int]) -> None:
        self.stream, self.context, self.worker, self.plan = stream, context, worker, None
        X, kernel, options, whole = context.X, context.kernel, worker.options, None
        sizes = [len(context.subproblems[index].rows) for index in first]
        if plan := worker.plan or prepare.planned(stream.profile, X, kernel, options):
            worker.plan = plan
            self.plan = layouts.gathered_plan(plan, X, stream.limit // 8, options.layout == "auto")
            whole = _stored_plan(stream, dtype, X, (plan, self.plan), sizes)
        self.gram, self.scale = prepare.products(stream, X, kernel, options, dtype, whole or self.plan)
        if whole and self.plan and self.gram.resident:
            in_place = not LAYOUTS[self.plan.kind].sparse and batch.rows_on_demand(self.gram, max(sizes))
            if not in_place and store.needed_bytes(self.gram) <= stream.limit - stream.allocated:
                self.gram = store.computed(self.gram, tiles=False)
        self.quick = host.computes_quickly(stream, X.shape)
        self.rows, self.began = 0, perf_counter()  # for the progress display: rows of finished solves, and start time

    def on_device(self, todo: list[int]) -> None:
        """Solve the subproblems with the indices ``todo`` on the device.

        A subproblem is left to the next pass, in float64, if rounding errors of float32 kernel values are too large for
        tol (:meth:`_needs_float64`).
        """
        context, options, scale = self.context, self.worker.options, self.scale
        capable = [index for index in todo if not self._needs_float64(context.subproblems[index].problem)]
        before = [context.results.get(index) for index in capable]
        restarted = [
            replace(context.subproblems[index], start=one.b) if one else context.subproblems[index]
            for index, one in zip(capable, before, strict=True)
        ]
        checked = self.gram.rows.dtype == "float32" and (self.stream.profile.wide == "double" or self.quick)
        request = batch.Request(
            tol=options.tol,
            max_iter=context.steps_left(max((one.steps for one in before if one), default=0)),
            kernel_scale=scale.in_dtype,
            exact=(lambda: self._double) if checked else None,
            sample=self._host_blocks if context.X.shape[1] <= WIDE else None,
            sizes=scale.sizes,
            should_stop=lambda: context.seconds_left() <= 0,
            description=self._description(self.gram.rows.dtype),
        )
        for at, result in batch.solve(self.gram, restarted, request):
            result, index = result.after(before[at]), capable[at]
            if result.status is not Status.TOLERANCE:
                result = replace(result, status=ended(options, np.inf, result.gap, result.steps) or Status.STALLED)
            context.results[index] = result
            if context.checkpoint:
                context.checkpoint.save(index, result.b, options.checkpoint_every)
            self._report_progress(result.violation, index, result.b.shape[1])

    def on_host(self, todo: list[int]) -> None:
        """Finish subproblems on the host, and set the final status of all subproblems with the indices ``todo``.

        The host finishes a subproblem if SMO stalled, or if its result is not accurate enough (:func:`host.tol_share`).
        The status becomes MAX_TIME if a solve stalled and time is over. It becomes PRECISION if rounding errors of
        float64 are too large for tol.
        """
        context, options, rounding = self.context, self.worker.options, host.EPS * self.scale.double
        for index in todo:
            one, before = context.subproblems[index], context.results.get(index)
            if before is None:
                continue  # the next pass solves this subproblem by SMO in float64 on the device, or time is over
            shape = len(one.rows), context.X.shape[1]
            result = before.with_precision_status(rounding, options)
            share = host.tol_share(context.kernel, shape, before, result, self.quick and context.few)
            if share is not None and host.can_solve(self.stream, one.problem) and context.seconds_left() > 0:
                result = self._one_on_host(index, share)
                self._report_progress(result.violation, index, result.b.shape[1])
            timed_out = result.status is Status.STALLED and context.seconds_left() <= 0
            context.store(index, replace(result, status=Status.MAX_TIME) if timed_out else result)

    def _one_on_host(self, index: int, share: float) -> Result:
        """Solve the subproblem with the index ``index`` on the host, from its last coefficients.

        The solve ends at a KKT violation of ``share * tol``.
        """
        context, worker, one = self.context, self.worker, self.context.subproblems[index]
        given = context.rows(one.rows), context.kernel, worker.options, worker.plan, self.scale.double
        request = {"start": one.start, **context.solve_settings(index)}
        result = host.HostFit(self.stream, *given).finish(one.problem, context.results.get(index), share, **request)
        return replace(result, seconds={}, trace=(), **self._description(result.dtype))

    def _description(self, dtype: str) -> dict[str, Any]:
        """Return the Result fields precision, device and layout for a solve with kernel values of ``dtype``."""
        rows = self.gram.rows
        layout = f"{rows.describe()}, {rows.dtype}"
        return {"precision": dtype, "device": str(self.stream.info), "layout": layout}

    @cached_property
    def _double(self) -> Operator | HostBlocks:
        """Make the object that computes kernel values in float64, to check results of float32.

        The host computes these values if that is faster than building an OpenCL program. Otherwise the device does.
        """
        X, kernel = self.context.X, self.context.kernel
        if self.quick:
            return self._host_blocks
        if isinstance(kernel, Precomputed) or self.plan is None:
            return store.precomputed(self.stream, X, "float64")
        return products_of(self.stream, X, self.plan, kernel, "float64")

    @cached_property
    def _host_blocks(self) -> HostBlocks:
        """Make an object that computes blocks of the kernel matrix K on the host.

        If the host can compute all of K quickly, the object may compute and store all of K.
        """
        X, plan = self.context.X, self.worker.plan
        return HostBlocks(X, self.context.kernel, plan.centre if plan else np.zeros(X.shape[1]), self.quick)

    def _report_progress(self, violation: float, index: int, rows: int) -> None:
        self.rows += rows
        if self.worker.progress:
            now, nan = perf_counter() - self.began, float("nan")
            steps = sum(one.steps for one in list(self.context.results.values()))  # copied: other threads add results
            self.worker.progress(Point(now, steps, index, nan, nan, nan, violation, self.rows))

    def _needs_float64(self, problem: Problem) -> bool:
        """Return whether float32 kernel values are too coarse for ``problem``, and the device supports float64."""
        dtype, tol = self.gram.rows.dtype, self.worker.options.tol
        insufficient = certificate.precision_insufficient(dtype, self.scale.in_dtype, problem, tol)
        return dtype != self.stream.profile.finest and insufficient
