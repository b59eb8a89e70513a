"""``-t 4``, kernel values in LIBSVM's files: training, prediction and models, both ways with Debian's svm-train."""

import shutil
import subprocess
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

import clsvm
from clsvm.kernels import PRECOMPUTED
from clsvm.models import libsvm, svmlight
from tests.conftest import Command

pytestmark = pytest.mark.skipif(not shutil.which("svm-train"), reason="svm-train is not installed")
FLAGS = {0: "-c 2", 1: "-n 0.3", 2: "-n 0.2", 3: "-c 2 -p 0.05", 4: "-c 2 -n 0.4"}


def values(classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """K of the training rows, theirs with the test rows, labels or targets of both."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(140, 3))
    y = np.sin(X[:, 0]) + 0.3 * X[:, 1]
    if classes:
        y = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes)) + 1.0
    K = rbf_kernel(X, X[:100], gamma=0.4).round(6)
    return K[:100], K[100:], y[:100], y[100:]


def write(path: Path, K: np.ndarray, y: np.ndarray, order: np.ndarray | None = None) -> None:
    """Rows in any order know their columns by their serial numbers."""
    order = np.arange(len(K)) if order is None else order
    lines = [" ".join([f"{y[i]:g} 0:{i + 1}", *(f"{j + 1}:{v:g}" for j, v in enumerate(K[i]))]) for i in order]
    path.write_text("\n".join(lines) + "\n")


def theirs(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.mark.parametrize("task", FLAGS)
@pytest.mark.parametrize("classes", [2, 3])
def test_both_ways(command: Command, tmp_path: Path, task: int, classes: int) -> None:
    if task > 1 and classes == 3:
        pytest.skip("it has no classes")
    K, T, y, y_test = values(classes if task < 2 else 0)
    order = np.random.default_rng(0).permutation(100)
    write(tmp_path / "train", K, y, order)
    write(tmp_path / "test", T, y_test)
    flags = f"-s {task} -t 4 -e 0.00001 {FLAGS[task]}".split()
    assert command("train", *flags, "train", "ours").code == 0
    theirs("svm-train", "-q", *flags, "train", "theirs")
    for model in ("ours", "theirs"):
        assert command("predict", "-q", "test", model, f"{model}.by_us").code == 0
        theirs("svm-predict", "test", model, f"{model}.by_them")
    found = {path.name: np.loadtxt(path) for path in tmp_path.glob("*.by_*")}
    for model in ("ours", "theirs"):
        np.testing.assert_allclose(found[f"{model}.by_us"], found[f"{model}.by_them"], atol=1e-5)
    np.testing.assert_allclose(found["ours.by_us"], found["theirs.by_us"], atol=2e-3)
    ours, other = libsvm.load_model("ours"), libsvm.load_model("theirs")
    assert ours.kernel == other.kernel == PRECOMPUTED
    assert set(ours.support_vectors) == set(other.support_vectors)


def test_folds_and_probabilities(command: Command, tmp_path: Path) -> None:
    K, T, y, y_test = values(2)
    write(tmp_path / "train", K, y)
    write(tmp_path / "test", T, y_test)
    said = command("train", "-q", "-t", "4", "-v", "4", "train").out
    assert float(said.split("=")[1].strip(" %\n")) > 80
    assert command("train", "-q", "-t", "4", "-b", "1", "train", "m").code == 0
    command("predict", "-q", "-b", "1", "test", "m", "ours")
    theirs("svm-predict", "-b", "1", "test", "m", "theirs")
    assert Path("ours").read_text().split() == Path("theirs").read_text().split()


def test_python_reads_what_it_wrote(command: Command, tmp_path: Path, device: str) -> None:
    K, T, y, _ = values(3)
    model = clsvm.SVC(kernel="precomputed", device=device).fit(K, y)
    libsvm.save_model(model, tmp_path / "m")
    serials = [line.split()[-1] for line in (tmp_path / "m").read_text().partition("SV\n")[2].splitlines()]
    assert serials == [f"0:{column + 1}" for column in model.support_]
    np.testing.assert_array_equal(libsvm.load_model(tmp_path / "m").predict(T), model.predict(T).astype(int))
    with pytest.raises(ValueError, match=r"hold only models whose kernel is a clsvm\.Kernel"):
        clsvm.save_model(model.model_, tmp_path / "own")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 0:1 1:2 2:3\n\n2 0:3 1:1 2:1\n", "row 2: got serial number 3 .*, expected .* from 1 to 2"),
        ("1 0:1 1:2 2:3\n# none\n2 1:1 2:1\n", "row 2: got serial number 0 .*, expected"),
        ("1 0:1.5 1:2 2:3\n", "row 1: got serial number 1.5 .*, expected"),
        ("1 0:1 1:2 1:3\n", "line 1: got '1:3', expected index:value with an index from 2"),
        ("1 0:1 1:x\n", "line 1: got '1:x', expected index:value"),
        ("1 -1:1 1:2\n", "line 1: got '-1:1', expected index:value"),
        ("1 0:1 2147483647:1\n", "line 1: got '2147483647:1', expected index:value with an index from 1 to 2147483646"),
        ("", "line 1: got the end of the file"),
    ],
)
def test_bad_data(command: Command, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad").write_text(text)
    with pytest.raises(ValueError, match=words):
        svmlight.read_kernel("bad")
    assert command("train", "-t", "4", "bad").code == 1


def test_high_indices_take_no_memory(command: Command, tmp_path: Path) -> None:
    """Rows name columns far beyond those of the model; a dense array of them would take gigabytes."""
    head = "svm_type c_svc\nkernel_type precomputed\nnr_class 2\ntotal_sv 2\nrho 0.1\nlabel 1 -1\nnr_sv 1 1\nSV\n"
    (tmp_path / "m").write_text(f"{head}1 0:1 \n-1 0:2 \n")
    (tmp_path / "test").write_text("1 0:1 1:1 200000000:0.5\n-1 0:2 1:1 2:3 2147483646:1\n")
    tracemalloc.start()
    assert "100% (2/2)" in command("predict", "test", "m").out
    (tmp_path / "train").write_text("1 0:200000000 3:1 200000000:2\n-1 0:3 3:2 200000000:1\n")
    assert command("train", "-t", "4", "train", "m2").code == 0
    assert tracemalloc.get_traced_memory()[1] < 1e8
    tracemalloc.stop()
    assert set(libsvm.load_model("m2").support_vectors) == {2, 199999999}
