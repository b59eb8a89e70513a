"""What a fit asks of the solver and the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Options:
    """What a fit asks of the solver and the machine; names and meaning as the estimators' parameters."""

    tol: float
    gap_tol: float | None
    max_iter: int
    max_time: float | None
    working_set_size: int | str
    cache_size: float | str
    dtype: str
    device: Any
    memory_limit: int | str | None
    verbose: Any = False
    checkpoint: Any = None
    checkpoint_every: float = 60.0
