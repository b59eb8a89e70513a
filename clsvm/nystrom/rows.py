"""Compute the sums over the rows X of a Nyström fit, on the devices that store the rows.

K(X, C) are the kernel values between the rows and the m inducing points C. The decision values of the rows are
f = K(X, C) alpha + offset, for the coefficients alpha. A block of rows (:class:`RowBlock`) holds f for its rows, and
the change of f along a step of the solver. During a solve, a block returns only sums over its rows: losses, gradients
and products with the Hessian. The sums are small, so a block can be on any device or computer. :class:`RowOperator`
adds the sums of all blocks for the solver, in the order of the blocks.
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
from clsvm.distribute import Lost, Parts, call_one, replayed
from clsvm.gram.cross import Cross
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel
from clsvm.losses import Loss
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
# For each output, the largest |target - offset| counts as at least MIN_DEVIATION * the largest |target| or |offset|.
MIN_DEVIATION = 1e3 * float(np.finfo(np.float64).eps)
MAX_BLOCKS, MIN_ROWS = 16, 1024  # fits on a list of devices divide the rows into at most 16 blocks of 1024 rows or more


@dataclass(frozen=True)
class Task:
    """Hold the objective of a solve: a loss with targets and weights, and a penalty.

    Attributes
    ----------
    loss
        the loss.
    y
        targets (k, n) of k outputs and n rows.
    weights
        weights (n,), or (k, n) if each output has its own weights. A loss that couples the outputs, such as softmax,
        needs weights (n,).
    offset
        constant part (k,) of the decision values f.
    penalty
        lambda in the objective: weighted mean of the loss + (lambda / 2) alpha' K alpha. Here K is the kernel matrix
        of the inducing points, and alpha are their coefficients.
    largest
        for each output, (k,), the largest |target - offset| over all rows of the fit with a positive weight.
        :func:`deviation` computes it.
    """

    loss: Loss
    y: Vector
    weights: Vector
    offset: Vector
    penalty: float
    largest: Vector

    @property
    def units(self) -> Vector:
        """Return the unit of each output, (k,): the power of 2 by which the solve divides targets and coefficients.

        The division by units prevents overflow and underflow.
        """
        return self.loss.units(self.largest)

    def in_units(self) -> Task:
        """Return a copy of the task in which each output's targets and offset are divided by the output's unit.

        The unit is a power of 2 (:attr:`units`). The division prevents overflow and underflow. The loss of the copy is
        a function of targets and decision values that are divided by the unit.
        """
        units, loss = self.units, self.loss.in_units(self.units)
        y, offset, largest = self.y / units[:, None], self.offset / units, self.largest / units
        return replace(self, loss=loss, y=y, offset=offset, largest=largest)

    @property
    def total(self) -> Vector:
        """Return the sum of the weights, (1,), or (k, 1) if each output has its own weights."""
        return np.asarray(self.weights.sum(axis=-1, keepdims=True))

    def subset(self, rows: slice) -> Task:
        """Return a copy of this objective (loss, penalty) with the targets and weights of only the given ``rows``."""
        return replace(self, y=self.y[:, rows], weights=self.weights[..., rows])


def deviation(y: Vector, offset: Vector) -> Vector:
    """Return the largest |y - offset| of each output, (k,).

    The result is at least MIN_DEVIATION times the largest |y| or |offset| of the output.

    y: targets (k, n) of k outputs.
    offset: constant part (k,) of the decision values.
    """
    y = np.concatenate([y, offset[:, None]], axis=1)
    return np.maximum(np.abs(y - offset[:, None]).max(axis=1), np.abs(y).max(axis=1) * MIN_DEVIATION)


class Curvature(NamedTuple):
    """Summarise the second derivatives of the loss, from which the preconditioner is made.

    w is the weight of a row divided by the sum of the weights. For a row and an output, D is w times the second
    derivative. For the softmax loss with class probabilities p, D is w p (1 - p). mean(D) is the mean of D over the
    outputs. The sampled rows are the training rows from which the preconditioner is made.

    Attributes
    ----------
    total
        sum of mean(D) over all rows.
    sampled
        mean(D) of each sampled row.
    least
        for each output, (k,), the minimum of 1 and of D / mean(D) over the sampled rows. For the softmax loss, one
        number (1,): the minimum of 1 and of w min(p) / mean(D) over the sampled rows. Here min(p) is the smallest
        class probability of the row. If the preconditioner is made from inducing points that are not training rows,
        ``sampled`` is empty and ``least`` is 0.
    """

    total: float
    sampled: Vector
    least: Vector


class InducingPoints(NamedTuple):
    """Hold m inducing points, and the settings of products with kernel values between rows X and these points.

    Attributes
    ----------
    rows
        the inducing points (m, d).
    kernel
        kernel function.
    plan
        how the device stores the rows X: the format, such as dense or CSR, and the vector subtracted from each row.
    dtype
        dtype of the products.
    k
        number of outputs.
    finest
        most precise dtype of the devices.
    """

    rows: Data
    kernel: Kernel
    plan: Plan
    dtype: str
    k: int
    finest: str


class RowBlock:
    """Hold rows X on one device, and compute the sums over these rows that a solve needs.

    A :class:`Task` is the objective of one solve. :meth:`begin_task` begins the next task on the same rows. The other
    methods are called by methods of :class:`RowOperator` with the same names, whose docstrings say what is computed.
    K(X, C) are the kernel values between the rows X and the inducing points C.

    Parameters
    ----------
    cross
        object that computes products with K(X, C).
    more_precise
        function without arguments, which returns an object for products with K(X, C) in the most precise dtype of the
        devices. The argument ``more_precise`` is None if ``cross`` already computes in this dtype.
    task
        default task of the block: :meth:`begin_task` begins this task if it is called with ``task=None``.

    Attributes
    ----------
    cross
        object that computes products with K(X, C).
    k
        number of outputs.
    n
        number of rows.
    """

    def __init__(self, cross: Cross, more_precise: Callable[[], Cross] | None = None, task: Task | None = None) -> None:
        self.cross, self._make_more_precise, self._local_task = cross, more_precise, task
        self.k, self.n = cross.k, cross.n
        self._more_precise: Cross | None = None

    @classmethod
    def built(cls, stream: Stream, X: Data, points: InducingPoints, task: Task | None = None) -> RowBlock:
        """Copy rows X (n, d) to the stream's device, in the storage format ``points.plan``. Return the block of rows.

        points: the inducing points, and the settings of products with kernel values between rows and inducing points.
        task: default task of the block. A later call of :meth:`begin_task` with ``task=None`` begins this task.
        """
        laid_out = partial(Cross, stream, X, points.rows, points.kernel, points.plan)
        # A solve needs few products in the most precise dtype, so these products do not store the kernel values.
        more_precise = None if points.dtype == points.finest else partial(laid_out, points.finest, points.k, keep=False)
        return cls(laid_out(points.dtype, points.k), more_precise, task)

    def begin_task(self, sample: NDArray[np.intp] | None, total: Vector, task: Task | None) -> None:
        """Begin a solve of a task with all coefficients 0, so that all decision values equal the task's offset.

        The offset is the constant part of the decision values.

        sample: indices (s,), counted from this block's first row, of the rows from which the preconditioner is made.
        None if the preconditioner is made from inducing points that are not training rows.
        total: sum of the weights over the rows of all blocks.
        task: loss, targets, weights and penalty for this block's rows. None for the task that the constructor got.
        """
        task = task or self._local_task
        assert task is not None
        self._task, self._sample, self._gradient_products = task.in_units(), sample, self.cross
        self._loss, self._shares = self._task.loss, task.weights / total
        offset = self._task.offset[:, None]
        # If the loss depends only on decision value - target, subtract the offset from both to lessen rounding errors.
        self._shift = offset if self._loss.numbers else np.zeros_like(offset)
        self._y, self._offset = self._task.y - self._shift, offset - self._shift
        self._f = np.broadcast_to(self._offset, self._y.shape).astype(np.float64)
        self._df = np.empty(0)

    @property
    def passes(self) -> int:
        refined = self._gradient_products is not self.cross
        return self.cross.passes + (self._gradient_products.passes if refined else 0)

    @property
    def dtype(self) -> str:
        return self._gradient_products.dtype

    def refine(self) -> bool:
        if self._make_more_precise is None:
            return False
        self._more_precise = self._more_precise or self._make_more_precise()
        self._gradient_products = self._more_precise
        return True

    def set_alpha(self, alpha: Vector) -> None:
        self._f = self._gradient_products.forward(alpha) + self._offset

    def set_change(self, change: Vector) -> None:
        self._df = self._gradient_products.forward(change)

    def take_step(self, s: Vector) -> None:
        self._f = self._f + s * self._df

    def losses(self, s: Vector | None = None) -> Vector:
        f = self._f if s is None else self._f + s * self._df
        return np.asarray((self._shares * self._loss.value(f, self._y)).sum(axis=1))

    def slope(self) -> Vector:
        return self._gradient_products.back(self._shares * self._loss.derivative(self._f, self._y))

    def rounding(self) -> Vector:
        derivative = self._loss.derivative(self._f, self._y)
        terms = np.abs(derivative) + np.abs(self._task.y) + np.abs(self._f + self._shift)
        return np.asarray((self._shares * terms).sum(axis=1, keepdims=True))

    def weigh(self) -> Curvature:
        loss, shares = self._loss, self._shares
        second = loss.second(self._f, self._y)
        if loss.coupled:
            self.cross.set_weights(shares, second)
        else:
            self.cross.set_weights(shares if loss.quadratic else shares * second)
        D = ((second * (1 - second) if loss.coupled else second) * shares).mean(axis=0)
        if self._sample is None:
            return Curvature(float(D.sum()), D[:0], np.zeros(1 if loss.coupled else self.k))
        derivatives = (second.min(axis=0, keepdims=True) if loss.coupled else second) * shares
        sampled, derivatives = D[self._sample], derivatives[:, self._sample]
        ratio = np.divide(derivatives, sampled, out=np.ones_like(derivatives), where=sampled > 0)
        return Curvature(float(D.sum()), sampled, ratio.min(axis=1, initial=1.0))

    def hessian(self, V: Vector) -> Vector:
        return self.cross.forward_back(V)

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return kernel values (s, m), on the host, between s rows of the block and the m inducing points.

        rows: indices (s,) of the rows, counted from the block's first row.
        """
        return self.cross.values(rows)

    def decision_values(self, alpha: Vector) -> Vector:
        return self._gradient_products.forward(alpha) + self._task.offset[:, None]


