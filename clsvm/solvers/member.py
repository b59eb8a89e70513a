"""One of several problems over rows of one data set, and what its solution comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.products import Products
from clsvm.problem import Problem
from clsvm.report import relative_gap

Vector = NDArray[np.float64]
Block = Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.float64]]  # K[rows, columns] on the host
Exact = Callable[[], Products | Block]


class Checks(NamedTuple):
    """What is known of the rounding of K, and how it is seen. kernel_scale: of a value, in units of its dtype's eps.
    exact: makes the same products in float64, or blocks of K on the host. sample: such blocks, of few rows. sizes: of
    all rows, for a sample of those of large members (certificate.certified)."""

    kernel_scale: float
    exact: Exact | None = None
    sample: Block | None = None
    sizes: Vector | None = None


@dataclass(frozen=True)
class Member:
    """rows (m,) of the data set, and the problem over them (one, m rows). start: (m,) coefficients to begin with."""

    rows: NDArray[np.intp]
    problem: Problem
    start: Vector | None = None

    @property
    def beginning(self) -> Vector:
        """Where it begins, (m,): at its start, else at its problem's, else at 0."""
        if self.start is not None:
            return self.start
        return np.zeros(len(self.rows)) if self.problem.start is None else self.problem.start[0]

    def begun(self, b: Vector | None) -> Member:
        """The same from coefficients near ``b`` that keep its bounds and sums; from its own where there are none."""
        if b is None or not b.any():
            return replace(self, start=None)
        return replace(self, start=self.problem.feasible(b.reshape(1, -1))[0])


@dataclass(frozen=True)
class Outcome:
    """b (m,), rho (groups,) and what they come to; error_bound: of f, from the rounding of K, but for the exact_rows
    that can decide the violation. sure: whether the violation is within tol, whatever rounding of K hides."""

    b: Vector
    rho: Vector
    primal: float
    dual: float
    violation: float
    steps: int
    error_bound: float
    exact_rows: int
    sure: bool

    @property
    def gap(self) -> float:
        return relative_gap(self.primal, self.dual)
