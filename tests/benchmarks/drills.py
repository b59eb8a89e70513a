"""A step of the GPU command that goes wrong on purpose; a process of its own imports it, so it imports little."""

import os
import time
from collections.abc import Iterator
from typing import Any


def drill(asked: Any, what: str) -> Iterator[dict[str, Any]]:
    """Go wrong after a first result."""
    yield {"found": [f"before the {what}"]}
    if what == "error":
        raise RuntimeError("a drill: this step fails on purpose")
    if what == "crash":
        os.abort()
    time.sleep(1e6)
