"""Export Expression, which parses a user's kernel expression, and FUNCTIONS, which an expression may call."""

from __future__ import annotations

from clsvm.kernels.expression import FUNCTIONS, Expression

__all__ = ["FUNCTIONS", "Expression"]
