"""The rows' side of a solve: products with K(X, C), targets, weights and f stay here, sums over rows go to the solver.

f = K(X, C) alpha + offset (k, n) is held, and K(X, C) p along a step p. What is asked are m numbers for each output, or
one, so that rows may be anywhere: those of several places add up, in the order of the rows (:class:`Several`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.cross import Cross
from clsvm.losses import Loss

Vector = NDArray[np.float64]
NEAR = 1e3 * float(np.finfo(np.float64).eps)  # of the largest target: nearer ones to the offset count as that far off
PARTS, LEAST = 16, 1024  # that rows in several places come in at most; rows of one at least


@dataclass(frozen=True)
class Task:
    """What is minimised: loss, targets y (k, n), weights (n,), offset (k,), penalty. weights (k, n) make outputs tasks
    of their own, over other rows, say, with one penalty; not of a coupled loss. largest (k,): the largest deviation of
    a target from the offset over all rows, where these are a part of them."""

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
        """The weights' sum, (1,) or (k, 1)."""
        return np.asarray(self.weights.sum(axis=-1, keepdims=True))


def deviation(y: Vector, offset: Vector) -> Vector:
    """Return the largest deviation (k,) of targets (k, n) from the offset; what rounding makes of one is no less."""
    y = np.concatenate([y, offset[:, None]], axis=1)
    return np.maximum(np.abs(y - offset[:, None]).max(axis=1), np.abs(y).max(axis=1) * NEAR)


class Curvature(NamedTuple):
    """Second derivatives D, weighed. total, sampled: the sum of the outputs' mean, and that mean at the sampled rows.
    least (k,): of each output, (1,) of a coupled loss, the least of D over that mean at the sampled rows."""

    total: float
    sampled: Vector
    least: Vector


