"""How much resident memory a call needs, by Linux's own count."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # see proc(5), clear_refs


class Used(NamedTuple):
    """What a call returned; bytes that were resident before it, and by how many these rose at most while it ran: None
    where the system does not say."""

    value: Any
    before: int | None
    growth: int | None


def growth(call: Callable[[], Any]) -> Used:
    """``call()`` and what it needed. Freed memory goes back to the system before, so that reusing it counts."""
    gc.collect()
    _trim()
    if not STATUS.exists():
        return Used(call(), None, None)
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError:  # (the peak is then that of the whole process)
        return Used(call(), bytes_of("VmRSS"), None)
    before = bytes_of("VmRSS")
    value = call()
    return Used(value, before, max(0, bytes_of("VmHWM") - before))


def _trim() -> None:
    """glibc keeps what was freed; other C libraries have no such call."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def bytes_of(field: str) -> int:
    """A field of the process's status, which counts in units of 1024."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])
