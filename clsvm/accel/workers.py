"""Functions that joblib's workers run: with the same patches as in the process that sent them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


class Accelerated:
    """A function that has the patches while it runs, if that is in another process than the one that sent it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.sender = function, os.getpid()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        from clsvm import accel

        if os.getpid() == self.sender or accel.installed():
            return self.function(*args, **kwargs)
        accel.install()
        try:
            return self.function(*args, **kwargs)
        finally:
            accel.uninstall()
