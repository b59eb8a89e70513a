"""What the reference shows says what users need: shapes of arrays, and which errors are raised."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
ARRAYS = {"X", "Y", "y", "A", "B", "sample_weight", "rows"}  # parameters that are arrays
SHAPE = re.compile(r"\([nmkd](, [a-z0-9_*() -]+)?,?\)|\(n_|shape|as (fit|predict|decision_function)")


def named(path: str) -> Any:
    """An object of the package by its dotted name."""
    module, _, name = path.rpartition(".")
    return importlib.import_module(path) if not module else getattr(importlib.import_module(module), name)


def listed() -> Iterator[tuple[str, Any]]:
    """(name, function or class) of all that the reference shows."""
    for kind, path in re.findall(r"\.\. auto(class|function|module|exception):: ([\w.]+)", PAGE):
        if kind != "module":
            yield path, named(path)
            continue
        module, others = importlib.import_module(path), ":imported-members:" in PAGE.split(path)[1].split("..")[0]
        for name in getattr(module, "__all__", [one for one in vars(module) if not one.startswith("_")]):
            one = getattr(module, name)
            own = others or getattr(one, "__module__", "") == path
            if own and (inspect.isfunction(one) or inspect.isclass(one)):
                yield f"{path}.{name}", one


def functions() -> dict[str, tuple[Callable[..., Any], str]]:
    """(function, all that is said of it) by name: those of the package, and public methods of its classes."""
    found = {}
    for path, one in listed():
        if not getattr(one, "__module__", "").startswith("clsvm"):
            continue
        if inspect.isfunction(one):
            found[path] = one, inspect.getdoc(one) or ""
            continue
        for name, method in inspect.getmembers(one, inspect.isfunction):
            if method.__module__.startswith("clsvm") and not name.startswith("_"):
                found[f"{path}.{name}"] = method, inspect.getdoc(method) or ""
    return found


FUNCTIONS = functions()


def test_there_are_some() -> None:
    assert {"clsvm.SVC.fit", "clsvm.kernel_matrix", "clsvm.load_model"} <= set(FUNCTIONS)
    assert len(FUNCTIONS) > 60


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_does(name: str) -> None:
    function, words = FUNCTIONS[name]
    assert words, "no docstring"
    given = inspect.signature(function).parameters.values()
    arrays = {one.name for one in given if one.name in ARRAYS and one.annotation not in ("str", "int")}
    assert not arrays or SHAPE.search(words), f"no shape of {', '.join(sorted(arrays))}: {words}"
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    raised = [one.exc for one in ast.walk(tree) if isinstance(one, ast.Raise) and one.exc]
    errors = {ast.unparse(one.func) for one in raised if isinstance(one, ast.Call)} - {"NotImplementedError"}
    errors = {one for one in errors if one.endswith("Error")}
    assert not errors or re.search(r"\b[Rr]aises?\b", words), f"{', '.join(sorted(errors))} is not said: {words}"
