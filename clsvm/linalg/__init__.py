"""Factor matrices larger than a device's memory: Cholesky factors, products U U'.

The matrix stays on the host. A device works on tiles of it.
"""

from __future__ import annotations

from clsvm.linalg.factors import cholesky, lauum, plan, solve_triangular
from clsvm.linalg.tiles import Plan

__all__ = ["Plan", "cholesky", "lauum", "plan", "solve_triangular"]
