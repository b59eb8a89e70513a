"""Hold the state of a solve on the device, choose working sets, and make the OpenCL programs of solvers.

:class:`State` holds the coefficients b, the bounds and the gradients f = K b + q of a dual problem. K is the kernel
matrix, and q the linear term. Rows are in the order in which the device stores them. Padding rows among them belong to
no problem.

:class:`Selection` chooses working sets by a histogram of the rows' KKT violations, without sorting. A working set
starts with rows of the previous working set. The rows with the largest violations follow. If the problem has a bias,
half of the new rows have coefficients that should rise, and half have coefficients that should fall.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts import record
from clsvm.gram.layouts.panel import Panel
from clsvm.gram.layouts.record import WHOLE
from clsvm.gram.products import Operator, Update
from clsvm.gram.programs import RowSource
from clsvm.opencl import sources
from clsvm.opencl.contexts import local
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream, join_arrays
from clsvm.problem import Constraint, Problem, Vector
from clsvm.solvers import certificate

BINS = 2048  # number of bins of the histogram of KKT violations by which a working set is chosen
MAX_STEPS = 20  # the solve over a working set of W rows ends after at most MAX_STEPS * W SMO iterations
SHRINK = 0.1  # the solve over a working set ends when its KKT violation has fallen to SHRINK times the first value
VECTOR_STATE = 64  # bytes of local memory that the SMO kernel for CPUs needs for each row of a working set


LEAST_ITEMS = 32  # on a GPU, at least LEAST_ITEMS work-items choose a pair of coefficients
PART = 128  # an SMO iteration on a GPU may change a pair of coefficients for each PART rows of the working set


def _cl(*names: str) -> str:
    return sources.cl(*(f"solvers/{name}" for name in names))


def subproblem_items(profile: Profile, working_set: int) -> int:
    """Return the number of work-items that solve the dual over a working set of ``working_set`` rows."""
    return 1 if profile.style == "simd" else min(1 << working_set.bit_length() - 1, profile.smo_items)


def pairs(profile: Profile, working_set: int, constraint: Constraint = Constraint.BIAS) -> int:
    """Return how many pairs of coefficients an SMO iteration changes at most, for ``working_set`` rows."""
    one = constraint in (Constraint.SPLIT, Constraint.COUPLED)
    items = subproblem_items(profile, working_set)
    return 1 if one else max(1, min(profile.pairs, working_set // PART, items // LEAST_ITEMS))


def subproblem(
    profile: Profile, dtype: str, working_set: int, constraint: Constraint, rows: RowSource | None = None
) -> Variant:
    """Return the program that solves the dual over a working set of ``working_set`` rows.

    rows: OpenCL text that computes a row of Q, the kernel matrix among the working set, when the program needs the row.
        None if the program gets all of Q. ``rows`` may be given only if ``profile.style`` is "simd" (on CPUs) and
        ``constraint`` is BIAS or NONE.
    """
    items = subproblem_items(profile, working_set)
    reductions = ("fold",) if profile.style == "simd" else ("argmin", "least")
    options = [*record.options(profile, dtype), f"-DWG={items}"]
    options += [f"-DEACH={-(-working_set // items)}"] * (items > 1)
    options += [f"-DPAIRS={pairs(profile, working_set, constraint)}"] * (items > 1)
    options += ["-DNO_BIAS"] * (constraint is Constraint.NONE) + ["-DSPLIT"] * (constraint is Constraint.SPLIT)
    names = [f"subproblem_{profile.style}"]
    if constraint is Constraint.COUPLED:
        names = ["row_threshold", f"coupled_{profile.style}"]
    label, text = f"subproblem {constraint.name.lower()} {dtype}", _cl(*reductions, *names)
    if rows:
        label, text = f"{rows.name} {label}", rows.text + text.removeprefix(sources.cl())
        options += ["-DROWS", *rows.options]
    return Variant(label, text, tuple(options), "subproblem")


def selection(profile: Profile, dtype: str, constraint: Constraint) -> Variant:
    """Return an OpenCL program. Some of its kernels choose the rows of working sets.

    Other kernels choose the slots of the row cache in which rows of the kernel matrix K are stored.
    """
    options = [*record.options(profile, dtype), f"-DWG={profile.group}", f"-DBINS={BINS}"]
    options += ["-DNO_BIAS"] * (not constraint.has_offset)
    options += ["-DSPLIT"] * (constraint is Constraint.SPLIT)
    names = ("extremes", "count", "rowcache", *["coupled"] * (constraint is Constraint.COUPLED))
    text = _cl(*["argmin"] * (profile.style == "workgroup"), *names)
    return Variant(f"{', '.join(names)} {constraint.name.lower()} {dtype}", text, tuple(options), "extremes")


# RESPOND is the number of SIMD vectors of gradients that one work-item of respond.cl computes on a CPU.
# RESPOND must equal the macro VECTORS in respond.cl.
RESPOND = 4


def respond(profile: Profile, dtype: str) -> Variant:
    """Return the OpenCL program that computes gradients f = K b + q of many small problems.

    Each problem has its own kernel matrix K, coefficients b and linear term q.
    """
    return Variant(f"respond {dtype}", sources.cl("solvers/respond"), (*record.options(profile, dtype),), "respond")


SQUARE = 16  # mirror.cl copies blocks of SQUARE x SQUARE values; must equal SIDE in mirror.cl


def mirroring(profile: Profile, dtype: str) -> Variant:
    """Return the program that completes a kernel matrix by symmetry (:func:`mirror`)."""
    return Variant(f"mirror {dtype}", sources.cl("solvers/mirror"), (*record.options(profile, dtype),), "mirror")


def mirror(stream: Stream, dtype: str, matrices: int = 1) -> Callable[[int, range, Buffer], None]:
    """Return a function that completes a kernel matrix Q (W, W) among the rows of a working set, by symmetry.

    The arguments of the function are W, ``new`` and Q. The columns Q[:, new] have been computed, except for some values
    Q[k, v] with k < v and k in ``new``. The function copies the missing values, and sets Q[new, :] to the transpose of
    Q[:, new]. ``new`` begins and ends at multiples of SQUARE. The buffer Q may hold several such ``matrices``, one
    after another.
    """
    kernel, simd = stream.variant(mirroring(stream.profile, dtype)), stream.profile.style == "simd"
    side, square = (SQUARE, None) if simd else (1, (SQUARE, SQUARE, 1))
    return lambda W, new, Q: kernel((W // side, len(new) // side, matrices), square, W, new.start, Q)


def max_working_set(stream: Stream) -> float:
    """Return the largest number of rows of a working set whose SMO state fits in the device's local memory."""
    return stream.local_memory // VECTOR_STATE if stream.profile.style == "simd" else np.inf


