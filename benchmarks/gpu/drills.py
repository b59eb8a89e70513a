"""Steps that go wrong on purpose, to see that a run notes it and goes on: `--steps "drill error,drill hang,limits"`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.plan import Asked


def error(asked: Asked) -> Iterator[dict[str, Any]]:
    """Raises after its first result."""
    yield {"found": ["before the error"]}
    raise RuntimeError("a drill: this step fails on purpose")


def crash(asked: Asked) -> Iterator[dict[str, Any]]:
    """Dies as a driver dies."""
    yield {"found": ["before the crash"]}
    os.abort()


def hang(asked: Asked) -> Iterator[dict[str, Any]]:
    """Never ends."""
    yield {"found": ["before the hang"]}
    while True:
        time.sleep(1)
