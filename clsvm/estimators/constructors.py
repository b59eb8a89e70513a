"""Share the work of constructors: they keep the given parameters, and the docstring of their class lists them."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from clsvm.parameters import PARAMETERS

P = ParamSpec("P")
T = TypeVar("T")


def keep(estimator: Any, given: Mapping[str, Any]) -> None:
    """Set the parameters of an estimator as attributes. given: the ``locals()`` of its constructor."""
    for name, value in given.items():
        if name != "self":
            setattr(estimator, name, value)


def documented(made: type[T]) -> type[T]:
    """Return the class, its docstring with a list of its parameters before that of its attributes."""
    if made.__doc__:  # (python -OO has none)
        table = getattr(made, "_table", PARAMETERS)
        parameters = list(inspect.signature(made.__init__).parameters.values())[1:]
        texts = (f"{one.name}={one.default!r}: {table[one.name].words}." for one in parameters)
        listed = [textwrap.fill(text, 110, initial_indent=" " * 4, subsequent_indent=" " * 8) for text in texts]
        before, attributes, after = inspect.cleandoc(made.__doc__).partition("Attributes after fit:")
        made.__doc__ = "\n".join([f"{before}Parameters:", *listed, "", f"{attributes}{after}"])
    return made


def without_probability(init: Callable[P, None]) -> Callable[P, None]:
    """Return an ``__init__`` whose error for scikit-learn's probability=True says what there is in place of it."""

    @wraps(init)
    def checked(*args: P.args, **given: P.kwargs) -> None:
        if "probability" in given:
            raise TypeError(
                f"{type(args[0]).__name__} has no parameter 'probability': wrap the estimator in scikit-learn's "
                "CalibratedClassifierCV, or fit it and use clsvm.probability.calibrated(model, X, y).predict_proba(X)"
            )
        init(*args, **given)

    return checked
