"""What the choice of a layout knows of rows, and what the estimates of all layouts share.

An estimate is the time of a value of K in dense cells: its multiply-adds, the kernel function and its store, and its
part of the launches and of what a product lays out for its working vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.gram import cluster
from clsvm.opencl.profiles import Profile, shape_class

WORKING = 512  # working vectors of a product, where nothing else is known
WAIT = 4 / 3  # times what a cell takes otherwise, where vectors are so few that rows come from memory too slowly
LAUNCHES = 20  # of an outer step, about: what one takes is so many times less than the profile's step_cost


@dataclass(frozen=True)
class Survey:
    """Rows X (n, d), the share of them in which each feature that occurs is not 0, and the working vectors of a
    product."""

    profile: Profile
    X: Data
    density: NDArray[np.float64]
    working: int

    @property
    def n(self) -> int:
        return max(1, self.X.shape[0])

    @property
    def used(self) -> float:
        """Return how many features of a row are not 0, on average."""
        return float(self.density.sum())

    @property
    def few(self) -> bool:
        """Return whether working vectors are so few, on a CPU, that they use rows faster than memory brings them."""
        return self.profile.shape == "vector" and shape_class(self.working) != "many"

    def wait(self, times: float = WAIT) -> float:
        """Return by what factor a cell of the rows takes longer than where working vectors are many."""
        return times if self.few else 1.0

    @cached_property
    def fill(self) -> float:
        """Return how many columns a cluster of the profile's size would hold, about."""
        return cluster.sampled_fill(self.X, self.profile.lanes * self.profile.cluster)

    def beside(self, values: float, launches: int) -> float:
        """Return the cost of a value beside its cells: the kernel function and its store, as a multiple of the
        profile's value_cost, and its share of a product's launches."""
        shared = launches * self.profile.step_cost / LAUNCHES / (self.n * self.working)
        return values * self.profile.value_cost + shared

    def at_once(self, cells: float, values: float, launches: int) -> float:
        """Return the cost of a value whose cells and kernel function are computed while others are stored: hardly more
        than the longer of the two."""
        return math.hypot(cells, values * self.profile.value_cost) + self.beside(0.0, launches)
