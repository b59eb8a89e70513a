"""LIBSVM's text formats: against LIBSVM's own programs where they are installed, and against damaged files."""

from __future__ import annotations

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

from clsvm import files, kernels
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


def problem(labels: tuple[int, int] = (1, -1), rows: int = 60, features: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Sparse rows of two overlapping classes; the first row is of labels[0]."""
    rng = np.random.default_rng(5)
    y = np.where(np.arange(rows) % 2 == 0, labels[0], labels[1])
    X = rng.normal(size=(rows, features)) + 0.6 * np.where(y == labels[0], 1, -1)[:, None]
    return np.where(rng.random(X.shape) < 0.4, 0.0, X), y


def write_text(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    """Independent of what is tested: every digit, columns from 1, zeros left out."""
    rows = (
        " ".join([f"{label:g}", *(f"{j + 1}:{v!r}" for j, v in enumerate(row.tolist()) if v)])
        for row, label in zip(X, y, strict=True)
    )
    path.write_text("".join(row + "\n" for row in rows))
    return path


def on_host(model: KernelModel, X: np.ndarray) -> np.ndarray:
    """Decision values in float64 by the kernel's oracle."""
    vectors = model.support_vectors.toarray() if sparse.issparse(model.support_vectors) else model.support_vectors
    return np.asarray(model.kernel(X, vectors) @ model.dual_coef[0] + model.intercept)


KERNELS = [
    kernels.make("linear"),
    kernels.make("poly", gamma=0.3, coef0=1.1, degree=2),
    kernels.make("rbf", gamma=0.1),
    kernels.make("sigmoid", gamma=0.05, coef0=-0.2),
]


def model_of(task: str, k: int = 0, kernel: kernels.Kernel = KERNELS[2]) -> KernelModel:
    """Eleven support vectors with five features; of more than two classes in no order, of three one without any."""
    rng = np.random.default_rng(4)
    problems = max(1, k - 1)
    counts = {0: [11], 2: [4, 7], 3: [5, 0, 6], 4: [4, 3, 3, 1]}[k]
    return KernelModel(
        kernel=kernel,
        support_vectors=sparse.csr_matrix(rng.normal(size=(11, 5)) * (rng.random((11, 5)) < 0.7)),
        dual_coef=rng.normal(size=(problems, 11)),
        intercept=rng.normal(size=len(pairs(k)) if k else 1),
        classes=np.array([-2, 5] if k == 2 else [5, -2, 9, 0][:k]) if k else np.zeros(0),
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


def test_numbers_survive_and_columns_are_padded(tmp_path: Path) -> None:
    X, y = problem()
    read, labels = svmlight.read_problem(write_text(tmp_path / "data", X, y), n_features=11)
    assert read.shape == (60, 11)
    np.testing.assert_array_equal(read.toarray()[:, :7], X)
    np.testing.assert_array_equal(labels, y)


BAD_DATA = {
    "empty": (b"", 1, "no rows"),
    "index 0": (
        b"1 1:1\n-1 0:1\n",
        2,
        "'0', expected 1 to 2147483647 (columns are numbered from 1; zero_based=False",
    ),
    "negative index": (b"1 1:1\n-1 -3:1\n", 2, "'-3:1'"),
    "index too high": (b"1 2147483648:1\n", 1, "2147483647"),
    "an index of many digits": (b"1 " + b"7" * 5000 + b":1\n", 1, "2147483647"),
    "descending": (b"1 3:1 2:1\n", 1, "index 2 after 3"),
    "no colon": (b"# head\n1 1:1\n-1 1:1 7\n", 3, "'7'"),
    "no value": (b"1 1:1\n-1 1:\n", 2, "value ''"),
    "nan": (b"1 1:1\n-1 1:nan\n", 2, "value 'nan'"),
    "bad label": (b"1 1:1\nspam 1:2\n", 2, "label 'spam'"),
    "label missing": (b"1 1:1\n1:2 2:2\n", 2, "label '1:2'"),
    "binary": (b"1 1:1\n\x00\xff\xfe\x01\n", 2, "label"),
    "too wide": (b"1 1:1\n1 5:1\n", 2, "at most 4"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_names_file_line_got_expected(tmp_path: Path, name: str) -> None:
    content, line, part = BAD_DATA[name]
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"expected") as caught:
        svmlight.read_problem(path, n_features=4 if name == "too wide" else None)
    assert f"bad.txt, line {line}: " in str(caught.value)
    assert part in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("damage", ["cut", "not compressed"])
def test_damaged_compressed_data(tmp_path: Path, suffix: str, damage: str) -> None:
    rng = np.random.default_rng(0)
    text = "".join(f"1 1:{v!r}\n" for v in rng.random(50000).tolist()).encode()
    whole = PACK[suffix](text)
    path = tmp_path / f"data{suffix}"
    path.write_bytes(text if damage == "not compressed" else whole[: len(whole) * 9 // 10])
    with pytest.raises(ValueError, match=r"data.*, line \d+: got a damaged or truncated stream") as caught:
        svmlight.read_problem(path)
    line = int(str(caught.value).split("line ")[1].split(":")[0])
    assert line == 1 if damage == "not compressed" else line < 50001
    assert damage == "not compressed" or suffix == ".bz2" or line > 30000


@pytest.mark.parametrize("name", ["rows.npy", "rows.npz"])
def test_files_of_numpy_are_told(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    np.save(path, np.eye(3)) if name.endswith("npy") else np.savez(path, X=np.eye(3))
    with pytest.raises(ValueError, match=f"{name}: got a file of NumPy's or a zip archive, expected svmlight text"):
        svmlight.read_problem(path)


def test_missing_data_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        svmlight.read_problem(tmp_path / "none.xz")
    with pytest.raises(IsADirectoryError):
        svmlight.read_problem(tmp_path)


# Models: round trips


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("task", "k"), [*MODELS, ("c_svc", 3)])
@pytest.mark.parametrize("write", [libsvm.save_model, npz.save_model], ids=["LIBSVM's", "ours"])
def test_the_same_model_comes_back(tmp_path: Path, task: str, k: int, write: Any, kernel: kernels.Kernel) -> None:
    model = model_of(task, k, kernel)
    write(model, tmp_path / "m")
    read = npz.load_model(tmp_path / "m")
    assert (read.kernel, read.task) == (model.kernel, task)
    np.testing.assert_array_equal(read.support_vectors.toarray(), model.support_vectors.toarray())
    for name in ("dual_coef", "intercept", "classes", "n_support"):
        got, expected = getattr(read, name), getattr(model, name)
        np.testing.assert_array_equal(got, expected)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)


def test_one_class_predicts_by_the_sign() -> None:
    model = model_of("one_class", kernel=kernels.make("rbf", gamma=0.2))
    X = np.random.default_rng(0).normal(size=(50, 5))
    values = model.decision_function(X)
    assert -1 < np.mean(np.sign(values)) < 1
    np.testing.assert_array_equal(model.predict(X), np.sign(values))
    np.testing.assert_array_equal(replace(model, task="epsilon_svr").predict(X), values)


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
    with open(tmp_path / "m", "a") as stream:
        stream.write("1 1:1\n")
    with pytest.raises(ValueError, match=r"m, line 8: got '1 1:1', expected the end of the file: total_sv is 0"):
        libsvm.load_model(tmp_path / "m")


def test_empty_last_columns_and_zero_rows_survive(tmp_path: Path) -> None:
    model = model_of("c_svc", 2)
    vectors = model.support_vectors.toarray()
    vectors[:, 3:], vectors[0], vectors[8] = 0, 0, 0
    libsvm.save_model(replace(model, support_vectors=vectors), tmp_path / "model")
    read = libsvm.load_model(tmp_path / "model").support_vectors
    assert read.shape == (11, 5)
    np.testing.assert_array_equal(read.toarray(), vectors)


def parse_naively(path: Path, X: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """LIBSVM's decision values for X from its model text alone, in float64; label[0] where they are positive."""
    head, body = path.read_text().split("SV\n")
    keys = {line.split()[0]: line.split()[1:] for line in head.splitlines()}
    g, r, d = (float(keys.get(key, ["0"])[0]) for key in ("gamma", "coef0", "degree"))
    total = np.full(len(X), -float(keys["rho"][0]))
    for line in body.splitlines():
        coef, *cells = line.split()
        v = np.zeros(X.shape[1])
        for cell in cells:
            v[int(cell.split(":")[0]) - 1] = float(cell.split(":")[1])
        values = {
            "linear": X @ v,
            "polynomial": (g * (X @ v) + r) ** d,
            "rbf": np.exp(-g * ((X - v) ** 2).sum(axis=1)),
            "sigmoid": np.tanh(g * (X @ v) + r),
        }
        total += float(coef) * values[keys["kernel_type"][0]]
    return total, [int(label) for label in keys["label"]]


@needs_libsvm
@pytest.mark.parametrize("labels", [(1, -1), (-1, 1), (0, 1), (7, 3)], ids=str)
@pytest.mark.parametrize("kind", range(4))
def test_reads_models_of_svm_train(tmp_path: Path, kind: int, labels: tuple[int, int]) -> None:
    X, y = problem(labels)
    data, path = write_text(tmp_path / "data", X, y), tmp_path / "model"
    flags = ["-t", str(kind), "-g", "0.2", "-r", "0.5", "-d", "2", "-c", "3", "-q"]
    subprocess.run(["svm-train", *flags, data, path], check=True)
    subprocess.run(["svm-predict", data, path, tmp_path / "out"], check=True, capture_output=True)
    model = libsvm.load_model(path)
    expected, order = parse_naively(path, X)
    sign = 1 if order[0] == max(labels) else -1
    assert model.classes.tolist() == sorted(labels)
    np.testing.assert_allclose(on_host(model, X), sign * expected, rtol=1e-10, atol=1e-10)
    model, rows = svmlight.match_columns(model, svmlight.read_problem(data)[0])
    np.testing.assert_allclose(model.decision_function(rows), sign * expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(model.predict(rows), np.loadtxt(tmp_path / "out"))
    firsts = model.support_vectors[: model.n_support[0]].toarray()
    smaller = {row.tobytes() for row in np.round(X[y == min(labels)], 5)}
    assert all(np.round(row, 5).tobytes() in smaller for row in firsts), "support vectors of classes[0] come first"


@needs_libsvm
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("classes", [(-1, 1), (2, 1000001)], ids=str)
def test_svm_predict_reads_our_models(tmp_path: Path, kernel: kernels.Kernel, classes: tuple[int, int]) -> None:
    model, path = model_of("c_svc", 2, kernel), tmp_path / "model"
    balanced = model.dual_coef - model.dual_coef.mean()
    model = replace(model, classes=np.array(classes), dual_coef=balanced, intercept=np.array([0.0123456789012345678]))
    X, y = problem(classes, rows=300, features=5)
    libsvm.save_model(model, path)
    data = write_text(tmp_path / "data", X, y)
    subprocess.run(["svm-predict", data, path, tmp_path / "out"], check=True, capture_output=True)
    expected = np.array(classes)[(on_host(model, X) > 0).astype(int)]
    assert len(set(expected.tolist())) == 2, "a test where both classes are predicted"
    np.testing.assert_array_equal(np.loadtxt(tmp_path / "out"), expected)
    np.testing.assert_allclose(parse_naively(path, X)[0], on_host(model, X), rtol=1e-12, atol=1e-12)


def test_match_columns() -> None:
    model = model_of("c_svc", 2)
    X = sparse.csr_matrix(np.ones((3, 9)))
    wide, same = svmlight.match_columns(model, X)
    assert (wide.support_vectors.shape, same.shape) == ((11, 9), (3, 9))
    np.testing.assert_array_equal(wide.support_vectors.toarray()[:, :5], model.support_vectors.toarray())
    kept, padded = svmlight.match_columns(model, X[:, :4])
    assert kept is model
    np.testing.assert_array_equal(padded.toarray(), np.pad(np.ones((3, 4)), ((0, 0), (0, 1))))


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
ONE_CLASS = REGRESSION.replace("epsilon_svr", "one_class").replace("SV\n", f"prob_density_marks{' 1' * 10}\nSV\n")
BAD: dict[str, tuple[str, str, str, int, str]] = {
    "unknown type": (GOOD, "c_svc", "spam", 1, "svm_type spam"),
    "type without classes": (GOOD, "c_svc", "one_class", 9, "none of one_class"),
    "kernel": (GOOD, "polynomial", "spam", 2, "kernel_type spam"),
    "precomputed": (GOOD, "polynomial", "precomputed", 12, "expected 0:serial"),
    "no degree": (GOOD, "degree 3\n", "", 10, "without degree"),
    "negative degree": (GOOD, "degree 3", "degree -3", 3, "-3"),
    "nan gamma": (GOOD, "gamma 0.5", "gamma nan", 4, "finite"),
    "two gammas": (GOOD, "gamma 0.5", "gamma 0.5 1", 4, "2 values"),
    "gamma twice": (GOOD, "gamma 0.5", "gamma 0.5\ngamma 0.5", 5, "again"),
    "one class": (GOOD, "nr_class 2", "nr_class 1", 6, "1 classes"),
    "other count": (GOOD, "total_sv 3", "total_sv 4", 10, "total_sv, 4"),
    "huge count": (GOOD, "total_sv 3", "total_sv " + "9" * 400, 7, "total_sv"),
    "real label": (GOOD, "label 1 -1", "label 1 0.5", 9, "an integer, 2 times"),
    "unknown key": (GOOD, "rho 0.25", "rho 0.25\nspam 1", 9, "'spam 1'"),
    "blank line": (GOOD, "rho 0.25", "rho 0.25\n", 9, "expected a key"),
    "bad coefficient": (GOOD, "-0.5 2:1", "x 2:1", 13, "coefficient 'x'"),
    "bad value": (GOOD, "2:-3", "2:-3x", 14, "value '-3x'"),
    "unsorted": (GOOD, "1:2 2:-3", "2:2 1:-3", 14, "index 1 after 2"),
    "empty": (GOOD, GOOD, "", 1, "end of the file"),
    "a rho too few": (PAIRS, "rho 0.25 -1 2", "rho 0.25 -1", 6, "2 values of rho, expected 3"),
    "nan rho": (PAIRS, "rho 0.25 -1 2", "rho 0.25 nan 2", 6, "a finite number, 3 times"),
    "absurd classes": (PAIRS, "nr_class 3", "nr_class 999999999", 6, "3 values of rho, expected 499999998500000001"),
    "label twice": (PAIRS, "label 1 -1 4", "label 1 -1 1", 7, "labels 1 -1 1, expected 3 different 32-bit"),
    "long label": (PAIRS, "label 1 -1 4", "label 1 -1 2147483648", 7, "3 different 32-bit integers"),
    "counts": (PAIRS, "nr_sv 1 2 0", "nr_sv 1 2 1", 8, "1 + 2 + 1, expected 3 counts whose sum is total_sv, 3"),
    "text as second coefficient": (PAIRS, "-0.5 0 2:1", "-0.5 x 2:1", 11, "coefficient 'x', expected a finite"),
    "one coefficient": (PAIRS, "-0.5 0 2:1", "-0.5 2:1", 11, "coefficient '2:1', expected a finite number"),
    "one coefficient alone": (PAIRS, "-0.5 0 2:1", "-0.5", 11, "1 numbers (coefficients), expected 2"),
    "a coefficient too many": (PAIRS, "-0.5 0 2:1", "-0.5 0 1 2:1", 11, "'1', expected index:value"),
    "row too many": (PAIRS, "-0.5 0 2:1\x20\n", "-0.5 0 2:1\x20\n" * 2, 13, "got 4 support vectors, expected 3"),
    "classes of a regression": (REGRESSION, "nr_class 2", "nr_class 3", 3, "3 classes, expected 2, as epsilon_svr"),
    "label of a regression": (REGRESSION, "rho 0.25", "rho 0.25\nlabel 1 2", 6, "got label, expected none of epsilon"),
    "negative count": (REGRESSION, "total_sv 2", "total_sv -1", 4, "total_sv -1, expected 0 or more"),
    "no vectors": (REGRESSION, "total_sv 2", "total_sv 0", 7, "got '1.5 1:0.5 3:1', expected the end of the file"),
    "no probB": (PROBABLE, "probB 0.5 0 1e-3\n", "", 10, "without probB above it, expected 'probB ...'"),
    "marks of classes": (
        PROBABLE,
        "probA",
        "prob_density_marks 1\nprobA",
        8,
        "prob_density_marks, expected none of c_s",
    ),
    "probB of a regression": (SCALE, "probA 0.7", "probA 0.7\nprobB 1", 7, "got probB, expected none of epsilon_svr"),
    "negative scale": (SCALE, "probA 0.7", "probA -0.7", 6, "a scale of errors -0.7, expected 0 or more"),
    "probA of one class": (ONE_CLASS, "prob_density", "probA 1\nprob_density", 6, "probA, expected none of one_class"),
    "marks out of order": (ONE_CLASS, "marks 1", "marks 2", 6, "marks out of order, expected ascending ones"),
    "other type": (REGRESSION, "epsilon_svr", "svr", 1, "svm_type svr, expected c_svc, nu_svc, one_class, epsilon"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_model_names_file_line_got_expected(tmp_path: Path, name: str) -> None:
    good, old, new, line, part = BAD[name]
    assert old in good
    (tmp_path / "bad.model").write_text(good.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"got .*expected") as caught:
        libsvm.load_model(tmp_path / "bad.model")
    assert f"bad.model, line {line}: " in str(caught.value)
    assert part in str(caught.value)


@pytest.mark.parametrize("good", [GOOD, PAIRS, REGRESSION, PROBABLE, SCALE, ONE_CLASS], ids=range(6))
def test_every_cut_of_a_model_is_noticed(tmp_path: Path, good: str) -> None:
    for end in range(len(good)):
        (tmp_path / "cut.model").write_text(good[:end])
        with pytest.raises(ValueError, match=r"cut.model, line \d+: got .*expected"):
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
        (replace(three, dual_coef=np.ones((3, 11))), "pairs of classes, got 3 classes in one machine"),
        (replace(three, classes=np.array([1.0, 2.5, 3])), "integer labels only"),
        (replace(three, task="epsilon_svr"), "no model of 3 classes whose task is 'epsilon_svr'"),
        (model_of("c_svc"), "no model of 0 classes whose task is 'c_svc'"),
        (model_of("spam"), "whose task is 'spam'"),
        (replace(three, intercept=np.array([0, np.inf, 1])), "not finite"),
        (replace(two, kernel=kernels.make("cosine")), "no kernel 'cosine'"),
        (replace(two, kernel=kernels.Kernel("exp(-dot)")), "no kernel 'expression'"),
        (replace(two, task="one_class"), "no model of 2 classes whose task is 'one_class'"),
        (replace(two, classes=np.array(["a", "b"])), "integer labels"),
        (replace(two, classes=np.array([0, 2**31])), "integer labels"),
    ):
        with pytest.raises(ValueError, match=words):
            libsvm.save_model(model, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_line_without_end_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of zeros or of one endless line ends with an error, for data, models and compressed files."""
    with pytest.raises(ValueError, match="line 1: got zero bytes in a long line, expected svmlight text"):
        svmlight.read_problem("/dev/zero")
    array, model = tmp_path / "array", tmp_path / "model"
    with open(array, "wb") as stream:
        np.save(stream, np.zeros(3))
    libsvm.save_model(model_of("c_svc", 2, kernels.make("linear")), model)
    model.write_bytes(model.read_bytes().removesuffix(b"\n") + b"3:1 " * 100000)
    for load in (libsvm.load_model, npz.load_model):
        with pytest.raises(ValueError, match="line 1: got zero bytes in a long line, expected a model"):
            load("/dev/zero")
        with pytest.raises(ValueError, match="array: got a file of NumPy's or a zip archive, expected a model"):
            load(array)
        with monkeypatch.context() as patch:
            patch.setattr(files, "LONGEST", 1 << 18)
            with pytest.raises(ValueError, match=r"line \d+: got more than 262144 bytes without a line break"):
                load(model)
    monkeypatch.setattr(files, "LONGEST", 1 << 18)
    path = tmp_path / "rows.gz"
    for rest, right in ((b"2:1 " * 60000, True), (b"2:1 " * 100000, False)):
        path.write_bytes(gzip.compress(b"1 1:1\n-1 2:1\n1 " + rest + b"\n"))
        words = "line 3: got index 2 after 2" if right else "line 3: got more than 262144 bytes without a line break"
        with pytest.raises(ValueError, match=words):
            svmlight.read_problem(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("total_sv 2", "total_sv 1000000000000"),
        ("nr_class 2", "nr_class 1000000000"),
        ("nr_sv 1 1", "nr_sv 1 99999999"),
    ],
)
def test_counts_of_a_model_take_no_memory(tmp_path: Path, old: str, new: str) -> None:
    head = "svm_type c_svc\nkernel_type linear\nnr_class 2\ntotal_sv 2\nrho 0\nlabel 1 -1\nnr_sv 1 1\n"
    text = f"{head}SV\n1 1:1 \n-1 2:1 \n"
    (tmp_path / "m").write_text(text)
    assert len(libsvm.load_model(tmp_path / "m").classes) == 2
    (tmp_path / "m").write_text(text.replace(old, new))
    tracemalloc.start()
    with pytest.raises(ValueError, match="expected"):
        libsvm.load_model(tmp_path / "m")
    assert tracemalloc.get_traced_memory()[1] < 1e7
    tracemalloc.stop()
