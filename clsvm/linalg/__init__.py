"""Compute Cholesky factors, and products U U' of triangular matrices U, that may be larger than a device's memory.

The matrix stays on the host. A device works on a few tiles of the matrix at a time.
"""

from __future__ import annotations

from clsvm.linalg.factors import cholesky, lauum, plan, solve_triangular
from clsvm.linalg.tiles import Plan

__all__ = ["Plan", "cholesky", "lauum", "plan", "solve_triangular"]