class RowOperator:
    """Send the solver's requests to all blocks of rows, and add the sums that the blocks return.

    Sums are added in the order of the blocks. The bits of sums therefore do not depend on which device has which block.
    If a block is lost with its worker, a new copy of the block gets the task and the current coefficients. During a
    solve, targets, decision values f and coefficients are divided by ``units``.

    The constructor's argument ``task_arguments`` is a function: task_arguments(i) returns the arguments of
    :meth:`RowBlock.begin_task` for block i.

    Attributes
    ----------
    task
        offset, penalty and loss of the task, without its targets and weights. The offset is divided by ``units``.
    units
        powers of 2, (k,), by which the numbers of each output are divided (:attr:`Task.units`).
    k
        number of outputs.
    m
        number of inducing points.
    n
        number of rows.
    dtype
        dtype of the kernel values that gradients are computed from.
    refined
        whether the solve has changed to the most precise dtype for gradients.
    """

    def __init__(self, blocks: Parts, task: Task, m: int, task_arguments: Callable[[int], tuple[Any, ...]]) -> None:
        self._blocks, self._task_arguments = blocks, task_arguments
        self.task, self.units = task.subset(slice(0, 0)).in_units(), task.units
        self.k, self.m, self.n = len(task.offset), m, sum(blocks.sizes)
        self._alpha: Vector | None = None  # the blocks hold f = K(X, C) alpha + offset for this alpha; None means 0
        self._change: Vector | None = None
        self.refined = self._weighed = False
        replayed(blocks.call("begin_task", [task_arguments(i) for i in range(len(blocks.sizes))]), self._restore)
        self.dtype = str(self._call("dtype")[0])

    def _call(self, name: str, *given: Any) -> list[Any]:
        replies = self._blocks.call(name, [given] * len(self._blocks.sizes))
        return replayed(replies, lambda i: self._restore(i, (name, *given)))

    def _restore(self, i: int, *last: tuple[Any, ...]) -> Any:
        """Restore the :class:`RowBlock` i, which was lost with its worker. Then send the requests ``last`` to block i.

        This method sends earlier requests again, until a new copy of block i has the state that the lost block had.
        Each item of ``last`` has the name of a method of :class:`RowBlock`, and then the method's arguments. Return the
        reply to the final request, or :class:`Lost` if the new copy is lost too.
        """
        reply = None
        for request in (("begin_task", *self._task_arguments(i)), *self._history(), *last):
            reply = call_one(self._blocks, i, *request)
            if isinstance(reply, Lost):
                break
        return reply

    def _history(self) -> Iterator[tuple[Any, ...]]:
        """Yield the requests that bring a new copy of a lost block of rows to the state of the lost block.

        A block is lost if its worker is lost. Before these requests, the caller must send the request "begin_task" to
        the new copy. This method does not yield "begin_task".
        """
        if self.refined:
            yield ("refine",)
        if self._alpha is not None:
            yield "set_alpha", self._alpha
        if self._weighed:
            yield ("weigh",)
        if self._change is not None:
            yield "set_change", self._change

    def _call_and_add(self, name: str, *given: Any) -> Vector:
        return np.asarray(reduce(np.add, self._call(name, *given)))

    @property
    def passes(self) -> int:
        """Return the number of passes over the rows so far."""
        return int(max(self._call("passes")))

    def refine(self) -> bool:
        """Change to the most precise dtype for gradients. Return False if no dtype is more precise."""
        self.refined = all(self._call("refine"))
        self.dtype = str(self._call("dtype")[0])
        return self.refined

    def set_alpha(self, alpha: Vector) -> None:
        """Set the decision values f = K(X, C) alpha + offset of all rows, for coefficients alpha (k, m) of k outputs.

        K(X, C) are the kernel values between the rows and the m inducing points.
        """
        self._call("set_alpha", alpha)
        self._alpha, self._change = alpha, None

    def set_change(self, change: Vector) -> None:
        """Compute how a change of the coefficients, (k, m) for k outputs, changes the decision values of all rows.

        The result stays on the devices.
        """
        self._call("set_change", change)
        self._change = change

    def take_step(self, s: Vector) -> None:
        """Replace the decision values f by f + s * df, where df is the change of f that :meth:`set_change` computed.

        s (k, 1) has a step length for each of the k outputs.
        """
        assert self._change is not None
        self._call("take_step", s)
        change = s * self._change
        self._alpha, self._change = change if self._alpha is None else self._alpha + change, None

    def losses(self, s: Vector | None = None) -> Vector:
        """Return the mean loss of each output, (k,), or of all outputs, (1,), if the loss couples the outputs.

        The mean loss is sum_i w_i l(f_i), for the loss l, the decision values f_i of the rows, and row weights w_i with
        the sum 1.

        s: step lengths (k, 1), or None for 0. The loss is evaluated at f + s * change, for the change of f that
        :meth:`set_change` computed.
        """
        return self._call_and_add("losses", s)

    def slope(self) -> Vector:
        """Return the gradient of the mean loss with respect to the coefficients, (k, m): the product (w * dl/df) K.

        dl/df (k, n) are the derivatives of the loss l with respect to the decision values f, for k outputs and n rows.
        The weights w of the rows have the sum 1. K (n, m) are the kernel values between rows and inducing points.
        """
        return self._call_and_add("slope")

    def rounding(self) -> Vector:
        """Return the weighted mean of |dl/df| + |y| + |f| over all rows, (k, 1).

        l is the loss, y are the targets, and f are the decision values. The solver derives a bound of the rounding
        error of :meth:`slope` from this mean.
        """
        return self._call_and_add("rounding")

    def weigh(self) -> Curvature:
        """Evaluate the loss's second derivatives at the current decision values, for later calls of :meth:`hessian`.

        Return a summary of the second derivatives (:class:`Curvature`), from which the preconditioner is made.
        """
        found = self._call("weigh")
        self._weighed = True
        least = np.minimum.reduce([one.least for one in found])
        return Curvature(sum(one.total for one in found), np.concatenate([one.sampled for one in found]), least)

    def hessian(self, V: Vector) -> Vector:
        """Return the product of the mean loss's Hessian and V (k, m), as an array (k, m).

        A row v of V has the coefficients of one of k outputs. Its product is K^T (w * l2 * (K v)):

        - K (n, m) are the kernel values between rows and inducing points;
        - w (n,) are the weights of the rows, with the sum 1;
        - l2 (n,) are the second derivatives of the loss with respect to the decision values, at the last call of
          :meth:`weigh`.

        If the loss couples the outputs, l2 is a matrix (k, k) for each row. It multiplies the k values of
        K v for the row, one for each output.
        """
        return self._call_and_add("hessian", V)

    def decision_values(self, alpha: Vector) -> Vector:
        """Return the decision values (k, n) of all rows for the coefficients alpha (k, m), in the dtype of gradients.

        alpha and the result are on the scale of the targets y that the user gave. Inside the solver, the numbers of
        each output are divided by a power of 2, ``units``. This method divides alpha by ``units``, and multiplies the
        decision values by ``units``.
        """
        units = self.units[:, None]
        return np.concatenate(self._call("decision_values", alpha / units), axis=1) * units


def blocks(n: int) -> list[slice]:
    """Divide n rows into at most MAX_BLOCKS blocks of at least MIN_ROWS rows. Return the slice of rows of each block.

    The slices depend on n alone. If n is less than MIN_ROWS, one block has all rows.
    """
    ends = np.linspace(0, n, min(MAX_BLOCKS, max(1, n // MIN_ROWS)) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]
