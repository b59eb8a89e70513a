"""The house: what the wheel and the sdist carry, who may import whom, and that every dependency is declared."""

from __future__ import annotations

import ast
import graphlib
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clsvm"

# A package imports only from those to its left; what stands together in a group, from those before it in the group.
ORDER = [
    ["errors", "system", "files", "threads", "arrays", "tasks", "parameters", "losses", "problem", "kernels", "report"],
    ["opencl"],
    ["gram", "distribute"],
    ["solvers", "linalg", "nystrom", "models"],
    ["fit"],
    ["tools", "estimators", "trial"],
    ["model_selection", "plots"],
    ["dask"],
    ["libsvm", "probability", "expression", "datasets", "__init__"],  # what users import by name
    ["accel"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, name in enumerate(name for group in ORDER for name in group)}
ONLY_IN = {"pyopencl": {"opencl"}, "mako": {"opencl"}}


def modules() -> dict[str, list[Path]]:
    """Files by module; a sub-package counts as one module."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found.setdefault(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), []).append(path)
    return found


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Dotted names that a file imports anywhere in it, split at the dots; names taken from a module come with it."""
    parents = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield (*base, alias.name)


def internal(path: Path) -> set[str]:
    """Modules of clsvm that a file imports; a name of the package itself counts as `__init__`."""
    known = modules()
    names = [parts[1] if len(parts) > 1 else "" for parts in imports(path) if parts[0] == "clsvm"]
    return {name if name in known else "__init__" for name in names}


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_what_stands_to_its_left(module: str) -> None:
    assert module in LEVEL, f"clsvm.{module} has no place in ORDER"
    for path in modules()[module]:
        for other in internal(path) - {module}:
            assert other in LEVEL, f"clsvm.{other} has no place in ORDER"
            assert LEVEL[other] < LEVEL[module], f"{path.relative_to(ROOT)} imports clsvm.{other}"


@pytest.mark.parametrize("library", ONLY_IN)
def test_one_module_speaks_to_a_library(library: str) -> None:
    users = {
        name for name, paths in modules().items() for path in paths if (library,) in {i[:1] for i in imports(path)}
    }
    assert users == ONLY_IN[library]


def test_the_order_sees_a_wrong_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "clsvm"
    (package / "solvers").mkdir(parents=True)
    (package / "solvers" / "one.py").write_text(
        "def f():\n    from ..models import M\n    from clsvm import estimators, X\n"
    )
    (package / "models.py").write_text("")
    (package / "estimators.py").write_text("import clsvm.models as m")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "PACKAGE", package)
    assert internal(package / "solvers" / "one.py") == {"models", "estimators", "__init__"}
    with pytest.raises(AssertionError, match=r"one\.py imports clsvm"):
        test_a_module_imports_only_what_stands_to_its_left("solvers")
    test_a_module_imports_only_what_stands_to_its_left("estimators")


def dotted(path: Path) -> tuple[str, ...]:
    """A file's module, below clsvm; of a package its name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def test_no_circle() -> None:
    """Among modules, wherever in a file they are imported. (A package's own names stand for no module.)"""
    files = {dotted(path): path for paths in modules().values() for path in paths}
    graph = {}
    for module, path in files.items():
        names = [parts[1:] for parts in imports(path) if parts[0] == "clsvm"]
        found = {name if name in files else name[:-1] for name in names}
        graph[module] = {name for name in found & files.keys() if name not in ((), module, module[:-1])}
    assert list(graphlib.TopologicalSorter(graph).static_order())
    graph["errors",] = {("opencl", "stream")}
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(graph).static_order())


def test_the_page_on_design_says_the_order() -> None:
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    said = next(part for part in text.split("\n\n") if part.startswith("    errors <"))
    names = [name for group in ORDER for name in group if not name.startswith("__")]
    assert said.replace("\n", " ").split() == " < ".join(names).split()


def test_files_are_short() -> None:
    lengths = [len(path.read_text("utf-8").splitlines()) for paths in modules().values() for path in paths]
    assert max(lengths) <= 600
    assert statistics.median(lengths) <= 160


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]  # type: ignore[no-any-return]


def test_every_import_is_a_declared_dependency() -> None:
    of_import, everywhere = packages_distributions(), project()["dependencies"]
    for module, paths in modules().items():
        lines = [*everywhere, *project()["optional-dependencies"].get(module, [])]  # type: ignore[attr-defined, misc]
        declared = {re.split(r"[^\w.-]", line)[0].lower() for line in lines}
        used = {parts[0] for path in paths for parts in imports(path)}
        for name in used - set(sys.stdlib_module_names) - {"clsvm"}:
            distributions = {distribution.lower() for distribution in of_import.get(name, [name])}
            assert distributions & declared, f"clsvm.{module} imports {name}, which pyproject.toml does not name"


# Wheel and sdist.


def payload() -> set[str]:
    """What every form of the package must carry, as paths inside it."""
    texts = [path for folder in ("cl_kernels", "templates") for path in (ROOT / folder).rglob("*") if path.is_file()]
    code = [path.relative_to(ROOT / "clsvm") for path in PACKAGE.rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in texts} | {path.as_posix() for path in code} | {"py.typed"}
    assert any(name.startswith("cl_kernels/") for name in found)
    assert any(name.startswith("templates/") for name in found)
    return found


def build(source: Path, target: str, out: Path) -> Path:
    """What hatchling makes of a source tree, without a network."""
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    made = build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(made) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (inside,) = folder.iterdir()
    return inside


@pytest.fixture(scope="module", params=["checkout", "sdist"])
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, from the checkout and from the sdist."""
    source = ROOT if request.param == "checkout" else request.getfixturevalue("sdist")
    return build(source, "wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_carries_everything_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert {name for name in names if ".dist-info/" not in name} == {f"clsvm/{name}" for name in payload()}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "clsvm = clsvm.cli.app:main" in scripts
    assert "Requires-Python: >=3.11" in metadata


def test_the_sdist_carries_the_project_and_nothing_else(sdist: Path) -> None:
    for name in payload():
        assert (sdist / name).is_file() or (sdist / "clsvm" / name).is_file(), name
    ours = {"clsvm", "cl_kernels", "templates", "tools", "tests", "benchmarks", "docs", "examples"}
    ours |= {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "PKG-INFO",
        ".gitignore",
    }
    assert {path.name for path in sdist.iterdir()} <= ours
    assert not list(sdist.rglob("__pycache__"))
    assert not list(sdist.rglob("results/*.json"))


PROBE = """
from pathlib import Path
import clsvm
from clsvm.opencl import sources
print(Path(clsvm.__file__).parent)
print(sources.ROOT)
print(clsvm.__version__)
"""


def probe(path: Path, cwd: Path) -> tuple[Path, Path, str]:
    """Where clsvm and its texts come from when `path` stands first, and the version."""
    environment = os.environ | {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    package, texts, version = done.stdout.splitlines()
    return Path(package), Path(texts), version


def test_the_unpacked_wheel_finds_its_texts(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    package, texts, version = probe(site, tmp_path)
    assert package == texts == site / "clsvm"
    assert f"-{version}-" in wheel.name


def test_the_checkout_finds_its_texts(tmp_path: Path) -> None:
    package, texts, _ = probe(ROOT, tmp_path)
    assert (package, texts) == (PACKAGE, ROOT)


def test_an_editable_install_points_at_the_checkout(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    made = "from hatchling.build import build_editable; import sys; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", made, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert [Path(name).suffix for name in names] == [".pth"]  # nothing copied that could grow stale
        assert archive.read(names[0]).decode().strip() == str(ROOT)