class Side(Protocol):
    """What a solver asks, in the task's units. task: its loss, penalty, offset and largest. units (k,): the task's.
    k, m, n: outputs, centres, rows. passes: over the rows, so far. dtype: of products in gradients; refined: whether it
    was made finer."""

    task: Task
    units: Vector
    k: int
    m: int
    n: int

    @property
    def passes(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    @property
    def refined(self) -> bool: ...

    def refine(self) -> bool:
        """Take products in the finest dtype for gradients from here on; False where there is none."""

    def go(self, alpha: Vector) -> None:
        """f is that of the coefficients (k, m)."""

    def look(self, change: Vector) -> None:
        """K(X, C) of a change (k, m) of the coefficients is held beside f."""

    def step(self, s: Vector) -> None:
        """f goes s (k, 1) times along it."""

    def losses(self, s: Vector | None = None) -> Vector:
        """Sums (k,) of w l(f), (1,) of a coupled loss; s (k, 1): of f so far along."""

    def slope(self) -> Vector:
        """K' (w l'(f)), (k, m)."""

    def rounding(self) -> Vector:
        """Sums (k, 1) of what rounding may show in, of each row: derivatives, targets, f."""

    def weigh(self) -> Curvature:
        """Take second derivatives at f for :meth:`hessian`."""

    def hessian(self, V: Vector) -> Vector:
        """K' (w l''(f)) K V, (k, m) of V (k, m)."""


class Rows:
    """:class:`Side` of rows on one device. total: the weights' sum over all rows there are, these and others; sample
    (s,): which of these the preconditioner is made of, None: none of them. exact: makes products in float64."""

    def __init__(
        self,
        cross: Cross,
        task: Task,
        sample: NDArray[np.intp] | None,
        total: Vector | None = None,
        exact: Callable[[], Cross] | None = None,
    ) -> None:
        self.cross, self.task, self._sample, self._exact = cross, task.in_units(), sample, exact
        self.loss, self.units = self.task.loss, task.units
        self.k, self.m, self.n = cross.k, cross.m, cross.n
        self._of_gradients = cross
        self._shares = task.weights / (task.total if total is None else total)
        offset = self.task.offset[:, None]
        self._taken = offset if self.loss.numbers else np.zeros_like(offset)  # (of f and y: small numbers keep digits)
        self._y, self._offset = self.task.y - self._taken, offset - self._taken
        self.restart()

    def restart(self) -> None:
        """f is the offset."""
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
        if self._exact is None:
            return False
        self._of_gradients, self._exact = self._exact(), None
        return True

    def go(self, alpha: Vector) -> None:
        self._f = self._of_gradients.forward(alpha) + self._offset

    def look(self, change: Vector) -> None:
        self._along = self._of_gradients.forward(change)

    def step(self, s: Vector) -> None:
        self._f = self._f + s * self._along

    def losses(self, s: Vector | None = None) -> Vector:
        f = self._f if s is None else self._f + s * self._along
        return np.asarray((self._shares * self.loss.value(f, self._y)).sum(axis=1))

    def slope(self) -> Vector:
        return self._of_gradients.back(self._shares * self.loss.derivative(self._f, self._y))

    def rounding(self) -> Vector:
        terms = np.abs(self.loss.derivative(self._f, self._y)) + np.abs(self.task.y) + np.abs(self._f + self._taken)
        return np.asarray((self._shares * terms).sum(axis=1, keepdims=True))

    def weigh(self) -> Curvature:
        loss, shares = self.loss, self._shares
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


class Asked(Protocol):
    """What an answer will be."""

    def result(self) -> Any: ...


class Part(Protocol):
    """Some of the rows, wherever they are. n: how many."""

    @property
    def n(self) -> int: ...

    def ask(self, name: str, *given: Any) -> Asked:
        """Call a method of the :class:`Rows` there, or read what they say of themselves."""


class Several:
    """:class:`Side` of rows in several places, asked at the same time. Sums are added up in the order of the parts:
    whichever place has a part, the bits are the same."""

    def __init__(self, parts: Sequence[Part], task: Task, m: int) -> None:
        self._parts, self.task, self.units = parts, task.in_units(), task.units
        self.k, self.m, self.n = len(task.offset), m, sum(part.n for part in parts)

    def _all(self, name: str, *given: Any) -> list[Any]:
        asked = [part.ask(name, *given) for part in self._parts]
        return [one.result() for one in asked]

    def _sum(self, name: str, *given: Any) -> Vector:
        return np.asarray(reduce(np.add, self._all(name, *given)))

    @property
    def passes(self) -> int:
        return int(max(self._all("passes")))

    @property
    def dtype(self) -> str:
        return str(self._all("dtype")[0])

    @property
    def refined(self) -> bool:
        return bool(self._all("refined")[0])

    def refine(self) -> bool:
        return all(self._all("refine"))

    def go(self, alpha: Vector) -> None:
        self._all("go", alpha)

    def look(self, change: Vector) -> None:
        self._all("look", change)

    def step(self, s: Vector) -> None:
        self._all("step", s)

    def losses(self, s: Vector | None = None) -> Vector:
        return self._sum("losses", s)

    def slope(self) -> Vector:
        return self._sum("slope")

    def rounding(self) -> Vector:
        return self._sum("rounding")

    def weigh(self) -> Curvature:
        found = self._all("weigh")
        least = np.minimum.reduce([one.least for one in found])
        return Curvature(sum(one.total for one in found), np.concatenate([one.sampled for one in found]), least)

    def hessian(self, V: Vector) -> Vector:
        return self._sum("hessian", V)


def blocks(n: int) -> list[slice]:
    """The parts that n rows come in, whatever the number of places: what each sums is summed first."""
    ends = np.linspace(0, n, min(PARTS, max(1, n // LEAST)) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]


def of_part(task: Task, rows: slice) -> Task:
    """The task's targets and weights of some rows."""
    return replace(task, y=task.y[:, rows], weights=task.weights[..., rows], largest=task.deviation)


def within(places: NDArray[np.intp] | None, rows: slice) -> NDArray[np.intp] | None:
    """Those of sorted places that are among some rows, counted from the first of these."""
    if places is None:
        return None
    first, end = np.searchsorted(places, (rows.start, rows.stop))
    return places[first:end] - rows.start
