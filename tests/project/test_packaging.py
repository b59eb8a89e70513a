"""The project: who may import whom, no circles, short files, and that every dependency is declared."""

import ast
import graphlib
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests import conftest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clsvm"

# A package imports only from those to its left; what stands together in a group, from those before it in the group.
ORDER = [
    ["errors", "system", "files", "threads", "arrays", "tasks", "parameters", "losses", "problem", "kernels", "report"],
    ["opencl"],
    ["gram", "distribute"],
    ["solvers", "linalg", "nystrom", "models"],
    ["fit"],
    ["tools", "estimators", "small_fit", "warm_up"],
    ["model_selection", "plots"],
    ["dask"],
    ["libsvm", "probability", "expression", "datasets", "__init__"],  # what users import by name
    ["accel"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, name in enumerate(name for group in ORDER for name in group)}
ONLY_IN = {"pyopencl": {"opencl"}, "mako": {"opencl"}}


@cache
def modules() -> dict[str, list[Path]]:
    """Files by module; a sub-package counts as one module."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found.setdefault(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), []).append(path)
    return found


@cache
def imports(path: Path) -> list[tuple[str, ...]]:
    """Dotted names that a file imports anywhere in it, split at the dots; names taken from a module come with it."""
    parents, found = path.relative_to(ROOT).parent.parts, list[tuple[str, ...]]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            found += [(*base, alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_what_stands_to_its_left(module: str) -> None:
    assert module in LEVEL, f"clsvm.{module} has no place in ORDER"
    known = modules()
    for path in known[module]:
        names = [(*parts, "")[1] for parts in imports(path) if parts[0] == "clsvm"]
        for other in {name if name in known else "__init__" for name in names} - {module}:
            assert LEVEL[other] < LEVEL[module], f"{path.relative_to(ROOT)} imports clsvm.{other}"


@pytest.mark.parametrize("library", ONLY_IN)
def test_one_module_speaks_to_a_library(library: str) -> None:
    users = {name for name, paths in modules().items() for path in paths if library in {i[0] for i in imports(path)}}
    assert users == ONLY_IN[library]


def test_no_circle() -> None:
    """Among modules, wherever in a file they are imported. (A package's own names stand for no module.)"""

    def dotted(path: Path) -> tuple[str, ...]:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        return parts[:-1] if parts[-1] == "__init__" else parts

    files = {dotted(path): path for paths in modules().values() for path in paths}
    graph = {}
    for module, path in files.items():
        names = [parts[1:] for parts in imports(path) if parts[0] == "clsvm"]
        found = {name if name in files else name[:-1] for name in names}
        graph[module] = {name for name in found & files.keys() if name not in ((), module, module[:-1])}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_the_page_on_design_says_the_order() -> None:
    text = (ROOT / "docs" / "design" / "index.md").read_text("utf-8")
    said = next(part for part in text.split("\n\n") if part.startswith("    errors <"))
    names = [name for group in ORDER for name in group if not name.startswith("__")]
    assert said.replace("\n", " ").split() == " < ".join(names).split()


def test_files_are_short() -> None:
    assert max(len(path.read_text("utf-8").splitlines()) for paths in modules().values() for path in paths) <= 600


def test_every_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_import = packages_distributions()
    for module, paths in modules().items():
        lines = [*project["dependencies"], *project["optional-dependencies"].get(module, [])]
        declared = {re.split(r"[^\w.-]", line)[0].lower() for line in lines}
        used = {parts[0] for path in paths for parts in imports(path)}
        for name in used - set(sys.stdlib_module_names) - {"clsvm"}:
            distributions = {distribution.lower() for distribution in of_import.get(name, [name])}
            assert distributions & declared, f"clsvm.{module} imports {name}, which pyproject.toml does not name"


def test_the_first_look_is_there_and_has_a_test_of_every_folder() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders == {entry.split("/")[1] for entry in conftest.QUICK_TESTS}
    for entry in conftest.QUICK_TESTS:
        path, _, name = entry.partition("[")[0].partition("::")
        assert (ROOT / path).exists(), f"{entry} of QUICK_TESTS is not there"
        assert not name or f"\ndef {name}(" in (ROOT / path).read_text(), f"{entry} of QUICK_TESTS is not there"
