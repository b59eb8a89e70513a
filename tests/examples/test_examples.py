"""The scripts of examples/ run, and what they print and draw is within bounds; the blocks of README and pages run."""

import ast
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

ROOT = Path(__file__).parents[2]
SCRIPTS = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
# What each script prints before a number, and the least and the most that the number may be.
PRINTED: list[tuple[str, str, float, float]] = [
    ("class_weights", "none: recall of the rare class", 0.4, 0.9),
    ("class_weights", "balanced: recall of the rare class", 0.8, 1),
    ("class_weights", "5 to 1: recall of the rare class", 0.8, 1),
    ("convergence", "tol = 1e-3: gap", 0, 0.001),
    ("convergence", "gap_tol = 1e-2: gap", 0, 0.01),
    ("custom_kernel", "expression accuracy:", 0.93, 1),
    ("custom_kernel", "element-wise accuracy:", 0.93, 1),
    ("custom_kernel", "function accuracy:", 0.7, 1),
    ("decision_boundary", "linear accuracy:", 0.8, 0.9),
    ("decision_boundary", "rbf accuracy:", 0.94, 1),
    ("decision_boundary", "expression accuracy:", 0.94, 1),
    ("digits", "test accuracy:", 0.97, 1),
    ("digits", "largest violation:", 0, 0.001),
    ("digits", "images,", 10, 10),
    ("falkon", "5 inducing points:", 0.7, 0.93),
    ("falkon", "20 inducing points:", 0.9, 0.95),
    ("falkon", "100 inducing points:", 0.91, 0.95),
    ("from_libsvm", "from_sklearn: decision values differ by at most", 0, 0.0001),
    ("from_libsvm", "model file accuracy:", 0.93, 1),
    ("from_libsvm", "to_sklearn: decision values differ by at most", 0, 0.0001),
    ("from_libsvm", "scikit-learn's accuracy with it:", 0.93, 1),
    ("grid_search", "C = 10, gamma = 0.1:", 0.97, 1),
    ("grid_search", "test accuracy:", 0.97, 1),
    ("larger_than_memory", "limit 0.5 MB:", 0, 0.5),
    ("larger_than_memory", "predictions differ by at most", 0, 0.001),
    ("multiclass", "ovo accuracy:", 0.88, 0.93),
    ("multiclass", "ovr accuracy:", 0.88, 0.93),
    ("multiclass", "crammer_singer accuracy:", 0.88, 0.93),
    ("outliers", "images: share outside", 0.05, 0.15),
    ("outliers", "other digits: share outside", 0.85, 1),
    ("outliers", "area under the ROC curve:", 0.95, 1),
    ("probabilities", "test accuracy:", 0.8, 1),
    ("probabilities", "Brier score:", 0.05, 0.14),
    ("probabilities", "calibrated log loss:", 0.2, 0.45),
    ("probabilities", "LogisticFalkonClassifier log loss:", 0.2, 0.45),
    ("regression", "SVR test R2:", 0.33, 0.6),
    ("regression", "ridge test R2:", 0.33, 0.6),
    ("robust_regression", "squared error:", 0.8, 1.5),
    ("robust_regression", "log-cosh error:", 0, 0.3),
    ("robust_regression", "(SVR) error:", 0, 0.1),
    ("text", "test accuracy:", 0.8, 1),
    ("text", "largest class alone", 0.25, 0.35),
    ("tube", "SVR, epsilon = 0.1: half width", 0.099, 0.101),
    ("tube", "NuSVR, nu = 0.2: half width", 0.15, 0.25),
]
SLOW = ("grid_search", "larger_than_memory", "text")
FILES = {"from_libsvm": ["again.model", "breast_cancer.model", "breast_cancer.test", "breast_cancer.train"]}

Script = Callable[..., str]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Script:
    """``python examples/NAME.py ...`` in this process and an empty folder: what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS[name]), *words])
        runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return run


def numbers(printed: str, label: str) -> list[float]:
    """The numbers that stand right after ``label``."""
    return [float(word) for word in re.findall(rf"{re.escape(label)} (-?\d+\.?\d*(?:e[-+]\d+)?)", printed)]


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.sweep] * (name in SLOW)) for name in SCRIPTS])
def test_example_runs(name: str, script: Script, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib").use("Agg")
    printed = script(name, "--out", "made")
    for _, label, least, most in (row for row in PRINTED if row[0] == name):
        found = numbers(printed, label)
        assert len(found) == 1, f"{label!r} {found}:\n{printed}"
        assert least <= found[0] <= most, f"{label} {found[0]}, expected {least} to {most}"
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert files == [f"made/{file}" for file in [*FILES.get(name, []), f"{name}.png"]]
    if name == "from_libsvm":
        assert (tmp_path / "made/again.model").read_bytes() == (tmp_path / "made/breast_cancer.model").read_bytes()
        assert "written again: the same bytes" in printed
    from matplotlib import image, pyplot

    pyplot.close("all")
    colours = np.unique(image.imread(tmp_path / "made" / f"{name}.png").reshape(-1, 4), axis=0)
    assert len(colours) > 100, "nothing is drawn"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_picture_without_matplotlib_is_refused_before_the_work(
    name: str, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("matplotlib", "matplotlib.figure", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("clsvm.estimators.base.KernelEstimator.fit", lambda *_, **__: pytest.fail("it trained"))
    with pytest.raises(ImportError, match=r"pictures need matplotlib: pip install '\.\[plot\]'"):
        script(name, "--out", "made")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "result"), [("text", "test accuracy:"), ("regression", "SVR test R2:")])
def test_a_file_takes_the_place_of_the_sample(name: str, result: str, script: Script, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=80)
    counts = rng.poisson(np.where(np.arange(30) < 15, 1 + 3 * y[:, None], 1))
    dump_svmlight_file(sparse.csr_matrix(counts), y, str(tmp_path / "some.svm"), zero_based=False)
    printed = script(name, "some.svm")
    assert printed.startswith("some.svm: 80 rows, 30 ")
    assert numbers(printed, result)[0] > 0.8


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_says_what_it_shows_and_how_to_run_it(name: str) -> None:
    text = ast.get_docstring(ast.parse(SCRIPTS[name].read_text(encoding="utf-8"))) or ""
    assert f"\npython examples/{name}.py" in text.replace("    ", "")
    assert "pip install '.[plot]'" in text


BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, one after the other in one namespace a page."""
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text("utf-8"), dict[str, Any](__name__=page.stem)
    for found in BLOCK.finditer(text):  # (shifted, so that a traceback names the page's own line)
        exec(compile("\n" * text.count("\n", 0, found.start(1)) + found.group(1), str(page), "exec"), names)


def test_the_bounds_are_of_examples() -> None:
    assert SCRIPTS.keys() == {name for name, *_ in PRINTED}
