"""LIBSVM's text formats: against LIBSVM's own programs where they are installed, and against damaged files."""

import bz2
import gzip
import lzma
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from clsvm import kernels
from clsvm.models import libsvm, npz, svmlight
from clsvm.models.decoder import pairs
from clsvm.models.model import KernelModel

PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    "": bytes,
}
needs_libsvm = pytest.mark.skipif(
    not (shutil.which("svm-train") and shutil.which("svm-predict")),
    reason="LIBSVM's svm-train and svm-predict are not installed (Debian: libsvm-tools)",
)


def write_text(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    """Independent of what is tested: every digit, columns from 1, zeros left out."""
    rows = (
        " ".join([f"{label:g}", *(f"{j + 1}:{v!r}" for j, v in enumerate(row.tolist()) if v)])
        for row, label in zip(X, y, strict=True)
    )
    path.write_text("".join(row + "\n" for row in rows))
    return path


KERNELS = [
    kernels.make("linear"),
    kernels.make("poly", gamma=0.3, coef0=1.1, degree=2),
    kernels.make("rbf", gamma=0.1),
    kernels.make("sigmoid", gamma=0.05, coef0=-0.2),
]


def with_estimates(task: str, k: int, kernel: kernels.Kernel = KERNELS[2]) -> KernelModel:
    """A model with made-up probabilities."""
    rng = np.random.default_rng(7)
    numbers = {key: rng.normal(size=count) for key, count in libsvm.estimates_of(task, k).items()}
    return replace(model_of(task, k, kernel), **{key: np.sort(np.abs(values)) for key, values in numbers.items()})


def model_of(task: str, k: int = 0, kernel: kernels.Kernel = KERNELS[2]) -> KernelModel:
    """Eleven support vectors with five features: one of zeros, the last feature in none; a class without any."""
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(11, 5)) * (rng.random((11, 5)) < 0.7)
    vectors[8] = vectors[:, 4] = 0
    counts = {0: [11], 2: [4, 7], 3: [5, 0, 6], 4: [4, 3, 3, 1]}[k]
    return KernelModel(
        kernel=kernel,
        support_vectors=sparse.csr_matrix(vectors),
        dual_coef=rng.normal(size=(max(1, k - 1), 11)),
        intercept=rng.normal(size=len(pairs(k)) if k else 1),
        classes=np.array([-2, 5] if k == 2 else [5, -2, 1000001, 0][:k]) if k else np.zeros(0),
        n_support=np.array(counts, np.int32),
        task=task,
    )


MODELS = [("c_svc", 4), ("nu_svc", 4), ("one_class", 0), ("epsilon_svr", 0), ("nu_svr", 0)]


# Data files


@pytest.mark.parametrize("suffix", PACK)
def test_reads_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.txt{suffix}"
    path.write_bytes(PACK[suffix](b"# a comment\n+1 1:0.5 3:-2e-1\n\n-1 # all zero\n1 qid:3 2:7"))
    X, y = svmlight.read_problem(path)
    assert X.toarray().tolist() == [[0.5, 0, -0.2], [0, 0, 0], [0, 7, 0]]
    assert y.tolist() == [1, -1, 1]
    assert [part.dtype.name for part in (X, X.indices, y)] == ["float64", "int32", "float64"]


def test_no_rows_and_rows_that_are_too_wide(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for text, words in (
        ("", "line 1: got .*no rows"),
        ("1 1:1\n1 5:1\n", "line 2: got '5:1', expected index:value with an index from 1 to 4 "),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"data, {words}"):
            svmlight.read_problem(path, n_features=4)
    path.write_text("1 1:0.1\n")
    assert svmlight.read_problem(path, n_features=4)[0].toarray().tolist() == [[0.1, 0, 0, 0]]


# Models: round trips


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("task", "k"), [*MODELS, ("c_svc", 3)])
@pytest.mark.parametrize("write", [libsvm.save_model, npz.save_model], ids=["LIBSVM's", "ours"])
@pytest.mark.parametrize("made", [model_of, with_estimates])
def test_the_same_model_comes_back(
    tmp_path: Path, task: str, k: int, made: Any, write: Any, kernel: kernels.Kernel
) -> None:
    model = made(task, k, kernel)
    write(model, tmp_path / "m")
    read = npz.load_model(tmp_path / "m")
    assert (read.kernel, read.task, read.has_probabilities) == (model.kernel, task, made is with_estimates)
    for name in ("probA", "probB", "prob_density_marks"):
        np.testing.assert_array_equal(getattr(read, name), getattr(model, name))
    np.testing.assert_array_equal(read.support_vectors.toarray(), model.support_vectors.toarray())
    for name in ("dual_coef", "intercept", "classes", "n_support"):
        got, expected = getattr(read, name), getattr(model, name)
        np.testing.assert_array_equal(got, expected)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("task", ["one_class", "epsilon_svr", "nu_svr"])
