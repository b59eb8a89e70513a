"""Functions that joblib's workers run: with the same patches as in the process that sent them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Accelerated:
    """A function that installs the patches where it is called, in another process as a rule."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        from clsvm import accel

        accel.install()
        return self.function(*args, **kwargs)
