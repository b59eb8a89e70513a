"""The expressions of a user's own kernel functions."""

from __future__ import annotations

from clsvm.kernels.expression import FUNCTIONS, Expression

__all__ = ["FUNCTIONS", "Expression"]
