"""The steps of a machine's fit and of its answers, one by one: what a search relies on that shares them among fits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.estimators.answers import Answers
from clsvm.estimators.dual import Machine
from clsvm.kernels import Kernel, Precomputed
from clsvm.parameters import Options
from clsvm.solvers.batch import Member

Vector = NDArray[np.float64]


class Steps:
    """Of one machine with its parameters. given, own: whether X holds kernel values, and whether the kernel is a
    function of the caller's."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.given, self.own = machine._given, machine._own

    def options(self) -> Options:
        """What a fit asks of the solver. Raises ValueError or TypeError for a parameter out of range."""
        self.machine._check_numbers()
        return self.machine._options()

    def rows(self, X: Any) -> Any:
        """X as a solver reads it. Raises as a fit does."""
        return self.machine._rows(X, reset=True)

    def kernel(self, rows: Any) -> Kernel:
        """The kernel function, whose gamma may be by these rows."""
        return self.machine._kernel(rows)

    def trained_on(self, rows: Any) -> tuple[Any, Kernel | Precomputed]:
        """What a solver gets: rows and a kernel function, or the kernel values of all pairs of rows."""
        return self.machine._trained_on(rows)

    def posed(self, y: Any, sample_weight: Any) -> list[Member]:
        """The problem of each machine of a fit to y (n,). Raises NotImplementedError where they share no rows."""
        return self.machine._posed(y, sample_weight)[1]

    def scaled(self, b: Vector, rho: Vector) -> tuple[Vector, Vector]:
        """Coefficients, or what is linear in them, (problems, n) and offsets (problems,) of the machine, from those of
        its problem."""
        return self.machine._scaled(b, rho)

    def answers(self, y: Any, sample_weight: Any) -> Answers:
        """How a fit to y answers from decision values."""
        return self.machine._answers(y, sample_weight)

    def decision_values(self, X: Any) -> Vector:
        """Of the machine, which is fitted."""
        return self.machine._decision_values(X)