def test_no_support_vectors(tmp_path: Path, task: str) -> None:
    none = replace(
        model_of(task),
        support_vectors=sparse.csr_matrix((0, 5)),
        dual_coef=np.zeros((1, 0)),
        n_support=np.zeros(1, np.int32),
        intercept=np.array([1.5]),
    )
    libsvm.save_model(none, tmp_path / "m")
    model, rows = svmlight.match_columns(libsvm.load_model(tmp_path / "m"), sparse.csr_matrix(np.eye(4)))
    assert model.predict(rows).tolist() == ([1] * 4 if task == "one_class" else [1.5] * 4)
    for vectors in (none.support_vectors, np.zeros((0, 5))):
        npz.save_model(replace(none, support_vectors=vectors), tmp_path / "ours")
        assert npz.load_model(tmp_path / "ours").support_vectors.shape == (0, 5)
    with open(tmp_path / "m", "a") as stream:
        stream.write("1 1:1\n")
    with pytest.raises(ValueError, match=r"m: got '1 1:1', expected the end of the file: total_sv is 0"):
        libsvm.load_model(tmp_path / "m")


@needs_libsvm
@pytest.mark.parametrize("kind", range(4))
def test_values_of_svm_predict(tmp_path: Path, kind: int) -> None:
    """Of svm-train's model of a regression, whose values svm-predict writes: read, and written again."""
    rng = np.random.default_rng(5)
    X, y = np.where(rng.random((60, 7)) < 0.4, 0, rng.normal(size=(60, 7))), rng.normal(size=60)
    data = write_text(tmp_path / "data", X, y)

    def predicted(model: Path) -> np.ndarray:
        subprocess.run(["svm-predict", data, model, tmp_path / "out"], check=True, capture_output=True)
        return np.loadtxt(tmp_path / "out")

    flags = ["-s", "3", "-t", str(kind), "-g", "0.2", "-r", "0.5", "-d", "2", "-q"]
    subprocess.run(["svm-train", *flags, data, tmp_path / "theirs"], check=True)
    expected, model = predicted(tmp_path / "theirs"), libsvm.load_model(tmp_path / "theirs")
    libsvm.save_model(model, tmp_path / "ours")
    np.testing.assert_array_equal(predicted(tmp_path / "ours"), expected)
    model, rows = svmlight.match_columns(model, svmlight.read_problem(data)[0])
    np.testing.assert_allclose(model.decision_function(rows), expected, rtol=1e-4, atol=1e-4)


# Models: damage

GOOD = """svm_type c_svc
kernel_type polynomial
degree 3
gamma 0.5
coef0 -1
nr_class 2
total_sv 3
rho 0.25
label 1 -1
nr_sv 1 2
SV
1.5 1:0.5 3:1\x20
-0.5 2:1\x20
-1 1:2 2:-3\x20
"""

