"""The dual problems that solvers take, as records, and the tasks that pose them."""

from __future__ import annotations

from clsvm.problem.dual import Constraint, Problem, Subproblem

__all__ = ["Constraint", "Problem", "Subproblem"]
