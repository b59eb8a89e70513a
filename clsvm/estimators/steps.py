"""The steps of a fit and of its answers, one by one: what a search relies on that shares them among fits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier

from clsvm.estimators.answers import Answers
from clsvm.estimators.base import KernelEstimator
from clsvm.estimators.dual import Machine
from clsvm.estimators.falkon import Falkon, Posed
from clsvm.estimators.targets import classes_of
from clsvm.kernels import Kernel, Precomputed
from clsvm.nystrom.centers import Centers
from clsvm.nystrom.fit import Options as NystromOptions
from clsvm.nystrom.rows import Task
from clsvm.parameters import Options
from clsvm.problem import Subproblem
from clsvm.tasks import TASKS

Vector = NDArray[np.float64]


class Steps:
    """Of one estimator with its parameters. given, own: whether X holds kernel values, and whether the kernel is a
    function of the caller's."""

    machine: KernelEstimator

    def __init__(self, machine: KernelEstimator) -> None:
        self.machine = machine
        self.given, self.own = machine._given, machine._own

    def rows(self, X: Any) -> Any:
        """X as a solver reads it. Raises as a fit does."""
        return self.machine._rows(X, reset=True)

    def kernel(self, rows: Any) -> Kernel:
        """The kernel function, whose gamma may be by these rows."""
        return self.machine._kernel(rows)

    def targets(self, y: Any) -> Any:
        """y (n,) as all fits to it take it: labels are read once. Raises ValueError as a fit does."""
        return classes_of(y) if is_classifier(self.machine) else y

    def decision_values(self, X: Any) -> Vector:
        """Of the machine, which is fitted."""
        return self.machine._decision_values(X)

    def offsets(self) -> Vector:
        """What the decision values of the machine, which is fitted, lack of its sums of kernel values, (machines,)."""
        return -np.asarray(self.machine.intercept_)


class DualSteps(Steps):
    """Of a machine that solves dual problems."""

    machine: Machine

    def options(self) -> Options:
        """What a fit asks of the solver. Raises ValueError or TypeError for a parameter out of range."""
        self.machine._check_numbers()
        return self.machine._options()

    @property
    def copies(self) -> int:
        """How often its problem has each row."""
        return TASKS[self.machine._task].copies

    def trained_on(self, rows: Any, kernel: Any) -> tuple[Any, Kernel | Precomputed]:
        """What a solver gets: rows, each as often as the problem has it, and a kernel function, ``kernel`` where it is
        one; or the kernel values of all pairs of these rows."""
        return self.machine._trained_on(rows, kernel if isinstance(kernel, Kernel) else None)

    def answers(self, y: Any, sample_weight: Any) -> Answers:
        """How a fit to y answers from decision values."""
        return self.machine._answers(y, sample_weight)

    def posed(self, y: Any, sample_weight: Any) -> list[Subproblem]:
        """The problem of each machine of a fit to y (n,), or of one class to None and sample_weight (n,). Raises
        NotImplementedError where they share no rows."""
        return self.machine._posed(y, sample_weight)[1]

    def scaled(self, b: Vector, rho: Vector) -> tuple[Vector, Vector]:
        """Coefficients, or what is linear in them, (problems, n) and offsets (problems,) of the machine, from those of
        its problem."""
        self.machine._check_margins(rho)
        return self.machine._scaled(b, rho)


class NystromSteps(Steps):
    """Of a machine on centres."""

    machine: Falkon

    def options(self) -> NystromOptions:
        """What a fit asks of the solver. Raises ValueError or TypeError for a parameter out of range."""
        self.machine._check_numbers()
        return self.machine._options()

    def posed(self, y: Any, sample_weight: Any) -> Posed:
        """The targets and weights of a fit to y. Raises ValueError as a fit does."""
        return self.machine._posed(y, sample_weight)

    def answers(self, posed: Posed) -> Answers:
        """How a fit to them answers from decision values."""
        return self.machine._answers(posed.classes)

    def task(self, posed: Posed) -> Task:
        """What a fit to them minimises."""
        return self.machine._problem(posed)

    def centers(self, rows: Any, kernel: Kernel, weights: Vector, random: np.random.RandomState) -> Centers:
        """The centres that a fit to these rows draws."""
        return self.machine._chosen(rows, kernel, weights, random)
