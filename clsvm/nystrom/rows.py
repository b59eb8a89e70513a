"""The rows of a Nyström model's solve: products with K(X, C), targets, weights and f stay with them, sums over rows go
to the solver.

f = K(X, C) alpha + offset (k, n) is kept with the rows, and K(X, C) p along a step p. The solver gets m numbers for
each output, or one, so that rows may be anywhere: :class:`RowOperator` adds up the sums of blocks in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.distribute import Lost, Parts, ask_one, replayed
from clsvm.gram.cross import Cross
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel
from clsvm.losses import Loss
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
NEAR = 1e3 * float(np.finfo(np.float64).eps)  # of the largest target: nearer ones to the offset count as that far off
PARTS, LEAST = 16, 1024  # most blocks that rows in several places come in; least rows of one


@dataclass(frozen=True)
class Task:
    """What is minimised: loss, targets y (k, n), weights (n,), offset (k,), penalty.

    weights (k, n) make outputs tasks of their own, over other rows, say, with one penalty; not of a coupled loss.
    largest (k,): the largest deviation of a target from the offset over all rows, where these are a part of them.
    """

    loss: Loss
    y: Vector
    weights: Vector
    offset: Vector
    penalty: float
    largest: Vector | None = None

    @property
    def deviation(self) -> Vector:
        """Return the largest deviation of a target from the offset (k,), over rows that weigh something."""
        if self.largest is not None:
            return self.largest
        return deviation(np.where(self.weights > 0, self.y, self.offset[:, None]), self.offset)

    @property
    def units(self) -> Vector:
        """Return the unit (k,) of each output, a power of 2, in which its targets are solved."""
        return self.loss.units(self.deviation)

    def in_units(self) -> Task:
        """Return the task with targets, offset and loss in its units, so that nothing under- or overflows."""
        units, largest = self.units, self.deviation
        y, offset = self.y / units[:, None], self.offset / units
        return replace(self, loss=self.loss.within(units), y=y, offset=offset, largest=largest / units)

    @property
    def total(self) -> Vector:
        """Return the weights' sum, (1,) or (k, 1)."""
        return np.asarray(self.weights.sum(axis=-1, keepdims=True))

    def among(self, rows: slice) -> Task:
        """Return the task with the targets and weights of some rows."""
        return replace(self, y=self.y[:, rows], weights=self.weights[..., rows], largest=self.deviation)


def deviation(y: Vector, offset: Vector) -> Vector:
    """Return the largest deviation (k,) of targets (k, n) from the offset; what rounding makes of one is no less."""
    y = np.concatenate([y, offset[:, None]], axis=1)
    return np.maximum(np.abs(y - offset[:, None]).max(axis=1), np.abs(y).max(axis=1) * NEAR)


class Curvature(NamedTuple):
    """Weighted second derivatives D.

    total, sampled: the sum of the outputs' mean, and that mean at the sampled rows. least (k,): of each output, (1,) of
    a coupled loss, the least of D over that mean at the sampled rows.
    """

    total: float
    sampled: Vector
    least: Vector


class InducingPoints(NamedTuple):
    """Rows (m, d), and what products K(X, C) with them need: the kernel function, the plan of the rows X, dtype and
    number of outputs, and the devices' finest dtype."""

    rows: Data
    kernel: Kernel
    plan: Plan
    dtype: str
    k: int
    finest: str

    def cross(self, stream: Stream, X: Data) -> Cross:
        """Lay out rows X (n, d) for products in the dtype."""
        return Cross(stream, X, self.rows, self.kernel, self.plan, self.dtype, self.k)

    def finer(self, stream: Stream, X: Data) -> Cross:
        """Lay out rows X (n, d) for products in the finest dtype, of which few are made."""
        return Cross(stream, X, self.rows, self.kernel, self.plan, self.finest, self.k, keep=False)


