"""From rows and a problem to a solution: layout, precision, working set and row store, certificate, checkpoints.

What every estimator's fit has in common; it sees no labels.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import files, host, layout, precision, responses, solvers
from clsvm.device import Stream
from clsvm.errors import CheckpointError
from clsvm.given import Given, Whole
from clsvm.gram import Gram
from clsvm.kernels import Kernel, Precomputed, underflow
from clsvm.profiles import Profile
from clsvm.progress import Display
from clsvm.report import FitReport, Status, relative_gap
from clsvm.solvers import certificate
from clsvm.tasks import Problem

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """What a fit asks of the solver and the machine; names and meaning as the estimators' parameters."""

    tol: float
    gap_tol: float | None
    max_iter: int
    max_time: float | None
    working_set_size: int | str
    cache_size: float | str
    dtype: str
    device: Any
    memory_limit: int | str | None
    verbose: Any = False
    checkpoint: Any = None
    checkpoint_every: float = 60.0


@dataclass(frozen=True)
class Trained:
    """The solution, its report, and what a model of it needs to know."""

    solution: solvers.Solution
    report: FitReport
    plan: layout.Plan | None


def train(
    X: Any, problem: Problem, kernel: Kernel | Precomputed, options: Options, start: Vector | None, since: float
) -> Trained:
    """Solve ``problem`` over the rows of X (n, d), dense or CSR (layout.canonical), or over X = K (n, n) where the
    kernel is precomputed, from ``start`` where it is given.

    since: perf_counter() at which the fit began. float64 is taken where float32 cannot reach the tolerance. Raises
    ValueError where numbers are too large or memory too small, CheckpointError for a checkpoint of another fit.
    """
    if options.checkpoint is None:
        return train_each(X, [problem], kernel, options, [start], since)[0]
    checkpoint = Checkpoint(Path(options.checkpoint), X, problem, kernel)
    if checkpoint.file.exists():
        start = checkpoint.read()
    trained = train_each(X, [problem], kernel, options, [start], since, checkpoint.write)[0]
    checkpoint.write(trained.solution.b)
    return trained


def train_each(
    X: Any,
    problems: Sequence[Problem],
    kernel: Kernel | Precomputed,
    options: Options,
    starts: Sequence[Vector | None],
    since: float,
    keep: Callable[[Vector], None] | None = None,
) -> list[Trained]:
    """:func:`train` for several problems of one constraint, one after another over the same rows and row store;
    max_time is that of all together. keep: called with coefficients from time to time."""
    feasible = [None if b is None or not b.any() else p.feasible(b) for p, b in zip(problems, starts, strict=True)]
    made: list[Trained | None] = [None] * len(problems)
    begun: dict[int, float] = {}
    for dtype in ("float32", "float64") if options.dtype == "float32" else ("float64",):
        todo = [i for i, one in enumerate(made) if one is None or one.solution.status is Status.STALLED]
        if not todo:
            break
        began = perf_counter()
        with (
            Stream(options.device, options.memory_limit) as stream,
            Display(options.verbose, options.tol, options.gap_tol) as progress,
        ):
            ready = Ready(stream, X, kernel, options, dtype)
            seconds = {"layout": perf_counter() - began} | ({} if begun else {"check": began - since})
            for i in todo:
                problem, now, before = problems[i], perf_counter(), made[i]
                taken = int(before.solution.steps.sum()) if before else 0
                begun.setdefault(i, now if begun else since)
                solution = ready.settle(
                    problem,
                    start=feasible[i],
                    max_iter=options.max_iter if options.max_iter < 0 else options.max_iter - taken,
                    max_time=None if options.max_time is None else options.max_time - (now - since),
                    progress=progress,
                    keep=keep,
                    keep_every=options.checkpoint_every,
                )
                if solution is None:
                    continue
                solution = solution.after(before.solution) if before else solution
                feasible[i] = problem.feasible(solution.b)
                report = _report(solution, ready, {**seconds, **solution.seconds}, perf_counter() - begun[i])
                made[i] = Trained(solution, report, ready.plan)
                seconds = {}
        if ready.last:
            break
    return [one for one in made if one is not None]


