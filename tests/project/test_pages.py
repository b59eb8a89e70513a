"""README is short, links lead somewhere, and the reference has every public name with what users need to know."""

import ast
import importlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("design/*.md"))]
MODULES = ("libsvm", "linalg", "probability", "plots", "dask")  # documented whole
ARRAYS = {"X", "Y", "y", "A", "B", "sample_weight", "rows"}  # parameters that are arrays
SHAPE = re.compile(r"\([nmkd](, [a-z0-9_*() -]+)?,?\)|\(n_|shape|as (fit|predict|decision_function)")
TABLES = sorted({words for page in PAGES for words in re.findall(r"<!-- generated: (.+) -->", page.read_text("utf-8"))})


def public() -> dict[str, Any]:
    """Every public object by its dotted name."""
    found = {}
    for home in ("clsvm", "clsvm.model_selection", *(f"clsvm.{name}" for name in MODULES)):
        module = importlib.import_module(home)
        own = [name for name, one in vars(module).items() if getattr(one, "__module__", "") == home and name[0] != "_"]
        found |= {f"{home}.{name}": getattr(module, name) for name in getattr(module, "__all__", own)}
    found.pop("clsvm.__version__")
    return found


def functions() -> dict[str, Callable[..., Any]]:
    """Public functions, and public methods of public classes."""
    found = {}
    for path, one in public().items():
        members = inspect.getmembers(one, inspect.isfunction) if inspect.isclass(one) else [("", one)]
        for name, function in members:
            if inspect.isfunction(function) and function.__module__.startswith("clsvm") and not name.startswith("_"):
                found[f"{path}.{name}".rstrip(".")] = function
    return found


def test_readme_is_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 800


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_site() -> None:
    for folder in (DOCS, DOCS / "design"):
        listed = re.findall(r"^(\w+)$", (folder / "index.md").read_text("utf-8"), re.MULTILINE)
        assert sorted(listed) == sorted(page.stem for page in folder.glob("*.md") if page.stem != "index")


def test_the_reference_has_every_public_name() -> None:
    named = re.findall(r"^\.\. auto\w+:: clsvm\.([\w.]+)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    expected = {name.removeprefix("clsvm.") for name in public()} - {"model_selection"}
    assert {name for name in expected if name.split(".")[0] not in MODULES} | set(MODULES) <= set(named)


def test_public_names_and_functions_say_what_users_need() -> None:
    """A sentence each; shapes of arrays; that errors are raised."""
    missing = [path for path, one in public().items() if len((inspect.getdoc(one) or "").split()) < 5]
    for path, function in functions().items():
        words, given = inspect.getdoc(function) or "", inspect.signature(function).parameters.values()
        arrays = {one.name for one in given if one.name in ARRAYS and one.annotation not in ("str", "int")}
        missing += [f"{path}: no shape of {name}" for name in arrays if not SHAPE.search(words)]
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        raised = [ast.unparse(one.exc) for one in ast.walk(tree) if isinstance(one, ast.Raise) and one.exc]
        errors = [one for one in raised if re.match(r"\w+Error\(", one) and not one.startswith("NotImplemented")]
        missing += [f"{path}: not said: {one}" for one in errors if not re.search(r"\b[Rr]aises?\b", words)]
    assert not missing


def script(name: str) -> Any:
    """Return a script of the documentation as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_charts_are_drawn_from_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    monkeypatch.syspath_prepend(DOCS)  # (undone with the folders that the script adds)
    script("charts").main(tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn
    assert drawn <= {path.name for path in (DOCS / "pictures").glob("*.png")}


def test_pages_have_the_tables_that_the_code_and_results_give() -> None:
    generated = script("generated")
    for page in PAGES:
        text = page.read_text("utf-8")
        assert generated.filled(text) == text, f"{page}: run python docs/generated.py"
    changed = "<!-- generated: kernels -->\n| old |\n<!-- end -->\nText\n<!-- generated: kernels -->\n<!-- end -->\n"
    assert generated.filled(changed).count(generated.kernels()) == 2
    assert "Text" in generated.filled(changed)
    assert "old" not in generated.filled(changed)
    assert {words.split()[0] for words in TABLES} == set(generated.WRITERS)
    for words in TABLES:
        name, *given = words.split()
        tables = re.findall(r"(?:^\|.*\n?)+", generated.WRITERS[name](*given), re.MULTILINE)
        assert tables, words
        for table in tables:
            assert table.count("\n|") > 1, words
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, words
    assert all(f"| `{name}` |" in generated.kernels() for name in generated.BUILTIN)
    assert generated.markdown(("a",), [("|x|\ny",)]).splitlines() == ["| a |", "| --- |", r"| \|x\| y |"]