class RowBlock:
    """Rows on one device, for one task after another (:meth:`pose`). finer: makes products in the finest dtype; task:
    the block's own, if it has one."""

    def __init__(self, cross: Cross, finer: Callable[[], Cross] | None = None, task: Task | None = None) -> None:
        self.cross, self._finer, self._own = cross, finer, task
        self.k, self.n = cross.k, cross.n
        self._finest: Cross | None = None

    @classmethod
    def built(cls, stream: Stream, X: Data, points: InducingPoints, task: Task | None = None) -> RowBlock:
        """Lay out rows X (n, d)."""
        finer = None if points.dtype == points.finest else partial(points.finer, stream, X)
        return cls(points.cross(stream, X), finer, task)

    def pose(self, sample: NDArray[np.intp] | None, total: Vector | None = None, task: Task | None = None) -> None:
        """Begin a task, or the block's own, at f = offset.

        sample (s,): which of these rows the preconditioner is made of, None: none of them. total: the sum of weights
        over all rows, these and others.
        """
        task = task or self._own
        assert task is not None
        self._task, self._sample, self._of_gradients = task.in_units(), sample, self.cross
        self._loss, self._units = self._task.loss, task.units
        self._shares = task.weights / (task.total if total is None else total)
        offset = self._task.offset[:, None]
        # Where the loss depends on f - y, the offset is taken off both: small numbers keep digits.
        self._taken = offset if self._loss.numbers else np.zeros_like(offset)
        self._y, self._offset = self._task.y - self._taken, offset - self._taken
        self._f = np.broadcast_to(self._offset, self._y.shape).astype(np.float64)
        self._along = np.empty(0)

    @property
    def passes(self) -> int:
        return self.cross.passes + (self._of_gradients.passes if self.refined else 0)

    @property
    def dtype(self) -> str:
        return self._of_gradients.dtype

    @property
    def refined(self) -> bool:
        return self._of_gradients is not self.cross

    def refine(self) -> bool:
        if self._finer is None:
            return False
        self._finest = self._finest or self._finer()
        self._of_gradients = self._finest
        return True

    def go(self, alpha: Vector) -> None:
        self._f = self._of_gradients.forward(alpha) + self._offset

    def look(self, change: Vector) -> None:
        self._along = self._of_gradients.forward(change)

    def step(self, s: Vector) -> None:
        self._f = self._f + s * self._along

    def losses(self, s: Vector | None = None) -> Vector:
        f = self._f if s is None else self._f + s * self._along
        return np.asarray((self._shares * self._loss.value(f, self._y)).sum(axis=1))

    def slope(self) -> Vector:
        return self._of_gradients.back(self._shares * self._loss.derivative(self._f, self._y))

    def rounding(self) -> Vector:
        derivative = self._loss.derivative(self._f, self._y)
        terms = np.abs(derivative) + np.abs(self._task.y) + np.abs(self._f + self._taken)
        return np.asarray((self._shares * terms).sum(axis=1, keepdims=True))

    def weigh(self) -> Curvature:
        loss, shares = self._loss, self._shares
        second = loss.second(self._f, self._y)
        if loss.coupled:
            self.cross.weigh(shares, second)
        else:
            self.cross.weigh(shares if loss.quadratic else shares * second)
        D = ((second * (1 - second) if loss.coupled else second) * shares).mean(axis=0)
        if self._sample is None:
            return Curvature(float(D.sum()), D[:0], np.zeros(1 if loss.coupled else self.k))
        own = (second.min(axis=0, keepdims=True) if loss.coupled else second) * shares
        sampled, own = D[self._sample], own[:, self._sample]
        over = np.divide(own, sampled, out=np.ones_like(own), where=sampled > 0)
        return Curvature(float(D.sum()), sampled, over.min(axis=1, initial=1.0))

    def hessian(self, V: Vector) -> Vector:
        return self.cross.forward_back(V)

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return K (s, m) of some rows, on the host."""
        return self.cross.values(rows)

    def decision_values(self, alpha: Vector) -> Vector:
        """Return f (k, n) of coefficients in the caller's units, by products as gradients have them."""
        units = self._units[:, None]
        return self._of_gradients.forward(alpha / units) * units + self._task.offset[:, None] * units


