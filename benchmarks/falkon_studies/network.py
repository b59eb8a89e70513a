"""Rows of many features that vary along few directions, of the classes that a random network tells them apart by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK, PILOT = 4096, 5000  # rows made at a time; rows that show how large each output is


@dataclass(frozen=True)
class Network:
    """x = A z + NOISE e with z (latent,) and e (d,) normal; the class of x is the largest output of a tanh layer over z
    and a linear one, each output with mean 0 and deviation 1; a share ``wrong`` of labels is drawn anew."""

    d: int = 3072
    classes: int = 10
    latent: int = 20
    hidden: int = 40
    noise: float = 0.5
    wrong: float = 0.05
    seed: int = 0
    _A: NDArray[np.float32] = field(init=False, repr=False)
    _layers: tuple[NDArray[np.float64], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        A = rng.normal(size=(self.latent, self.d)) / np.sqrt(self.latent)
        first = rng.normal(size=(self.latent, self.hidden)) / np.sqrt(self.latent)
        last = rng.normal(size=(self.hidden, self.classes))
        bias = rng.normal(size=self.hidden) / 2
        outputs = np.tanh(rng.normal(size=(PILOT, self.latent)) @ first + bias) @ last
        object.__setattr__(self, "_A", A.astype(np.float32))
        object.__setattr__(
            self, "_layers", (first, bias, last / outputs.std(axis=0), (outputs / outputs.std(axis=0)).mean(axis=0))
        )

    def rows(self, n: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """X (n, d) float32 and y (n,), the same for the same seed."""
        rng = np.random.default_rng((self.seed, seed))
        X, y = np.empty((n, self.d), np.float32), np.empty(n, np.intp)
        for first in range(0, n, BLOCK):
            X[first : first + BLOCK], y[first : first + BLOCK] = self._block(rng, min(BLOCK, n - first))
        return X, y

    def _block(self, rng: np.random.Generator, n: int) -> tuple[Any, Any]:
        inner, bias, outer, mean = self._layers
        z = rng.standard_normal((n, self.latent))
        x = rng.standard_normal((n, self.d), np.float32)
        x *= np.float32(self.noise)
        x += z.astype(np.float32) @ self._A
        y = (np.tanh(z @ inner + bias) @ outer - mean).argmax(axis=1)
        drawn = rng.random(n) < self.wrong
        y[drawn] = rng.integers(0, self.classes, int(drawn.sum()))
        return x, y
