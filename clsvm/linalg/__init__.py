"""Compute Cholesky factors of matrices, and products U U' of triangular matrices U.

A matrix may be larger than the memory of a device. It stays on the host, divided into square tiles, and the device
works on three tiles at a time.
"""

from __future__ import annotations

from clsvm.linalg.factors import cholesky, lauum, plan, solve_triangular
from clsvm.linalg.tiles import Plan

__all__ = ["Plan", "cholesky", "lauum", "plan", "solve_triangular"]
