"""What the sdist, the wheel made of it, and an editable install carry."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
hatchling = pytest.importorskip("hatchling", reason="the build backend is not installed")


def payload() -> set[str]:
    """What every form of the package must carry, as paths inside it."""
    texts = [path for folder in ("cl_kernels", "templates") for path in (ROOT / folder).rglob("*") if path.is_file()]
    assert texts
    code = {path.relative_to(ROOT / "clsvm").as_posix() for path in (ROOT / "clsvm").rglob("*.py")}
    return {path.relative_to(ROOT).as_posix() for path in texts} | code | {"py.typed"}


def build(source: Path, target: str, out: Path) -> Path:
    """What hatchling makes of a source tree, without a network."""
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


def test_the_sdist_carries_the_project_and_nothing_else(sdist: Path) -> None:
    for name in payload():
        assert (sdist / name).is_file() or (sdist / "clsvm" / name).is_file(), name
    folders = "clsvm cl_kernels templates tools tests benchmarks docs examples"
    files = "pyproject.toml README.md LICENSE CHANGELOG.md CITATION.cff CONTRIBUTING.md PKG-INFO .gitignore"
    assert {path.name for path in sdist.iterdir()} <= {*folders.split(), *files.split()}
    assert not list(sdist.rglob("__pycache__"))
    assert not list(sdist.rglob("results/*.json"))


def test_the_wheel_carries_everything_and_finds_its_texts(sdist: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    wheel, site = build(sdist, "wheel", tmp_path / "out"), tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
        archive.extractall(site)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert {name for name in names if ".dist-info/" not in name} == {f"clsvm/{name}" for name in payload()}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "clsvm = clsvm.cli.app:main" in scripts
    assert "Requires-Python: >=3.11" in metadata
    program = "import clsvm; from clsvm.opencl import sources; print(sources.ROOT, clsvm.__version__)"
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    texts, version = done.stdout.split()
    assert Path(texts) == site / "clsvm"
    assert f"-{version}-" in wheel.name


def test_an_editable_install_points_at_the_checkout(tmp_path: Path) -> None:
    made = "from hatchling.build import build_editable; import sys; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", made, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert [Path(name).suffix for name in names] == [".pth"]  # nothing copied that could grow stale
        assert archive.read(names[0]).decode().strip() == str(ROOT)
