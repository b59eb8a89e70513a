"""Kernel functions: expressions, the built-in ones as records, and a function with its numbers."""

from __future__ import annotations

from clsvm.kernels.kernel import PRECOMPUTED, Check, Kernel, Precomputed, make, underflow
from clsvm.kernels.records import BUILTIN

__all__ = ["BUILTIN", "PRECOMPUTED", "Check", "Kernel", "Precomputed", "make", "underflow"]
