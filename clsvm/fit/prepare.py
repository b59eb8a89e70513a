"""Rows on a device, ready for solves: layout, precision, the sizes of working set and row cache by the device's
measured rates, and what their end is worth."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import solvers
from clsvm.fit import host
from clsvm.gram import exact, layouts, precision, store
from clsvm.gram import units as matrix_units
from clsvm.gram.blocks import BESIDE, products_of
from clsvm.gram.layouts.lanes import DENSE, DeviceRows
from clsvm.gram.layouts.record import Plan, Rows
from clsvm.gram.precision import Scales
from clsvm.gram.products import Operator
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Problem
from clsvm.report import Status
from clsvm.solvers import Result, certificate
from clsvm.solvers.kernel_rows import CACHE_SHARE, tile_cost

Vector = NDArray[np.float64]
WHOLE_SHARE = 0.5  # of the memory that is left, for all of K
SHARED = 0.25  # of it at most, for rows as they came, those that are laid out, and what a solve has beside them
ROOM = 1e-3  # of the largest wide number, for targets: what is computed of them is larger


class PreparedFit:
    """Rows, or given kernel values, on a device, and what all solves over them share: settings, row cache, room.

    plan: the layout of the rows, None for given values. settings: of a solve without start, time and progress. reason:
    why working set and row cache have their sizes. last: whether the device has no better dtype. precision: how kernel
    values are computed, in words. whole: many solves are to come, so all of K is computed first where memory holds it.
    Raises ValueError as :func:`products` does.
    """

    def __init__(
        self,
        stream: Stream,
        X: Any,
        kernel: Kernel | Precomputed,
        options: Options,
        dtype: str,
        plan: Plan | None = None,
        whole: bool = False,
    ) -> None:
        self.stream, self._X, self._kernel, self._dtype = stream, X, kernel, dtype
        plan = plan or planned(stream.profile, X, kernel, options)
        if isinstance(X, DeviceRows):
            stream.reserve(X.nbytes)  # (another stream's)
        elif plan and X.shape[0] > host.MOST:  # (the host may finish fewer, from X)
            X = on_device(stream, X, plan)
        self.gram, self._plain = products(stream, X, kernel, options, dtype, plan)
        exactly = exact.of_rows(self.gram, X, plan, options.device) if plan else exact.of_given(X)
        room = WHOLE_SHARE * (stream.limit - stream.held)
        stored = whole and self.gram.resident and store.nbytes(self.gram.rows.n_pad, dtype) <= room
        if stored:
            self.gram = store.computed(self.gram, tiles=True)
        units, self.precision = matrix_units.chosen(self.gram, options.precision, whole)
        scale = self._plain
        if units and scale.sizes is not None and scale.extent:
            self.gram.use(units)
            given = scale.sizes, scale.extent, X.shape[1], dtype, options.dtype, units.error
            scale = precision.scales(self.gram.kernel, *given)
        working_set, cache, self.reason = sizes(stream, self.gram, options.working_set_size, options.cache_size)
        if stored and options.working_set_size == "auto":
            working_set = max(MIN_WORKING_SET, working_set // 2)
            self.reason += "; half of it, since solves begin near their end"
        self.settings = solvers.Settings(
            tol=options.tol,
            gap_tol=options.gap_tol,
            max_iter=options.max_iter,
            working_set=working_set,
            cache_bytes=cache,
            kernel_scale=scale.own,
            exact=exactly,
            sizes=scale.sizes,
        )
        self.plan, self.device, self.last = plan, str(stream.info), dtype == stream.profile.finest
        self._double = host.EPS * scale.double
        self._on_host = host.HostFit(stream, self._X, kernel, options, plan, scale.double)
        self._solver: solvers.Solver | None = None

    def coarse(self, problem: Problem, tol: float) -> bool:
        """Return whether the dtype is too coarse for tol."""
        return coarse(self._dtype, self.settings.kernel_scale, problem, tol)

    def solve(self, problem: Problem, **settings: Any) -> Result:
        """Solve ``problem``, of the constraint and the shape of the ones before.

        settings: those of solvers.Settings that differ from one solve to the next.
        """
        self._plainer(problem)
        asked = replace(self.settings, **settings)
        if self._solver is None:
            self._solver = solvers.solver(self.stream, self.gram, problem, asked)
        else:
            self._solver.load(problem, asked)
        return self._solver.run()

    def settle(self, problem: Problem, **asked: Any) -> Result | None:
        """Solve ``problem`` by pair steps, and finish one of few rows on the host.

        That is done where pair steps stall, go on for very long, could not begin in this dtype, or end within a tol
        that says little of the objective.

        asked: ``settings`` of :meth:`solve`, among them start, max_iter and max_time. Return None where the problem is
        left to a better dtype.
        """
        self._plainer(problem)
        began, found, most = perf_counter(), None, asked["max_iter"]
        small, held, aim = host.takes(self.stream, problem), self._holds(problem, asked["start"]), None
        if not (held or small):
            words = f"targets or sums of weights beyond {ROOM * self.stream.profile.largest:.3g} for a problem of"
            raise ValueError(
                f"{words} {problem.q.size} coefficients need a device with double precision, {self.stream.info} has "
                "none: scale y or sample_weight"
            )
        if held and (self.last or not self.coarse(problem, self.settings.tol)):
            patience = self.stream.profile.patience * problem.q.size + host.LEAST
            given = patience if small and not 0 <= most <= patience else most
            found = self.solve(problem, **asked | {"max_iter": given})
        if small:
            aim = self._aim(found, most)
        if aim is None:
            return found and self._certain(found)
        if found:
            seconds = perf_counter() - began
            asked["max_time"] = asked["max_time"] and max(0.0, asked["max_time"] - seconds)
            asked["max_iter"] = most if most < 0 else most - found.steps
        with self._solver.cleared() if self._solver else nullcontext():
            if found is None or host.takes(self.stream, problem):
                return self._on_host.finish(problem, found, aim, **asked)
        if found.unfinished(most):  # (memory_limit does not hold the solver and what the host needs)
            again = {"start": problem.feasible(found.b), "known": None}
            found = self.solve(problem, **asked | again).after(found)
        return self._certain(found)

    def _holds(self, problem: Problem, start: Vector | None) -> bool:
        """Return whether the device's wide numbers hold targets, and what a start makes of f."""
        begun = problem.start if start is None else start
        size = max(self._plain.own, self._plain.double)
        weight = 0.0 if begun is None else float(np.abs(begun).sum(axis=1).max()) * size
        return max(float(np.abs(problem.q).max()), weight) < ROOM * self.stream.profile.largest

    def _aim(self, found: Result | None, most: int) -> float | None:
        """Return the share of tol that the host shall come to from a result of pair steps, None where it gains
        nothing."""
        certain = found and self._certain(found)
        seen = replace(found, status=Status.STALLED) if found and found.unfinished(most) else found
        quick = self.settings.gap_tol is None and host.holds(self.stream, self._X.shape)
        return host.aim(self._kernel, self._X.shape, seen, certain, quick)

    def _plainer(self, problem: Problem) -> None:
        """Take plain float32 before the first solve where that of matrix units is too coarse for tol. A later problem
        for which it is goes where one goes that float32 is too coarse for."""
        gram = self.gram
        if gram.units and not self._solver and self.coarse(problem, self.settings.tol):
            self.precision = f"float32: {gram.units.name} is too coarse for tol"
            gram.use(None)
            self.settings = replace(self.settings, kernel_scale=self._plain.own)

    def _certain(self, found: Result) -> Result:
        return found.certain(self._double, self.settings.tol, self.settings.gap_tol)

    def peak(self) -> int:
        """Return the most bytes that the device held."""
        return self.stream.peak

    def describe(self) -> str:
        """Return the layout in words, and why it was chosen."""
        return self.gram.rows.describe() + (f" ({self.plan.reason})" if self.plan else "")