PAIRS = """svm_type c_svc
kernel_type rbf
gamma 0.5
nr_class 3
total_sv 3
rho 0.25 -1 2
label 1 -1 4
nr_sv 1 2 0
SV
1.5 -1 1:0.5 3:1\x20
-0.5 0 2:1\x20
-1 2 \x20
"""
REGRESSION = """svm_type epsilon_svr
kernel_type linear
nr_class 2
total_sv 2
rho 0.25
SV
1.5 1:0.5 3:1\x20
-0.5 2:1\x20
"""
PROBABLE = PAIRS.replace("nr_sv", "probA -1 -2 -3\nprobB 0.5 0 1e-3\nnr_sv")
SCALE = REGRESSION.replace("rho 0.25", "rho 0.25\nprobA 0.7")
GIVEN = "svm_type nu_svr\nkernel_type precomputed\nnr_class 2\ntotal_sv 2\nrho 0\nSV\n1 0:1 \n-1 0:2 \n"
ONE_CLASS = REGRESSION.replace("epsilon_svr", "one_class").replace("SV\n", f"prob_density_marks{' 1' * 10}\nSV\n")
BAD: dict[str, tuple[str, str, str, str]] = {
    "unknown type": (GOOD, "c_svc", "svr", ": got svm_type svr, expected c_svc, nu_svc, one_class, epsilon"),
    "kernel": (GOOD, "polynomial", "spam", ": got kernel_type spam"),
    "precomputed": (GOOD, "polynomial", "precomputed", ": got support vector 1 of other form, expected 0:serial"),
    "serial 0": (GIVEN, "0:2", "0:0", ": got support vector 2 of other form, expected 0:serial"),
    "more than a serial": (GIVEN, "0:2", "0:2 1:2", ": got support vector 2 of other form, expected 0:serial"),
    "no degree": (GOOD, "degree 3\n", "", ": got no degree above the line SV, expected 'degree ...'"),
    "negative degree": (
        GOOD,
        "degree 3",
        "degree -3",
        ": got the parameters {'gamma': 0.5, 'coef0': -1.0, 'degree': -3}",
    ),
    "nan gamma": (GOOD, "gamma 0.5", "gamma nan", ": got gamma 'nan', expected a finite number"),
    "gamma twice": (GOOD, "gamma 0.5", "gamma 0.5\ngamma 0.5", ": got 'gamma 0.5' in line 5, expected a key of"),
    "one class": (GOOD, "nr_class 2", "nr_class 1", ": got 1 classes, expected 2 or more"),
    "other count": (GOOD, "total_sv 3", "total_sv 4", "expected 2 counts (nr_sv) whose sum is total_sv, 4"),
    "real label": (GOOD, "label 1 -1", "label 1 0.5", ": got label '1 0.5', expected an integer, 2 times"),
    "unknown key": (GOOD, "rho 0.25", "rho 0.25\nspam 1", ": got 'spam 1' in line 9, expected a key of"),
    "blank line": (GOOD, "rho 0.25", "rho 0.25\n", ": got '' in line 9, expected a key of"),
    "bad coefficient": (GOOD, "-0.5 2:1", "x 2:1", ", line 13: got coefficient 'x'"),
    "bad value": (GOOD, "2:-3", "2:-3x", ", line 14: got '2:-3x', expected index:value with an index from 2"),
    "unsorted": (GOOD, "1:2 2:-3", "2:2 1:-3", ", line 14: got '1:-3', expected index:value with an index from 3"),
    "empty": (GOOD, GOOD, "", ": got the end of the file, expected more keys"),
    "a rho too few": (PAIRS, "rho 0.25 -1 2", "rho 0.25 -1", ": got 2 values of rho, expected 3"),
    "many rows": (GOOD, "total_sv 3", "total_sv 1000000000000", "whose sum is total_sv, 1000000000000"),
    "absurd classes": (PAIRS, "nr_class 3", "nr_class 999999999", "3 values of rho, expected 499999998500000001"),
    "label twice": (PAIRS, "label 1 -1 4", "label 1 -1 1", ": got labels 1 -1 1, expected 3 different 32-bit"),
    "text as second coefficient": (PAIRS, "-0.5 0 2:1", "-0.5 x 2:1", ", line 11: got coefficient 'x', expected a fin"),
    "one coefficient": (PAIRS, "-0.5 0 2:1", "-0.5 2:1", ", line 11: got coefficient '2:1', expected a finite number"),
    "one coefficient alone": (PAIRS, "-0.5 0 2:1", "-0.5", ", line 11: got 1 numbers (coefficients), expected 2"),
    "a coefficient too many": (PAIRS, "-0.5 0 2:1", "-0.5 0 1 2:1", ", line 11: got '1', expected index:value"),
    "row too many": (PAIRS, "-0.5 0 2:1\x20\n", "-0.5 0 2:1\x20\n" * 2, ": got 4 support vectors, expected 3"),
    "negative count": (REGRESSION, "total_sv 2", "total_sv -1", ": got 2 support vectors, expected -1"),
    "no vectors": (REGRESSION, "total_sv 2", "total_sv 0", ": got '1.5 1:0.5 3:1', expected the end of the file"),
    "no probB": (PROBABLE, "probB 0.5 0 1e-3\n", "", ": got no probB above the line SV, expected 'probB ...'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_model_names_file_got_expected(tmp_path: Path, name: str) -> None:
    good, old, new, part = BAD[name]
    assert old in good
    (tmp_path / "bad.model").write_text(good.replace(old, new, 1))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"bad\.model(, line \d+)?: got .*expected") as caught:
        libsvm.load_model(tmp_path / "bad.model")
    assert tracemalloc.get_traced_memory()[1] < 1e7, "counts of a file take no memory"
    tracemalloc.stop()
    assert part in str(caught.value)


@pytest.mark.parametrize("good", [GOOD, PAIRS, REGRESSION, PROBABLE, SCALE, ONE_CLASS], ids=range(6))
def test_every_cut_of_a_model_is_noticed(tmp_path: Path, good: str) -> None:
    for end in range(len(good)):
        (tmp_path / "cut.model").write_text(good[:end])
        with pytest.raises(ValueError, match=r"cut.model(, line \d+)?: got .*expected"):
            libsvm.load_model(tmp_path / "cut.model")
    (tmp_path / "whole").write_text(good)
    model = libsvm.load_model(tmp_path / "whole")
    if good == PAIRS:
        assert model.dual_coef.tolist() == [[1.5, -0.5, -1], [-1, 0, 2]]
        assert model.support_vectors.toarray().tolist() == [[0.5, 0, 1], [0, 1, 0], [0, 0, 0]]
        assert (model.intercept.tolist(), model.classes.tolist()) == ([-0.25, 1, -2], [1, -1, 4])
        assert model.n_support.tolist() == [1, 2, 0]
    if good == GOOD:
        assert model.dual_coef.tolist() == [[-0.5, -1.0, 1.5]]
        assert model.support_vectors.toarray().tolist() == [[0, 1, 0], [2, -3, 0], [0.5, 0, 1]]
        assert (model.intercept.tolist(), model.n_support.tolist()) == ([-0.25], [2, 1])
        assert model.kernel == kernels.make("poly", gamma=0.5, coef0=-1, degree=3)


# Models: what cannot be written


def test_what_the_format_cannot_hold(tmp_path: Path) -> None:
    three, two = model_of("c_svc", 3), model_of("c_svc", 2)
    for model, words in (
        (replace(three, dual_coef=np.ones((3, 11))), "each pair of classes, got one for each of 3"),
        (replace(three, classes=np.array([1.0, 2.5, 3])), "integer labels only"),
        (replace(three, task="epsilon_svr"), "cannot store a model with task 'epsilon_svr' and 3 classes"),
        (model_of("c_svc"), "cannot store a model with task 'c_svc' and 0 classes"),
        (model_of("spam"), "with task 'spam'"),
        (replace(three, intercept=np.array([0, np.inf, 1])), "not finite"),
        (replace(two, kernel=kernels.make("cosine")), "no kernel 'cosine'"),
        (replace(two, kernel=kernels.Kernel("exp(-dot)")), "no kernel 'expression'"),
        (replace(two, task="one_class"), "cannot store a model with task 'one_class' and 2 classes"),
        (replace(two, classes=np.array(["a", "b"])), "integer labels"),
        (replace(two, classes=np.array([0, 2**31])), "integer labels"),
    ):
        with pytest.raises(ValueError, match=words):
            libsvm.save_model(model, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_text_are_refused_early(tmp_path: Path) -> None:
    """A source of endless zeros, and a file of NumPy's, as data and as a model."""
    array = tmp_path / "rows.npy"
    np.save(array, np.zeros(3))
    for load, kind in (
        (svmlight.read_problem, "svmlight text"),
        (libsvm.load_model, "a model"),
        (npz.load_model, "a model"),
    ):
        with pytest.raises(ValueError, match=f"/dev/zero: got zero bytes in a long line, expected {kind}"):
            load("/dev/zero")
        with pytest.raises(ValueError, match=rf"rows\.npy: got a file of NumPy's or a zip archive, expected {kind}"):
            load(array)


@pytest.mark.full
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("damage", ["cut", "not compressed"])
def test_damaged_compressed_data(tmp_path: Path, suffix: str, damage: str) -> None:
    rng = np.random.default_rng(0)
    text = "".join(f"1 1:{v!r}\n" for v in rng.random(5000).tolist()).encode()
    whole = PACK[suffix](text)
    path = tmp_path / f"data{suffix}"
    path.write_bytes(text if damage == "not compressed" else whole[: len(whole) * 9 // 10])
    with pytest.raises(ValueError, match=r"data.*, line \d+: got a damaged or truncated stream") as caught:
        svmlight.read_problem(path)
    line = int(str(caught.value).split("line ")[1].split(":")[0])
    assert line == 1 if damage == "not compressed" else line < 5001
    assert damage == "not compressed" or suffix == ".bz2" or line > 3000