def _report(solution: solvers.Solution, ready: Ready, seconds: dict[str, float], total: float) -> FitReport:
    primal, dual = float(solution.primal.sum()), float(solution.dual.sum())
    return FitReport(
        primal=primal,
        dual=dual,
        gap=relative_gap(primal, dual),
        violation=float(solution.violation.max()),
        error_bound=solution.error_bound,
        exact_rows=solution.exact_rows,
        status=solution.status.value,
        converged=solution.status.converged,
        steps=int(solution.steps.sum()),
        outer_steps=solution.outer_steps,
        rows_computed=solution.rows_computed,
        bytes_held=ready.stream.peak,
        seconds={**seconds, "other": total - sum(seconds.values()), "total": total},
        device=str(ready.stream.info),
        layout=ready.describe(),
        working_set_size=solution.working_set,
        dtype=solution.dtype,
        trace=solution.trace,
        selection=ready.reason,
    )


WHOLE_SHARE = 0.5  # of the memory that is left, for all of K
MIN_WORKING_SET = 16


class Ready:
    """Rows (or given kernel values) on a device, and what all solves over them share: settings, row store, room.

    settings: of a solve without start, time and progress. reason: why the working set and the row store are as they
    are. plan: None for given values. last: whether the device has no better dtype. Raises as :func:`train` does.
    whole: many solves are to come, so all of K is computed first where memory holds it.
    """

    def __init__(
        self, stream: Stream, X: Any, kernel: Kernel | Precomputed, options: Options, dtype: str, whole: bool = False
    ) -> None:
        self.stream, self._X, self._kernel = stream, X, kernel
        self._values: host.Values | None = None
        self.gram, self.plan, scale, exact = products(stream, X, kernel, options, dtype)
        room = WHOLE_SHARE * (stream.limit - stream.held)
        if whole and isinstance(kernel, Kernel) and Whole.nbytes(self.gram.rows) <= room:
            self.gram = Whole(stream, self.gram.rows, kernel)
        working_set, cache, self.reason = choose(stream, self.gram, options.working_set_size, options.cache_size)
        if isinstance(self.gram, Whole) and options.working_set_size == "auto":
            working_set = max(MIN_WORKING_SET, working_set // 2)
            self.reason += "; half of it, since solves begin near their end"
        self.settings = solvers.Settings(
            tol=options.tol,
            gap_tol=options.gap_tol,
            max_iter=options.max_iter,
            working_set=working_set,
            cache_bytes=cache,
            kernel_scale=scale.own,
            exact=exact,
        )
        self.last = dtype == "float64" or stream.profile.wide == "pair"
        self._single = float(np.finfo(dtype).eps) * scale.own  # rounding error of f for a coefficient 1
        self._double = float(np.finfo(np.float64).eps) * scale.double  # the same in float64
        self._solver: solvers.Solver | None = None

    def hopeless(self, problem: Problem, tol: float) -> bool:
        """Whether one coefficient's rounding would hide the tolerance, and there is a better dtype."""
        return not self.last and certificate.hopeless(self._single, problem, tol)

    def solve(self, problem: Problem, **settings: Any) -> solvers.Solution:
        """Solve ``problem``, of the constraint and the shape of the ones before. settings: those of solvers.Settings
        that differ from one solve to the next."""
        asked = replace(self.settings, **settings)
        if self._solver is None:
            self._solver = solvers.solver(self.stream, self.gram, problem, asked)
        else:
            self._solver.load(problem, asked)
        return self._solver.run()

    def settle(self, problem: Problem, **settings: Any) -> solvers.Solution | None:
        """:meth:`solve`, and on the host what pair steps leave of a problem of few rows: where they stall, go on for
        very long, could not begin in this dtype, or end within a tol that says little of the objective. None where the
        problem is left to a better dtype."""
        asked, began, solution = replace(self.settings, **settings), perf_counter(), None
        small, most, aim = host.takes(self.stream, problem), asked.max_iter, 1.0
        if not self.hopeless(problem, asked.tol):
            patience = self.stream.profile.patience * problem.q.size + host.LEAST
            given = min(patience, most) if most >= 0 else patience
            solution = self.solve(problem, **settings | ({"max_iter": given} if small else {}))
            sure, shape = self._sure(solution, self._double), self._X.shape
            status = Status.STALLED if self._unfinished(solution, most) else solution.status
            gap = max(map(relative_gap, solution.primal, solution.dual))
            rough, quick = sure.status is Status.PRECISION, asked.gap_tol is None and host.holds(self.stream, shape)
            gain = host.aim(self._kernel, shape, status, gap, rough, quick) if small else None
            if gain is None:
                return sure
            aim = gain
        if not small:
            return None
        if self._values is None:
            scale = self._double / host.EPS
            self._values = host.kernel_values(self.stream, self._X, self._kernel, self.plan, problem, scale)
        found = host.solve(
            self.stream,
            self._values,
            problem,
            asked.start if solution is None else problem.feasible(solution.b),
            asked.tol,
            asked.gap_tol,
            most=np.inf if most < 0 else most - (int(solution.steps.sum()) if solution else 0),
            max_time=np.inf if asked.max_time is None else asked.max_time - (perf_counter() - began),
            aim=aim,
            progress=asked.progress,
            keep=asked.keep,
        )
        return self._sure(found.after(solution) if solution else found, host.EPS * self._values.scale)

    def _unfinished(self, solution: solvers.Solution, most: int) -> bool:
        """Whether a problem of few rows took all steps that it was given, but not all that it may."""
        return solution.status is Status.MAX_ITER and not 0 <= most <= int(solution.steps.min())

    def _sure(self, solution: solvers.Solution, rounding: float) -> solvers.Solution:
        """With a status that says so where rounding in float64 itself, so much for a coefficient 1, can hide a tenth of
        the tolerance or more."""
        weight = float(np.abs(solution.b).sum(axis=1).max(initial=0.0))
        hidden, asked = rounding * weight, self.settings
        primal = float(np.abs(solution.primal).max())
        doubtful = certificate.doubtful(solution.status, hidden, weight, primal, asked.tol, asked.gap_tol)
        stalled = solution.status is Status.STALLED and solution.dtype == "float64"  # (else there is float64 to try)
        if (solution.status in (Status.TOLERANCE, Status.GAP) or stalled) and doubtful:
            return replace(solution, status=Status.PRECISION, error_bound=max(solution.error_bound, hidden))
        return solution

    def describe(self) -> str:
        """The layout and why it was chosen."""
        return self.gram.rows.describe() + (f" ({self.plan.reason})" if self.plan else "")


class Scales(NamedTuple):
    """The rounding error of kernel values in units of eps: of their dtype, in it, and of float64, in float64."""

    own: float
    double: float


def products(
    stream: Stream,
    X: Any,
    kernel: Kernel | Precomputed,
    options: Options,
    dtype: str,
    plan: layout.Plan | None = None,
    gathered: bool = False,
) -> tuple[Gram, layout.Plan | None, Scales, solvers.Exact]:
    """(products of the rows of X or of K, the plan of their layout, rounding errors of kernel values, what evaluates
    them in float64), once they are on the device.

    gathered: rows are read by their numbers alone, so clusters would be for nothing. Raises ValueError where numbers
    are too large for the dtype or memory too small.
    """
    if isinstance(kernel, Precomputed):
        largest = float(np.abs(X).max())
        if largest > float(np.finfo(dtype).max):
            raise ValueError(beyond(f"a kernel value of {largest:.3g} is too large", options.dtype))
        given = Given(stream, X, dtype)
        own = 0.0 if X.dtype == dtype == "float32" else largest
        return given, None, Scales(own, largest), _exact_given(X)
    plan = plan or layout.choose(stream.profile, X, kernel.spec)
    laid = _unclustered(stream, plan, X) if gathered else plan
    gram = Gram(stream, layout.build(stream, X, laid, dtype), kernel)
    stream.finish()
    return gram, plan, rounding(stream, plan, X, gram, options.dtype), _exact(options, stream, plan, X, kernel)


def _unclustered(stream: Stream, plan: layout.Plan, X: Any) -> layout.Plan:
    if plan.kind != "clustered":
        return plan
    room = stream.limit // 8
    return replace(plan, kind="csr" if sp.issparse(X) and 8 * X.shape[0] * X.shape[1] > room else "dense")


# How the work of a solve goes with the working set W, fitted to a9a, ijcnn1, covtype and MNIST on a CPU for W of 16 to
# 2048: rows of K that change a coefficient, W to the power -DECLINE; such rows of a step, FRESH of W; inner steps of a
# row, INNER.
DECLINE, FRESH, INNER = 0.3, 0.65, 1.5
NEAR = 4 << 20  # bytes of a W x W tile beyond which an inner step takes FAR times as long
FAR = 1.2


def choose(stream: Stream, gram: Gram, working_set: int | str, cache: float | str) -> tuple[int, int, str]:
    """(working set size, bytes of the row store, why): the numbers given, or those of the least cost by the device's
    measured rates (profiles.py), in dense multiply-adds.

    A value of K costs a row's cells to compute and ``cache_cost`` cells to read again from the store: rows are kept
    where that is less. A large working set leaves fewer rows to compute, launches and looks to pay, a small one has the
    cheaper tile and inner steps (:func:`cost`).
    """
    profile, rows, words = stream.profile, gram.rows, []
    cells = rows.stored / max(1, rows.n) * (profile.csr_cost if rows.csr else 1.0)
    keep = cells > profile.cache_cost if cache == "auto" else float(cache) > 0
    if working_set == "auto":
        value = min(cells, profile.cache_cost) if keep or gram.whole else cells
        width = 1 if isinstance(gram, Given) else cells if rows.csr else rows.d
        costs = {W: cost(profile, rows.n, width, value, W) for W in _sizes(profile.working_set)}
        W = min(costs, key=lambda size: (costs[size], size))
        words.append(f"a working set of up to {W} costs least by the device's rates")
        if W > MIN_WORKING_SET:
            words[0] += f" (one of {MIN_WORKING_SET} {costs[MIN_WORKING_SET] / costs[W]:.1f} times as much)"
    else:
        W = int(working_set)
        words.append(f"a working set of {W} was asked for")
    if gram.whole:
        return W, 0, "; ".join([*words, "all of K is on the device"])
    if cache != "auto":
        words.append(f"a row store of {float(cache):g} MB was asked for")
        return W, int(min(float(cache) * 1e6, stream.limit)), "; ".join(words)
    words.append(
        f"computing a value of K again costs {cells:.0f} dense cells, reading it {profile.cache_cost:.0f}: "
        + ("rows are kept" if keep else "no row is kept")
    )
    return W, stream.limit if keep else 0, "; ".join(words)


def _sizes(largest: int) -> list[int]:
    return [MIN_WORKING_SET << k for k in range((largest // MIN_WORKING_SET).bit_length())]


def cost(profile: Profile, n: int, width: float, value: float, W: int) -> float:
    """What a solve with a working set of W costs, up to a factor that is the same for every W.

    width: cells of a working vector. value: cost of a value of K. For each row that changes: its n values, its share of
    an outer step (launches, the choice of the working set, the new half of the W x W tile, computed or copied), its
    inner steps.
    """
    changed = FRESH * min(W, n / 3)  # (beyond that, most rows are no support vectors)
    tile = W * W / 2 * max(width, 1)
    inner = INNER * (profile.inner_step + profile.inner_cost * W * (FAR if 4 * W * W > NEAR else 1.0))
    row = n * value + (profile.step_cost + profile.look_cost * n + tile) / changed + inner
    return float(row * W**-DECLINE)


def _exact(options: Options, stream: Stream, plan: layout.Plan, X: Any, kernel: Kernel) -> Callable[..., Vector]:
    """K b in float64 for some rows, within what is left of the budget."""

    def exact(rows: NDArray[np.intp], b: Vector) -> Vector:
        support = np.flatnonzero(b.any(axis=0))
        with Stream(options.device, max(1, stream.limit - stream.held), stream.profile) as own:
            c = responses.exact_responses(own, kernel, plan, X[rows], X[support], b[:, support])
            stream.peak = max(stream.peak, stream.held + own.peak)
        return c

    return exact


def _exact_given(K: Any) -> Callable[..., Vector]:
    """The same where K is given."""
    return lambda rows, b: (K[rows] @ b.T).T


def rounding(stream: Stream, plan: layout.Plan, X: Any, gram: Gram, asked: str) -> Scales:
    """The rounding errors of kernel values. Raises ValueError where they are too large for a dtype."""
    kernel, dtype = gram.kernel, gram.rows.dtype
    eps, floor = float(np.finfo(dtype).eps), underflow(dtype, X.shape[1])
    sizes = stream.read(gram.rows.xx, dtype, gram.rows.n_pad)[gram.rows.position].astype(np.float64)
    if kernel.spec.element or sizes.min(initial=np.inf) * eps < floor:  # (what is too small for the dtype is 0 there)
        sizes = precision.sizes(kernel, X, plan)
    size, least = precision.extent(sizes)
    scale = kernel.rounding(size, eps, least, floor)
    if not scale <= float(np.finfo(dtype).max):
        raise ValueError(beyond(f"{kernel!r} of these rows (inner products up to {size:.3g}) is too large", asked))
    return Scales(scale, kernel.rounding(size, host.EPS, least, underflow("float64", X.shape[1])))


def beyond(what: str, dtype: str) -> str:
    """The words for numbers that ``dtype`` does not hold."""
    return f"{what} for {dtype}: scale X" + (" or take dtype='float64'" * (dtype == "float32"))


class Checkpoint:
    """Coefficients in a file, with digests of the fit that they belong to; written whole or not at all."""

    VERSION = 1

    def __init__(self, file: Path, X: Any, problem: Problem, kernel: Kernel | Precomputed) -> None:
        self.file, self._shape = file, problem.q.shape
        arrays = (X.indptr, X.indices, X.data) if sp.issparse(X) else (X,)
        self._of = {
            "rows of X": _digest(np.asarray(X.shape), *arrays),
            "labels": _digest(problem.q, np.asarray([problem.constraint.name]), np.asarray([problem.kink])),
            "C, nu and weights": _digest(problem.lo, problem.hi, *([] if problem.start is None else [problem.total])),
            "kernel": repr(kernel),
        }
        folder = self.file.parent
        if not folder.is_dir():
            raise CheckpointError(f"checkpoint {str(self.file)!r}: there is no folder {str(folder)!r}")

    def read(self) -> Vector:
        """The coefficients (problems, n). Raises CheckpointError for a file of another fit, or none of clsvm's."""
        try:
            with open(self.file, "rb") as stream, np.load(stream, allow_pickle=False) as content:
                version, b = int(content["clsvm_checkpoint"]), content["b"]
                found = {name: str(content[name]) for name in self._of}
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            why = f" ({error})" if isinstance(error, OSError) else ""
            raise CheckpointError(f"{self.file} is no checkpoint of clsvm{why}") from None
        if version != self.VERSION:
            raise CheckpointError(f"{self.file} is a checkpoint of version {version}, expected {self.VERSION}")
        for name, expected in self._of.items():
            if found[name] != expected:
                words = f" ({found[name]}, expected {expected})" if name == "kernel" else ""
                raise CheckpointError(
                    f"{self.file} is of another fit: other {name}{words}; go on without it, or delete it"
                )
        if b.shape != self._shape or b.dtype != np.float64 or not np.isfinite(b).all():
            raise CheckpointError(f"{self.file} holds coefficients {b.shape} of {b.dtype}, expected {self._shape}")
        return np.asarray(b)

    def write(self, b: Vector) -> None:
        """Replace the file by one with ``b``. Raises OSError."""
        content: dict[str, Any] = {"clsvm_checkpoint": np.int64(self.VERSION), "b": b}
        content |= {name: np.str_(value) for name, value in self._of.items()}
        with files.atomic_write(self.file) as stream:
            np.savez(stream, **content)


def _digest(*arrays: NDArray[Any]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for array in arrays:
        made.update(str((array.shape, array.dtype)).encode())
        made.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return made.hexdigest()