def coarse(dtype: str, scale: float, problem: Problem, tol: float) -> bool:
    """Return whether kernel values of ``dtype`` with rounding errors of ``scale`` eps are too coarse for tol: what they
    do to a single coefficient would hide it."""
    return certificate.hopeless(float(np.finfo(dtype).eps) * scale, problem, tol)


def products(
    stream: Stream, X: Any, kernel: Kernel | Precomputed, options: Options, dtype: str, plan: Plan | None
) -> tuple[Operator, Scales]:
    """Return products with K of the rows of X, laid out as planned, or with K = X, once they are on the device; and the
    rounding errors of kernel values.

    Raises ValueError where numbers are too large for the dtype or memory too small.
    """
    if isinstance(kernel, Precomputed) or plan is None:
        largest = float(np.abs(X).max())
        if largest > float(np.finfo(dtype).max):
            raise ValueError(precision.beyond(f"a kernel value of {largest:.3g} is too large", options.dtype))
        return store.given(stream, X, dtype), Scales(0.0 if X.dtype == dtype == "float32" else largest, largest)
    gram = products_of(stream, X, plan, kernel, dtype)
    stream.finish()
    found = precision.measured(stream, gram.rows, kernel, X, plan)
    return gram, precision.scales(kernel, found.sizes, found.extent, X.shape[1], dtype, options.dtype)


def on_device(stream: Stream, X: Any, plan: Plan) -> Any:
    """Return X (n, d) as DeviceRows on a device with memory of its own, else X.

    X has to be dense there and to take, with the rows and what a solve has beside them, a small part of that memory.
    Rows that are laid out later, for a float64 check or a subproblem, then go over no bus again.
    """
    if plan.kind != DENSE.name or stream.unified or stream.profile.wide == "pair":
        return X
    (n, d), size, sparse = X.shape, X.dtype.itemsize, sp.issparse(X)
    if n * (2 * d * size + BESIDE) > SHARED * (stream.limit - stream.held):
        return X
    if n * d * size > min(stream.largest, exact.FETCHED if sparse else np.inf):
        return X
    dense = X.toarray() if sparse else X
    return DeviceRows(dense, stream.upload(dense), plan, np.arange(n))


