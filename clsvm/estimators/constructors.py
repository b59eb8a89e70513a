"""Constructors: their docstrings list the parameters, and say what there is in place of one that there is not."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from clsvm.parameters import PARAMETERS

P = ParamSpec("P")
T = TypeVar("T")


def documented(made: type[T]) -> type[T]:
    """The class, its docstring with a list of its parameters before that of its attributes."""
    if made.__doc__:  # (python -OO has none)
        table = getattr(made, "_table", PARAMETERS)
        parameters = list(inspect.signature(made.__init__).parameters.values())[1:]
        texts = (f"{one}: {table[one.name].words}." for one in map(_plain, parameters))
        listed = [textwrap.fill(text, 110, **_INDENTS) for text in texts]
        before, attributes, after = inspect.cleandoc(made.__doc__).partition("Attributes after fit:")
        made.__doc__ = "\n".join([f"{before}Parameters:", *listed, "", f"{attributes}{after}"])
    return made


_INDENTS: Mapping[str, Any] = MappingProxyType({"initial_indent": " " * 4, "subsequent_indent": " " * 8})


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(annotation=inspect.Parameter.empty, kind=inspect.Parameter.KEYWORD_ONLY)


def without_probability(init: Callable[P, None]) -> Callable[P, None]:
    """An ``__init__`` that says what there is in place of scikit-learn's probability=True."""

    @wraps(init)
    def checked(*args: P.args, **given: P.kwargs) -> None:
        if "probability" in given:
            raise TypeError(
                f"{type(args[0]).__name__} has no parameter 'probability': wrap the estimator in scikit-learn's "
                "CalibratedClassifierCV, or fit it and use clsvm.probability.calibrated(model, X, y).predict_proba(X)"
            )
        init(*args, **given)

    return checked
