"""Define kernel functions: the language of their expressions, the built-in functions, and :class:`Kernel`.

A Kernel is a kernel function together with the values of its parameters.
"""

from __future__ import annotations

from clsvm.kernels.expression import Extent
from clsvm.kernels.kernel import PRECOMPUTED, Check, Kernel, Precomputed, make, underflow
from clsvm.kernels.records import BUILTIN

__all__ = ["BUILTIN", "PRECOMPUTED", "Check", "Extent", "Kernel", "Precomputed", "make", "underflow"]
