"""Export Expression, which parses a user's own kernel function, and FUNCTIONS, the table of functions it may call."""

from __future__ import annotations

from clsvm.kernels.expression import FUNCTIONS, Expression

__all__ = ["FUNCTIONS", "Expression"]
