"""Linear algebra of matrices that are larger than a device: Cholesky factors and their products, tile by tile."""

from __future__ import annotations

from clsvm.linalg.factors import cholesky, lauum, plan, solve_triangular
from clsvm.linalg.tiles import Plan

__all__ = ["Plan", "cholesky", "lauum", "plan", "solve_triangular"]