class Limits(NamedTuple):
    """Limit the solve over a working set.

    Attributes
    ----------
    tol
        KKT violation at which the solve ends.
    shrink
        the solve also ends when the KKT violation has fallen to ``shrink`` times its first value.
    steps
        largest number of SMO iterations over this working set.
    budget
        largest number of SMO iterations over all working sets of the problem together.
    """

    tol: np.float32
    shrink: np.float32
    steps: int
    budget: np.int64

    @classmethod
    def of(cls, tol: float, max_iter: int, W: int) -> Self:
        """Return the limits of the solve over one working set of W rows.

        tol: KKT violation at which the solve of the whole problem ends.
        max_iter: largest number of SMO iterations for the whole problem, -1 for no limit.
        """
        budget = np.int64(max_iter if max_iter >= 0 else 2**62)
        return cls(np.float32(0.5 * tol), np.float32(SHRINK), MAX_STEPS * W, budget)


class SmoKernel:
    """Run SMO iterations on working sets of up to W rows, by an OpenCL kernel of subproblem_*.cl."""

    def __init__(
        self, stream: Stream, dtype: str, W: int, constraint: Constraint, rows: RowSource | None = None
    ) -> None:
        self._items, self._W = subproblem_items(stream.profile, W), W
        self._kernel = stream.variant(subproblem(stream.profile, dtype, W, constraint, rows))

    def __call__(
        self, sets: int, n: Any, ws: Buffer, Q: Buffer, state: Any, limits: Limits, rows: Any = (), memory: Any = None
    ) -> None:
        """Launch the OpenCL kernel that makes SMO iterations, on several working sets at the same time.

        sets: number of working sets.
        n: number of rows of the problem. For Crammer and Singer's multiclass SVM, the pair (rows, classes).
        ws: buffer with the row numbers of the working sets.
        Q: buffer for the kernel matrix of each working set's rows.
        state: buffers with gradients, coefficients, bounds, epsilon, changes of coefficients and counters.
        limits: conditions on which the iterations end (:class:`Limits`).
        rows: empty if Q already has all kernel values. Otherwise the values of the arguments from which the OpenCL
            kernel computes a row of Q when an iteration needs it.
        memory: scratch memory of the OpenCL kernel, by default local memory.
        """
        memory = memory or local(VECTOR_STATE * self._W if self._items == 1 else 8)
        self._kernel((self._items * sets,), (self._items,), n, self._W, ws, Q, state, limits, memory, rows)


