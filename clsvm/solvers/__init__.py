"""Solvers: they see products with the kernel matrix and problems, never rows or labels."""

from __future__ import annotations

from clsvm.gram.products import Operator
from clsvm.opencl.stream import Stream
from clsvm.problem import Constraint, Problem
from clsvm.solvers import batch
from clsvm.solvers.decomposition import Coupled, Solver
from clsvm.solvers.result import Result, Settings, ended

__all__ = ["Result", "Settings", "Solver", "batch", "ended", "solver"]


def solver(stream: Stream, gram: Operator, problem: Problem, settings: Settings) -> Solver:
    """Return what solves ``problem``, in the caller's row order, over the rows of ``gram``."""
    method = Coupled if problem.constraint is Constraint.COUPLED else Solver
    return method(stream, gram, problem, settings)
