"""Solvers: they see products with the kernel matrix and problems, never rows or labels."""

from __future__ import annotations

from clsvm.device import Stream
from clsvm.gram import Gram
from clsvm.solvers import batch
from clsvm.solvers.coupled import Coupled
from clsvm.solvers.decomposition import Exact, Settings, Solution, Solver
from clsvm.tasks import Constraint, Problem

__all__ = ["Exact", "Settings", "Solution", "Solver", "batch", "solver"]


def solver(stream: Stream, gram: Gram, problem: Problem, settings: Settings) -> Solver:
    """What solves ``problem`` (in the caller's row order) over the rows of ``gram``."""
    method = Coupled if problem.constraint is Constraint.COUPLED else Solver
    return method(stream, gram, problem, settings)