class View(NamedTuple):
    """Hold the device buffers from which a working set is chosen.

    f, b, lo, hi: gradients, coefficients, lower and upper bounds, each (problems, n).
    epsilon: a single number, the factor of |b| in the dual.
    """

    f: Buffer
    b: Buffer
    lo: Buffer
    hi: Buffer
    epsilon: Buffer


class State:
    """Hold the bounds, linear terms q, gradients f and coefficients b of P problems over n rows on the device.

    n counts padding rows too. Each array has P x n numbers of 8 bytes: float64 numbers, or pairs of float32 numbers if
    the device has no double precision.
    """

    def __init__(self, stream: Stream, gram: Operator, problems: int) -> None:
        self.stream, self.gram, self.n, self.P = stream, gram, gram.rows.n_pad, problems
        lo, hi, self.q, self.f, self.b = (stream.buffer(8 * problems * self.n) for _ in range(5))
        self.view = View(self.f, self.b, lo, hi, stream.buffer(8))

    def load(self, problem: Problem, start: Vector, known_gradient: tuple[Vector, Vector] | None) -> Vector:
        """Load ``problem``, its coefficients ``start``, and known gradients to the device.

        The known gradients f are the gradients at coefficients b near ``start``. Return the difference d = start - b.
        The caller must add K d to the loaded gradients f, where K is the kernel matrix. The gradients at ``start`` are
        f + K d.

        start: coefficients in the caller's order of rows, (problems, rows).
        known_gradient: the pair (b, f). None means that b is 0, and that f is the linear term of ``problem``.
        """
        lo, hi, rounded_q = map(self.stream.round_wide, (problem.lo, problem.hi, problem.q))
        self._rounded = replace(problem, lo=lo, hi=hi, q=rounded_q, start=None)  # numbers rounded as on the device
        known_b, f = known_gradient or (0, problem.q)
        arrays = map(self.padded, (f, start, problem.lo, problem.hi, problem.q))
        for buffer, array in zip((*self.view[:4], self.q), arrays, strict=True):
            self.stream.write_wide(buffer, array)
        self.stream.write_wide(self.view.epsilon, np.array([problem.epsilon]))
        return start - known_b

    def padded(self, values: Vector) -> Vector:
        """Return ``values`` in the device's order of rows, with 0 for padding rows.

        values: numbers in the caller's order of rows, (problems, rows).
        """
        padded = np.zeros((self.P, self.n))
        padded[:, self.gram.rows.position] = values
        return padded

    def replace(self, f: Vector) -> None:
        """Replace the gradients by f (problems, rows), in the caller's order of rows."""
        self.stream.write_wide(self.f, self.padded(f))

    def coefficients(self) -> Vector:
        """Return the coefficients of all problems, (problems, rows), in the caller's order of rows."""
        return self.stream.read_wide(self.b, (self.P, self.n))[:, self.gram.rows.position]

    def gradients(self) -> Vector:
        """Return the gradients of all problems, (problems, rows), in the caller's order of rows."""
        return self.stream.read_wide(self.f, (self.P, self.n))[:, self.gram.rows.position]

    def now(self) -> tuple[Problem, Vector, Vector]:
        """Return a :class:`Problem`, the coefficients b and the gradients, in the caller's order of rows.

        The Problem holds one or more dual problems over the same rows. The coefficients are an array (problems, rows),
        and so are the gradients. The bounds and the linear terms in the Problem are rounded as on the device, which
        stores them as doubles or as pairs of floats.
        """
        f = self.gradients()
        certificate.finite(f, self.gram.kernel)
        return self._rounded, self.coefficients(), f

    def respond(self, b: Vector, panel: Panel) -> None:
        """Add the product K b to the gradients, where K is the kernel matrix.

        b: numbers in the caller's order of rows, (problems, rows).
        panel: buffer for the training rows that have a coefficient b != 0 in any problem. If the buffer is too small
            for all of these rows, the method may add K b in several parts. Each part has the terms of some rows.
        """
        s, gram, support = self.stream, self.gram, np.flatnonzero(b.any(axis=0))
        max_vectors = (s.limit - s.allocated) // (2 * (8 * self.P + 4)) if gram.whole else 0
        capacity = max(panel.capacity, min(max_vectors, len(support)))
        for first in range(0, len(support), capacity):
            some = support[first : first + capacity]
            weights = np.zeros((self.P, capacity))
            weights[:, : len(some)] = b[:, some]
            at, count = s.upload(gram.rows.position[some]), s.upload(np.array([len(some)], np.int32))
            D = s.wide(weights)
            gram.gather(panel, at, count)
            gram.accumulate(panel, count, None, Update(self.P, self.n, self.f, D, capacity))
            s.finish()
            s.free(at, count, D)