def planned(profile: Profile, X: Any, kernel: Kernel | Precomputed, options: Options) -> Plan | None:
    """Return the layout of the rows of X, as the options ask; None for kernel values. Raises as layouts.choose does."""
    if isinstance(kernel, Precomputed):
        return None
    if isinstance(X, DeviceRows):
        return X.plan
    return layouts.choose(profile, X, kernel.spec, options.layout, options.working_set_size)


MIN_WORKING_SET = 16
# How the work of a solve goes with the working set W, fitted to a9a, ijcnn1, covtype and MNIST on a CPU for W of 16 to
# 2048: rows of K that change a coefficient, W to the power -DECLINE; such rows of a step, FRESH of W; inner steps of a
# row, INNER.
DECLINE, FRESH, INNER = 0.3, 0.65, 1.5
SUPPORT = 1 / 3  # of all rows: beyond that, most are no support vectors
# Where the row cache holds fewer than STAYING working sets, it has forgotten rows that stay: AGAIN times the rows are
# computed, and larger sets spare few of them, W to the power FORGOTTEN - DECLINE (measured with gisette's shape, C=100
# and sets of 128 to 2048 rows).
STAYING, AGAIN, FORGOTTEN = 1.5, 1.6, 0.2
NEAR = 4 << 20  # bytes of a W x W tile beyond which an inner step takes FAR times as long
FAR = 1.2


def sizes(
    stream: Stream, gram: Operator, working_set: int | str, cache: float | str, n: int | None = None
) -> tuple[int, int, str]:
    """Return the working set size, the bytes of the row cache, and why: the numbers given, or the sizes of the least
    cost by the device's measured rates (profiles.py), in dense multiply-adds.

    n: rows of the problem, where these are not all of them. A value of K costs a row's cells to compute and
    ``cache_cost`` cells to read again from the row cache: rows are kept where that is less. A large working set leaves
    fewer rows to compute and fewer launches. A small one has the cheaper tile and SMO iterations (:func:`cost`).
    """
    profile, rows, words = stream.profile, gram.rows, []
    cells = rows.cost
    keep = cells > profile.cache_cost if cache == "auto" else float(cache) > 0
    if working_set == "auto":
        n, kept = n or rows.n, _kept(stream, rows, cache) if keep else 0.0
        tiles = dict.fromkeys(_sizes(profile.working_set), rows.tile_cost)
        if keep and not gram.whole and kept >= rows.n_pad:
            tiles = {W: min(own, tile_cost(profile, rows, n, W)) for W, own in tiles.items()}
        values = {
            W: min(cells, profile.cache_cost) if gram.whole else _value(profile, cells, n, kept, W) for W in tiles
        }
        costs = {W: cost(profile, n, tile, values[W], W, rows.laid) for W, tile in tiles.items()}
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
        words.append(f"a row cache of {float(cache):g} MB was asked for")
        return W, int(min(float(cache) * 1e6, stream.limit)), "; ".join(words)
    words.append(
        f"computing a value of K again costs {cells:.0f} dense cells, reading it {profile.cache_cost:.0f}: "
        + ("rows are kept" if keep else "no row is kept")
    )
    return W, stream.limit if keep else 0, "; ".join(words)


def _kept(stream: Stream, rows: Rows, cache: float | str) -> float:
    """Return how many rows of K a row cache of that size holds."""
    room = CACHE_SHARE * (stream.limit - stream.held)
    asked = room if cache == "auto" else min(room, float(cache) * 1e6)
    return float(asked) / (np.dtype(rows.dtype).itemsize * rows.n_pad)


def _value(profile: Profile, cells: float, n: int, kept: float, W: int) -> float:
    """Return the mean cost of a value of K in dense cells, where the row cache holds ``kept`` rows of n.

    A value of a cached row is read. Rows that stay in the working set are cached, if the set is not too large for the
    row cache.
    """
    there = min(1.0, kept / (n * SUPPORT))
    again = AGAIN * (STAYING * W / kept) ** FORGOTTEN if 0 < kept < STAYING * W else 1.0
    return there * min(cells, profile.cache_cost) + (1 - there) * again * cells


def _sizes(largest: int) -> list[int]:
    return [MIN_WORKING_SET << k for k in range((largest // MIN_WORKING_SET).bit_length())]


def cost(profile: Profile, n: int, width: float, value: float, W: int, laid: float = 0.0) -> float:
    """Return the cost of a solve with a working set of W, up to a factor that is the same for every W.

    width: cells of a right-hand row. value: cost of a value of K. laid: cost of a row that every outer iteration lays
    out anew. A row that changes costs its n values, its SMO iterations, and its share of an outer iteration: launches,
    laying out, the choice of the working set, and the new half of the W x W tile.
    """
    changed = FRESH * min(W, n * SUPPORT)
    tile = W * W / 2 * max(width, 1)
    inner = INNER * (profile.inner_step + profile.inner_cost * W * (FAR if 4 * W * W > NEAR else 1.0))
    row = n * value + (profile.step_cost + (profile.look_cost + laid) * n + tile) / changed + inner
    return float(row * W**-DECLINE)
