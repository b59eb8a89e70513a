"""Whether a function is a kernel, as far as some rows tell."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from clsvm.kernels.records import Matrix


class Check(NamedTuple):
    """What :meth:`Kernel.check` found on ``rows`` rows: |K - K'| at most ``asymmetry``; eigenvalues of (K + K') / 2."""

    rows: int
    symmetric: bool
    asymmetry: float
    finite: bool
    smallest_eigenvalue: float
    largest_eigenvalue: float
    positive_semidefinite: bool

    def __str__(self) -> str:
        if not self.finite:
            return f"not finite on {self.rows} rows"
        words = f"on {self.rows} rows: {'' if self.symmetric else 'not '}symmetric (to {self.asymmetry:.1e}), "
        words += f"eigenvalues {self.smallest_eigenvalue:.3g} to {self.largest_eigenvalue:.3g}: "
        return words + ("positive semi-definite" if self.positive_semidefinite else "not positive semi-definite")

    @classmethod
    def of(cls, K: Matrix) -> Check:
        """Of kernel values K (n, n)."""
        if not np.isfinite(K).all():
            return cls(len(K), False, math.inf, False, -math.inf, math.inf, False)
        asymmetry, scale = float(np.abs(K - K.T).max(initial=0.0)), float(np.abs(K).max(initial=0.0))
        spectrum = np.linalg.eigvalsh((K + K.T) / 2) if len(K) else np.zeros(1)
        smallest, largest = float(spectrum[0]), float(spectrum[-1])
        semidefinite = smallest >= -1e-10 * max(abs(largest), abs(smallest))
        symmetric = asymmetry <= 1e-12 * scale
        return cls(len(K), symmetric, asymmetry, True, smallest, largest, symmetric and semidefinite)