def _chunks(profile: Profile, n: int) -> int:
    # A chunk of rows has at least ``least`` rows, because each chunk needs memory for a histogram of BINS bins.
    least = BINS if profile.style == "simd" else max(64, 2 * profile.group)
    return max(1, min(profile.chunks, n // least))


class Selection:
    """Choose a working set of W rows from n rows. Call :meth:`clear` first.

    The OpenCL kernels scan the n rows in chunks, one for each work-group. A chunk is a range of consecutive rows.

    Attributes
    ----------
    numbers
        device buffer with three numbers for each chunk and each group of rows (:meth:`read_extremes`): the smallest
        derivative of the dual by a coefficient that can rise, the largest derivative by a coefficient that can fall,
        and the sum of the derivatives by free coefficients. A coefficient is free if it can rise and fall, and if the
        dual is differentiable at its value.
    places
        device buffer with three integers for each chunk and each group of rows: the row of the smallest derivative, the
        row of the largest derivative, and the number of free coefficients.
    counters
        device buffer with four integers that OpenCL kernels count during the solve, such as the number of SMO
        iterations (:meth:`KernelRows.counters`).
    ws
        row numbers of the working set, -1 for no row. The buffer has room for ``stride`` row numbers, and W are used.
    """

    def __init__(self, gram: Operator, constraint: Constraint, W: int, stride: int | None = None) -> None:
        stream, n = gram.stream, gram.rows.n_pad
        profile = stream.profile
        self.stream, self.n, self.W, self.stride = stream, n, W, stride or W
        self._directions = 2 if constraint.has_offset else 1
        self.chunks = _chunks(profile, n)
        self.chunk = -(-n // (self.chunks * WHOLE)) * WHOLE
        self.in_set, self.ws = stream.buffer(n), stream.buffer(4 * self.stride)
        self._counts = stream.buffer(4 * 2 * BINS * self.chunks), stream.buffer(64)
        shape = self.chunks, constraint.groups, 4
        initial = stream.as_wide(np.zeros(shape)), np.zeros(shape, np.int32), np.zeros(4, np.int64)
        self._extremes = join_arrays(stream, initial)
        self.numbers, self.places, self.counters = self._extremes.each
        self.program = selection(profile, gram.rows.dtype, constraint)
        names = "extremes", "histogram", "collect", "objective"
        self._k = {name: stream.variant(self.program, name) for name in names}
        self._sums = stream.zeros(8 * 3 * self.chunks)

    @staticmethod
    def nbytes(profile: Profile, n: int, W: int) -> int:
        """Return the approximate bytes on the device that the choice of a working set of W rows from n rows needs."""
        return n + 4 * W + 8 * BINS * _chunks(profile, n)

    def clear(self) -> None:
        """Empty the working set. This is needed at the start, and after an interrupted outer iteration."""
        self.stream.clear(self.in_set, self.n)
        self.stream.write(self.ws, np.full(self.stride, -1, np.int32))

    def over_rows(self, kernel: Any, *arguments: Any) -> None:
        """Launch an OpenCL kernel over the n rows, with a work-group for each chunk of consecutive rows."""
        group = self.stream.profile.group
        kernel((group * self.chunks,), (group,), self.n, self.chunk, *arguments)

    def find_extremes(self, view: View) -> None:
        """Find the smallest and largest derivative of the dual, and add up the derivatives for free coefficients.

        The smallest is sought among coefficients that can rise, the largest among coefficients that can fall. Each
        chunk of rows has results of its own, which stay in buffers on the device (:meth:`read_extremes`).

        view: buffers with the gradients and coefficients of all rows.
        """
        self.over_rows(self._k["extremes"], view, self.numbers, self.places)

    def sums(self, *arguments: Any, kernel: Any = None) -> Vector:
        """Return three sums over all rows for the objectives: quadratic terms, linear terms and losses.

        arguments: inputs of the OpenCL kernel.
        kernel: OpenCL kernel that computes the sums, by default "objective" of extremes.cl, which has the formulas.
        """
        self.over_rows(kernel or self._k["objective"], *arguments, self._sums)
        return np.asarray(self.stream.read_wide(self._sums, (self.chunks, 3)).sum(axis=0))

    def merge_extremes(self, least: Vector, most: Vector) -> None:
        """Merge extreme derivatives of the dual for rows on other devices into the extreme derivatives on this device.

        Afterwards, :meth:`choose` compares rows on this device with the extremes over all devices, and so finds the
        rows that violate the optimality conditions.

        A group is a set of rows. In nu-SVC and nu-SVR there are two groups, and the coefficients of each group have a
        fixed sum. In other problems, all rows are one group. Both arguments have one number for each group.

        least: smallest derivative by a coefficient that can rise, over the rows on other devices, (groups,).
        most: largest derivative by a coefficient that can fall, over the rows on other devices, (groups,).
        """
        numbers, places, counters = self.read_extremes()
        lower, higher = least < numbers[0, :, 0], most > numbers[0, :, 1]
        numbers[0, lower, 0], numbers[0, higher, 1] = least[lower], most[higher]
        places[0, lower, 0] = places[0, higher, 1] = np.iinfo(np.int32).max  # int32.max: the row is on another device
        self._extremes.write(self.stream, (self.stream.as_wide(numbers), places, counters))

    def choose(self, view: View, new: range) -> None:
        """Choose the rows at the places ``new`` of the working set, in two passes over n rows (count.cl).

        All other rows of the working set stay.

        Call :meth:`find_extremes` before, with the same gradients and coefficients in ``view``.
        """
        quota, extremes = len(new) // self._directions, (self.numbers, self.places)
        self.over_rows(self._k["histogram"], view, self.in_set, extremes, self._counts)
        self.over_rows(self._k["collect"], view, self.in_set, self._counts, quota, new.start, self.ws)

    def read_extremes(self) -> tuple[Vector, NDArray[np.int32], NDArray[np.int64]]:
        """Read two arrays with results for each chunk of rows, and an array with counters of the solve.

        A chunk is a range of consecutive rows. A group is a set of rows. In nu-SVC and nu-SVR there are two groups, and
        the coefficients of each group have a fixed sum. In other problems, all rows are one group. The derivatives are
        derivatives of the dual by a coefficient. A coefficient is free if it can rise and fall, and if the dual is
        differentiable at its value.

        The first array (chunks, groups, 4) has the smallest derivative by a coefficient that can rise, the largest
        derivative by a coefficient that can fall, the sum of the derivatives by free coefficients, and an unused
        number. The second array (chunks, groups, 4) has the row of the smallest derivative, the row of the largest
        derivative, the number of free coefficients, and an unused number. The third array (4,) has the counters, such
        as the number of SMO iterations (:meth:`KernelRows.counters`).
        """
        numbers, places, counters = self._extremes.read(self.stream)
        return self.stream.narrow(numbers), places, counters

    def optimality(self) -> tuple[tuple[Vector, Vector, NDArray[Any], Vector], NDArray[np.int64]]:
        """Read four arrays (groups,) about the optimality of the solve, and its counters (:meth:`KernelRows.counters`).

        A group is a set of rows. In nu-SVC and nu-SVR there are two groups, and the coefficients of each group have a
        fixed sum. In other problems, all rows are one group. Each array has one number for each group. The first array
        has the smallest derivative of the dual by a coefficient that can rise. The second array has the largest
        derivative of the dual by a coefficient that can fall. The third array has the number of free coefficients: a
        coefficient is free if it can rise and fall, and if the dual is differentiable at its value. The fourth array
        has the sum of the derivatives by free coefficients.
        """
        numbers, places, counters = self.read_extremes()
        least, most = numbers[..., 0].min(axis=0), numbers[..., 1].max(axis=0)
        return (least, most, places[..., 2].sum(axis=0), numbers[..., 2].sum(axis=0)), counters
