"""Each command on a tiny case: ours is right, its table comes out, and it fails where ours is wrong."""

import copy
import json
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import falkon, fits, gallery, gtsvm, ladder, larger, sets, solvers, studies
from benchmarks.boostsvm import cases, products
from benchmarks.command import Asked, main, page, part_of
from clsvm.opencl.profiles import PROFILES
from tests.benchmarks.conftest import Ran

pytestmark = pytest.mark.full
BROKEN = ["it is broken"]
ROWS = "sets", 0, "rows"
SHAPES = {"real-sim": cases.Shape(400, 300, 0.05), "e2006": cases.Shape(150, 400, 0.25, target="numbers")}
SCRIPT = "from sklearn.svm import SVC\nprint('score', SVC().fit([[0.0], [1.0]], [0, 1]).score([[0.0]], [0]))\n"


def two_classes(folder: Path | None) -> falkon.Split:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 4)).astype(np.float32)
    y = np.where(np.sin(2 * X[:, 0]) + X[:, 1] > 0, 1, -1)
    return X[:700], y[:700], X[700:], y[700:]


def numbers(folder: Path | None) -> falkon.Split:
    X, _, X_test, _ = two_classes(folder)
    return X, np.sin(X[:, 0]) + X[:, 1], X_test, np.sin(X_test[:, 0]) + X_test[:, 1]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small sets and sizes, in this process; NumPy in place of KeOps, which compiles for long; a data folder."""
    monkeypatch.setattr(
        "benchmarks.command.in_own_process",
        lambda measure, name, asked, **more: measure(name, Asked(**vars(asked) | more)),
    )
    rng, digits = np.random.default_rng(0), sets.load("digits", None)
    for where, value in (
        ("fits.SMALL", ("iris", "diabetes")), ("fits.FIRST", 200), ("larger.ROWS", 6000), ("larger.WIDE", 200),
        ("larger.CACHE", 0.1), ("larger.LIMIT", 1200000), ("larger.LOSS", np.inf), ("gtsvm.FITS", 1),
        ("boostsvm.products.ALLOWED", np.inf), ("studies.FIRST", 200), ("studies.CENTERS", (100, 200)),
        ("studies.WARM", 100), ("ladder.FEATURES", 5), ("ladder.GROUPS", ((2, 40), (3, 17))),
        ("ladder.SWEEP", (16, 33)), ("ladder.REDUCED", (64, 100)), ("ladder.READ", 1 << 16), ("ladder.CHAIN", 4),
        ("ladder.SECONDS", 0.0),
        ("studies.keops", lambda X, C, V, gamma: partial(studies.NumPyCross(X, C, gamma, "float64").forward_back, V)),
        ("sets.SETS", {**sets.SETS, "a9a": sets.SETS["breast_cancer"]}), ("sets.BUNDLED", (*sets.BUNDLED, "a9a")),
        ("gtsvm._classes", lambda asked: replace(digits, X=digits.X[:200], y=digits.y[:200], C=0.5)),
    ):  # fmt: skip
        monkeypatch.setattr(f"benchmarks.{where}", value)
    for name, make in (("synthetic", two_classes), ("covtype", two_classes), ("kin40k", numbers)):
        monkeypatch.setitem(falkon.FALKON_SETS, name, replace(falkon.FALKON_SETS[name], make=make))
    for known, key, one in (
        (fits.GRIDS, "short", {"C": [1, 10], "gamma": [0.5]}),
        *((cases.SHAPES, *item) for item in SHAPES.items()),
    ):
        monkeypatch.setitem(known, key, one)  # type: ignore[arg-type]
    monkeypatch.setenv("CLSVM_PROFILE", "")
    monkeypatch.delenv("CLSVM_PROFILE")  # (host sets it)
    X = rng.random((800, 6))
    np.savez(tmp_path / "covtype_full.npz", X=X, y=1 + (X[:, 0] + X[:, 1] > 1))
    (tmp_path / "plot_fits.py").write_text(SCRIPT)
    (tmp_path / "plot_fetches.py").write_text("from sklearn.datasets import fetch_olivetti_faces\nSVC()\n")


BOOST = "boostsvm --limit 0 --repeats 2"
SPARSE = "--sets real-sim,e2006 --h 0 100"
DONE: dict[str, tuple[str, tuple[tuple[Any, ...], ...]]] = {  # a command: what its page says, what makes it fail
    "fit --sets breast_cancer --peers libsvm --repeats 2": (
        "| breast_cancer 426x30 | clsvm (dense float64) |",
        ((*ROWS, 0, "misses", BROKEN), (*ROWS, 0, "failed", "MemoryError: no"), (*ROWS, [])),
    ),
    "pairs --sets iris --peers libsvm --repeats 2": (
        "| iris 112x4 | clsvm (dense float64) |",
        ((*ROWS, 0, "misses", BROKEN),),
    ),
    "small --repeats 2": ("| iris 150x4 |", (("rows", 0, "misses", BROKEN),)),
    "growth --sets digits8 --C 1 --rows 1000 --repeats 2 --peers libsvm --limit 0": (
        "| digits8, C = 1 | 200 |",
        (("sets", 0, "points", 0, "rows", 0, "misses", BROKEN),),
    ),
    "predict --sets digits --peers libsvm --tests 200 --repeats 2 --limit 0": (
        "| digits 1347x64 | 200 | clsvm (dense float64) |",
        ((*ROWS, 0, "misses", BROKEN),),
    ),
    "predict --sets iris --repeats 2 --limit 60": ("| iris 112x4 | 38 |", ()),
    "larger --sets mapped,huge --repeats 1 --bytes 4.8e6": (
        "| mapped 6000x200 |",
        (("sets", 0, "limit", 1), ("sets", 0, "in core", "dual", 1.0), ("sets", 1, "anonymous", larger.RESIDENT)),
    ),
    "study outofcore --sizes 96 --dtypes float64 --repeats 1": (
        "| cholesky | float64 |",
        (("rows", 0, "apart", 1e-9),),
    ),
    "gallery --folder FOLDER --repeats 1": ("| all |", (("rows", 0, "failed", True), ("rows", 0, "differing", BROKEN))),
    "sharded --data FOLDER --rows 800 --repeats 2 --centers 20": (
        "| 800 | one process |",
        (("rows", 0, "contestants", 1, "recomputed", 0.1),),
    ),
    "gtsvm --table 2 --sets digits8": ("| digits8 1347x64 |", ()),
    "gtsvm --table 3 --sets breast_cancer": ("| breast_cancer 426x30 | clsvm (dense float64) |", ()),
    "gtsvm --table 4": ("| digits 200x64 | 0.01 |", ()),
    "gtsvm --figure 2 --sets breast_cancer": ("| breast_cancer |", ()),
    f"{BOOST} --products {SPARSE}": (
        "real-sim, h = 100: not possible, 100 columns of density 0.74",
        ((*ROWS, 0, "apart", 1e-3), ("sets", 0, "verdicts", 0, "within", False)),
    ),
    f"{BOOST} --products --random 1 --seed 7 --scale 40": ("| random-7 ", ()),
    f"{BOOST} --table 2 --peers libsvm {SPARSE}": ("| e2006 150x400 | clsvm (", ((*ROWS, 0, "failed", "> 1 s"),)),
    f"{BOOST} --table 3 {SPARSE}": ("| neither |", (("sets", 0, "fits", 2, "report", "dual", 1.0),)),
    f"{BOOST} --table 4 {SPARSE}": ("GFMA/s", ((*ROWS, 0, "apart", 1e-3),)),
    f"{BOOST} --table 5 {SPARSE}": ("86 %", ((*ROWS, 0, "misses", BROKEN),)),
    f"{BOOST} --figure 3 --scale 32": ("| 128 |", ((*ROWS, 0, "apart", 1e-3),)),
    f"{BOOST} --figure 4 {SPARSE}": ("| e2006 150x400, h = 100 |", ()),
    "falkon --sets synthetic,kin40k --peers nystroem --centers 60 --repeats 1": (
        "| synthetic 700x4 | squared | clsvm (dense float32) |",
        (("sets", 1, "rows", 0, "score", 1.0),),
    ),
    "search --grid short --rows 200 --peers libsvm --repeats 1": (
        "libsvm (dense float64)",
        (("rows", 1, "apart", 0.1),),
    ),
    "study table5 --sets synthetic --centers 150 --libsvm-rows 400": (
        "extrapolated from 400 rows",
        ((*ROWS, 0, "converged", False),),
    ),
    "study ablation --centers 60": ("| + K kept where that is faster |", (("rows", 0, "above_least", 0.01),)),
    "study features --rows 500 --centers 40 --repeats 2": ("| 784 |", (("rows", 0, "apart", 0.1),)),
    "study growth --rows 40000 --centers 20 --memory-limit 20MB": ("| 40000 |", (("rows", 0, "bytes_held", 10**9),)),
    "study curves --sets kin40k,covtype --rows 500 --centers 200": (
        "| FalkonRegressor | 500 | 200 |",
        ((*ROWS, 0, "converged", False),),
    ),
    "ladder": ("| argmin ?: |", (("reductions", "rows", 0, "right", False),)),
}

SLOW = ("gallery", "sharded", f"{BOOST} --products {SPARSE}", f"{BOOST} --table 3")
SLOW += ("study features", "study curves", "ladder", "falkon --sets", "predict --sets iris")


def fails(result: dict[str, Any], *path: Any) -> bool:
    """Whether a command fails when a result has another value, the last of the path, at a path."""
    made = copy.deepcopy(result)
    at: Any = made
    for step in path[:-2]:
        at = at[step]
    at[path[-2]] = path[-1]
    return not part_of(result).holds(made)


@pytest.mark.parametrize(
    "words", [pytest.param(words, marks=[pytest.mark.sweep] * words.startswith(SLOW)) for words in DONE]
)
def test_commands(ran: Ran, tiny: None, words: str, tmp_path: Path) -> None:
    if words.startswith("sharded"):
        pytest.importorskip("distributed")
    said, wrong = DONE[words]
    code, result, shown = ran(*words.replace("FOLDER", str(tmp_path)).split())
    assert code == 0
    assert said in shown
    assert not re.search(r"does not count: |KKT violation \d", shown)
    for path in wrong:
        assert fails(result, *path), path
    columns = [{line.count("|") for line in part.splitlines() if line.startswith("|")} for part in shown.split("\n\n")]
    assert all(len(found) < 2 for found in columns), "every row has the header's columns"


@pytest.mark.sweep
def test_figures_of_commands(ran: Ran, tiny: None) -> None:
    """What single figures are made of."""
    _, result, shown = ran("host", "--sets", "synthetic20k", "--rows", str(PROFILES["gpu"].batch_rows + 100))
    (row,) = result["rows"]
    assert "synthetic20k" in shown
    assert fails(result, "rows", 0, "converged", False)
    assert 5 * row["outer_steps"] < row["calls"]["launches"] < 60 * row["outer_steps"]
    code, result, shown = ran("growth", "--sets", "digits8", "--C", "1", "--limit", "1e-4", "--repeats", "1")
    assert (code, result["sets"][0]["points"][0]["rows"][0]["too_long"]) == (1, True)
    assert "| > 0.0001 s |" in shown


def test_kept_results_have_tables() -> None:
    files = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json"))
    assert len(files) > 50
    for file in files:
        assert page(json.loads(file.read_text())).count("\n|") > 1, file


def test_words_that_are_not_known(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLSVM_DATA", raising=False)
    for words in (["fit", "--sets", "mnist9"], ["fit", "--peers", "SVM"], ["gtsvm", "--table", "1"]):
        with pytest.raises(SystemExit):
            main(words)
        assert words[-1] in capsys.readouterr().err
    for words, said in (
        ("search", "a9a is read from a folder: give it as --data DIR"),
        ("boostsvm --table 3 --sets gisette", "table 3 has no set 'gisette'"),
        ("hard --sets a9a5k_C1e4 --data /no/folder", ""),
    ):
        assert main(words.split()) == 1
        assert said in capsys.readouterr().err


def test_rules_of_single_commands() -> None:
    found = fits.exponent({n: (7e-9 * n**1.7 if n > 1000 else 5.0) for n in (500, 1000, 2000, 4000, 8000, 16000)})
    assert found == {"exponent": pytest.approx(1.7), "from": 2000, "to": 16000}
    assert [[*fits.sizes(n)][-1] for n in (60000, 581012, 400)] == [60000, 512000, 400]
    rows = [{"W": 512, "name": "dense", "seconds": 1.0, "spread": 0.01}]
    rows.append({"W": 512, "name": "csr", "seconds": 1.18, "spread": 0.02})
    assert [products.verdicts(rows, {512: own})[0]["within"] for own in ("csr", "dense")] == [False, True]
    for guess in (0.03, 0.2, 0.25, 1.5):
        assert 0.2 / 2**0.2501 <= gtsvm.loosest(lambda tol: 0.05 * tol, guess) <= 0.2
    for left, right, found in (
        ("score 0.500\nrows 3", "score 0.503\nrows 3", (2, 0)),
        ("score 0.50", "score 0.52", (1, 1)),
        ("left 1\ntwo 2", "right 1", (2, 2)),
        ("done in 0.3s\nfit time: 12", "done in 8.3s\nfit time: 900", (0, 0)),
    ):
        count, differing = gallery.differences(left, right)
        assert (count, len(differing)) == found


@pytest.mark.parametrize("name", ["real-sim", "gisette", pytest.param("url", marks=pytest.mark.sweep), "random-7"])
def test_synthetic_rows_have_the_density_asked_for(name: str) -> None:
    case, again = (cases.load(name, 100 if name == "url" else 0, scale=40) for _ in range(2))
    shape = cases.SHAPES.get(name) or cases.drawn(7)
    assert case.nnz / (case.X.shape[0] * shape.d) == pytest.approx(shape.density, rel=0.25)
    assert abs(case.X - again.X).max() == 0


def test_a_process_that_takes_too_long_is_ended() -> None:
    ones = [solvers.Contestant("one", "", 1, solvers.Worker(20, partial, time.sleep)) for _ in range(2)]
    assert ones[0].ask(0.001) is None
    assert not ones[0].failed
    ones[0].worker.limit = 0.2
    assert [ones[0].ask(60), ones[0].failed, ones[0].too_long] == [None, "> 0.2 s", True]
    assert ones[1].ask("now") is None
    assert ones[1].failed.startswith("TypeError")
    ones[1].worker.end()


def test_a_wrong_rung_is_marked(ran: Ran, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    good = ladder.RUNGS[0].prepare

    def damaged(problem: Any) -> Any:
        made = good(problem)
        problem.gamma *= 1.01  # what NumPy is asked for from now on
        return made

    rungs = ladder.RUNGS[0], replace(ladder.RUNGS[0], name="broken", prepare=lambda problem: 1 / 0)
    monkeypatch.setattr(ladder, "RUNGS", (replace(rungs[0], name="damaged", prepare=damaged), rungs[1]))
    code, _, shown = ran("ladder")
    assert code == 1
    assert "broken: ZeroDivisionError" in shown
    assert "| damaged* |" in shown
