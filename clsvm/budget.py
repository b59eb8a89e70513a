"""Memory limits as a user writes them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

MEMORY_SHARE = 0.5  # of the device's free memory: the default of memory_limit


def parse_bytes(value: Any, name: str = "memory_limit") -> int | None:
    """None, a number of bytes or text such as "2GB", "512 MiB" -> bytes. Raises TypeError or ValueError."""
    if value is None:
        return None
    if isinstance(value, str):
        units = {"": 1, "b": 1, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12, "tb": 1e12}
        units |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
        match = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", value)
        try:
            number = float(match[1]) * units[match[2].lower()] if match else -1.0
        except (KeyError, ValueError):
            number = -1.0
    elif isinstance(value, int | float | np.number) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"{name} must be None, a number of bytes or text like '2GB', got {value!r}")
    if not 0 < number < 2**60:
        raise ValueError(f"{name} must be a positive number of bytes or text like '2GB', got {value!r}")
    return int(number)