class RowOperator:
    """All rows of a task, as the solver asks for them: in blocks at one or several places.

    Sums are added up in the order of the blocks: whichever place has a block, the bits are the same. A block that is
    lost is posed again, with the coefficients so far. Numbers are in the task's units. task: its loss, penalty, offset
    and largest; k, m, n: outputs, inducing points, rows; dtype: of products in gradients; refined: whether it was made
    finer; pose: the arguments of :meth:`RowBlock.pose` of block i.
    """

    def __init__(self, blocks: Parts, task: Task, m: int, pose: Callable[[int], tuple[Any, ...]]) -> None:
        self._blocks, self._pose = blocks, pose
        self.task, self.units = task.among(slice(0, 0)).in_units(), task.units
        self.k, self.m, self.n = len(task.offset), m, sum(blocks.sizes)
        self._alpha: Vector | None = None  # what f is of
        self._change: Vector | None = None
        self.refined = self._weighed = False
        replayed(blocks.ask("pose", [pose(i) for i in range(len(blocks.sizes))]), self._again)
        self.dtype = str(self._all("dtype")[0])

    def _all(self, name: str, *given: Any) -> list[Any]:
        answers = self._blocks.ask(name, [given] * len(self._blocks.sizes))
        return replayed(answers, lambda i: self._again(i, (name, *given)))

    def _again(self, i: int, *last: tuple[Any, ...]) -> Any:
        """Bring block i where the others are, and return its answer to the last question."""
        answer = None
        for question in (("pose", *self._pose(i)), *self._past(), *last):
            answer = ask_one(self._blocks, i, *question)
            if isinstance(answer, Lost):
                break
        return answer

    def _past(self) -> Iterator[tuple[Any, ...]]:
        """Yield the questions that lead to the state of all blocks."""
        if self.refined:
            yield ("refine",)
        if self._alpha is not None:
            yield "go", self._alpha
        if self._weighed:
            yield ("weigh",)
        if self._change is not None:
            yield "look", self._change

    def _sum(self, name: str, *given: Any) -> Vector:
        return np.asarray(reduce(np.add, self._all(name, *given)))

    @property
    def passes(self) -> int:
        """Return how many passes over the rows there were."""
        return int(max(self._all("passes")))

    def refine(self) -> bool:
        """Take products in the finest dtype for gradients from here on; False where there is none."""
        self.refined = all(self._all("refine"))
        self.dtype = str(self._all("dtype")[0])
        return self.refined

    def go(self, alpha: Vector) -> None:
        """Make f that of the coefficients (k, m)."""
        self._all("go", alpha)
        self._alpha, self._change = alpha, None

    def look(self, change: Vector) -> None:
        """Compute K(X, C) of a change (k, m) of the coefficients, beside f."""
        self._all("look", change)
        self._change = change

    def step(self, s: Vector) -> None:
        """Move f by s (k, 1) times the change."""
        assert self._change is not None
        self._all("step", s)
        moved = s * self._change
        self._alpha, self._change = moved if self._alpha is None else self._alpha + moved, None

    def losses(self, s: Vector | None = None) -> Vector:
        """Return the sums (k,) of w l(f), (1,) of a coupled loss; s (k, 1): of f moved so far along the change."""
        return self._sum("losses", s)

    def slope(self) -> Vector:
        """Return K' (w l'(f)), (k, m)."""
        return self._sum("slope")

    def rounding(self) -> Vector:
        """Return the sums (k, 1) of what rounding may show in, of each row: derivatives, targets, f."""
        return self._sum("rounding")

    def weigh(self) -> Curvature:
        """Take second derivatives at f for :meth:`hessian`."""
        found = self._all("weigh")
        self._weighed = True
        least = np.minimum.reduce([one.least for one in found])
        return Curvature(sum(one.total for one in found), np.concatenate([one.sampled for one in found]), least)

    def hessian(self, V: Vector) -> Vector:
        """Return K' (w l''(f)) K V, (k, m) of V (k, m)."""
        return self._sum("hessian", V)

    def decision_values(self, alpha: Vector) -> Vector:
        """Return f (k, n) of coefficients in the caller's units."""
        return np.concatenate(self._all("decision_values", alpha), axis=1)


def blocks(n: int) -> list[slice]:
    """Return the blocks that n rows come in, whatever the number of places."""
    ends = np.linspace(0, n, min(PARTS, max(1, n // LEAST)) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]
