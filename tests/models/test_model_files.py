"""Our model files: every kernel function and label comes back bit for bit, and nothing but a model or an error."""

import contextlib
import json
import math
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from clsvm import Kernel, kernels, load_model, save_model
from clsvm.estimators.svm import SVC
from clsvm.gram.layouts.record import Plan
from clsvm.models import svmlight
from clsvm.models.model import KernelModel

EXPRESSION = Kernel("exp(-gamma * sqdist) + c * dot ** degree", gamma=0.3, c=0.1 + 0.2, degree=2)
ELEMENTWISE = Kernel.elementwise("abs(x - y)", "exp(-gamma * s) * c", gamma=0.7, c=1 / 3)
COMPOSED = 0.5 * Kernel("rbf", gamma=0.2) + Kernel("poly", gamma=0.1, coef0=1, degree=3)
KERNELS = [*(kernels.make(name) for name in kernels.BUILTIN), EXPRESSION, ELEMENTWISE, COMPOSED]
LABELS: dict[str, list[Any]] = {
    "int64": [-1, 1],
    "int8": [-3, 5],
    "uint64": [2, 2**63 + 1],
    "float64": [-0.5, 1 / 3],
    "float32": [0.1, 0.2],
    "bool": [False, True],
    "U3": ["ham", "spam"],
    "U7": ["Ähre", "😀"],
}


def make_model(kernel: Kernel = EXPRESSION, sparse_: bool = False, kind: str | None = "dense") -> KernelModel:
    """Nine support vectors with seven features, some of them zero."""
    rng = np.random.default_rng(3)
    X = np.abs(rng.normal(size=(9, 7))) * (rng.random((9, 7)) < 0.6)
    X[4] = 0
    centre = rng.normal(size=7) if kernel.spec.of_distance and kind == "dense" else np.zeros(7)
    return KernelModel(
        kernel=kernel,
        support_vectors=sparse.csr_matrix(X) if sparse_ else X,
        dual_coef=np.where(np.arange(9) < 4, -1, 1) * rng.random(9)[np.newaxis],
        intercept=np.array([0.123456789012345678]),
        classes=np.array([-1, 1]),
        n_support=np.array([4, 5], np.int32),
        plan=None if kind is None else Plan(kind, centre, "chosen by hand"),
    )


def assert_same(got: KernelModel, expected: KernelModel) -> None:
    """Every field, with its bits and dtype."""
    assert (got.kernel, got.kernel.record(), got.dtype) == (expected.kernel, expected.kernel.record(), expected.dtype)
    assert got.task == expected.task
    assert (got.plan is None) == (expected.plan is None)
    if got.plan and expected.plan:
        assert (got.plan.kind, got.plan.reason) == (expected.plan.kind, expected.plan.reason)
        assert got.plan.centre.tobytes() == expected.plan.centre.tobytes()
    vectors, wanted = got.support_vectors, expected.support_vectors
    assert (sparse.issparse(vectors), vectors.shape) == (sparse.issparse(wanted), wanted.shape)
    pairs = [(getattr(got, name), getattr(expected, name)) for name in ("dual_coef", "intercept", "classes")]
    pairs += [(got.n_support, expected.n_support)]
    if sparse.issparse(vectors):
        pairs += [(vectors.data, wanted.data), (vectors.indices, wanted.indices), (vectors.indptr, wanted.indptr)]
    else:
        pairs += [(vectors, wanted)]
    for one, other in pairs:
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        assert one.flags.writeable
        assert one.flags.owndata or one.base.flags.writeable


# What comes back


@pytest.mark.parametrize("sparse_", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_same_bits(device: str, tmp_path: Path, kernel: Kernel, sparse_: bool) -> None:
    kind = "csr" if sparse_ else "dense"
    model = make_model(kernel, sparse_, kind)
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert_same(loaded, model)
    X = model.support_vectors[::2] * 1.5
    np.testing.assert_array_equal(loaded.decision_function(X, device), model.decision_function(X, device))


@pytest.mark.parametrize("dtype", LABELS)
def test_labels(tmp_path: Path, dtype: str) -> None:
    model = replace(make_model(), classes=np.array(LABELS[dtype], dtype))
    save_model(model, tmp_path / "m")
    assert_same(load_model(tmp_path / "m"), model)


def test_labels_that_are_objects(tmp_path: Path) -> None:
    save_model(replace(make_model(), classes=np.array(["a", "bc"], object)), tmp_path / "m")
    assert load_model(tmp_path / "m").classes.tolist() == ["a", "bc"]
    for labels, words in {
        (1, "a"): r"labels must be numbers, truth values or text, got object \[1, 'a'\]",
        ("a", "b\0"): "must not end with null characters",
        (b"a", b"b"): "labels must be",
        (1j, 2j): "labels must be",
    }.items():
        array = np.array(labels, None if isinstance(labels[0], complex | bytes) else object)
        with pytest.raises(ValueError, match=words):
            save_model(replace(make_model(), classes=array), tmp_path / "new")
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", [None, "dense", "clustered", "csr"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_plans_and_dtypes(tmp_path: Path, kind: str | None, dtype: str) -> None:
    kernel = kernels.make("rbf", gamma=0.3)
    for vectors in (np.float32, np.float64):
        model = make_model(kernel, kind == "csr", kind)
        model = replace(model, dtype=dtype, support_vectors=model.support_vectors.astype(vectors))
        save_model(model, tmp_path / "m")
        assert_same(load_model(tmp_path / "m"), model)


def test_other_forms_of_arrays(tmp_path: Path) -> None:
    """Columns in Fortran's order, long indices, unsorted and doubled entries: written as what they mean."""
    model = make_model()
    save_model(replace(model, support_vectors=np.asfortranarray(model.support_vectors)), tmp_path / "m")
    assert_same(load_model(tmp_path / "m"), model)
    rows = sparse.csr_matrix((np.array([1.0, 2, 3, 4]), np.array([3, 0, 0, 6]), np.array([0, 3, 4])), shape=(2, 7))
    rows.indices, rows.indptr = rows.indices.astype(np.int64), rows.indptr.astype(np.int64)
    small = replace(model, support_vectors=rows, dual_coef=np.array([[-1.0, 1]]), n_support=np.array([1, 1]), plan=None)
    save_model(small, tmp_path / "m")
    loaded = load_model(tmp_path / "m").support_vectors
    assert (loaded.indices.tolist(), loaded.data.tolist(), loaded.indptr.tolist()) == ([0, 3, 6], [5, 1, 4], [0, 2, 3])
    assert rows.indices.tolist() == [3, 0, 0, 6], "the caller's stay as they are"


def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    save_model(make_model(), path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save_model(replace(make_model(), intercept=np.array([2.0])), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "change",
    [{"intercept": np.array([np.nan])}, {"classes": np.array([np.nan, 1.0])}, {"plan": Plan("dense", np.zeros(6), "")}],
    ids=lambda change: "+".join(change),
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, change: dict[str, Any]) -> None:
    """By the checks of a file that is read, of which the tables below have more."""
    with pytest.raises(ValueError, match=r"m: got .*, expected "):
        save_model(replace(make_model(), **change), tmp_path / "m")
    assert not (tmp_path / "m").exists()


# What is refused

Arrays = dict[str, Any]


def arrays_of(model: KernelModel, folder: Path) -> Arrays:
    save_model(model, folder / "good")
    with np.load(folder / "good") as file:
        return dict(file)


def record(**change: Any) -> np.ndarray:
    return np.array(json.dumps({**EXPRESSION.record(), **change}))


def put(at: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.where(np.arange(len(array)) == at % len(array), value, array).astype(array.dtype)


def without(*names: str) -> Callable[[Arrays], None]:
    return lambda arrays: [arrays.pop(name) for name in names] and None


THREE = {"classes": np.arange(3), "n_support": np.array([4, 4, 1], np.int32), "dual_coef": np.ones((2, 9))}
BAD: dict[str, tuple[Arrays | Callable[[Arrays], None], str]] = {
    "other archive": (lambda arrays: arrays.clear(), "an archive of nothing, expected format 'clsvm model'"),
    "other format": ({"format": np.array("spam")}, "an archive of .*, expected format 'clsvm model'"),
    "later version": ({"version": np.array(2)}, "version 2 of 'clsvm model', expected version 1"),
    "no version": (without("version"), "no version, expected version"),
    "missing key": (without("intercept"), r"the keys .*, expected .*intercept"),
    "centre of no plan": ({"layout": np.array("")}, r"centre float64 of shape \(7,\), expected .*\(0,\)"),
    "kernel is no text": ({"kernel": np.zeros(3)}, "kernel float64 of shape .*, expected one text"),
    "kernel is no JSON": ({"kernel": np.array("{")}, "expected a JSON description of a kernel function"),
    "deep JSON": ({"kernel": np.array("[" * 100000)}, "expected a JSON description of a kernel function"),
    "code as expression": (
        {"kernel": record(expression="__import__('os').system('true')")},
        "not allowed in an expression",
    ),
    "built-in with other text": (
        {"kernel": np.array(json.dumps({**kernels.make("rbf").record(), "expression": "exp(-2 * gamma * sqdist)"}))},
        r"dictionary must equal the record\(\) of Kernel",
    ),
    "more in the record": ({"kernel": record(spam=1)}, r"dictionary must equal the record\(\) of Kernel"),
    "nan parameter": ({"kernel": record(params={"gamma": math.nan, "c": 1, "degree": 2})}, "gamma must be finite"),
    "parameter of text": ({"kernel": record(params={"gamma": "1", "c": 1, "degree": 2})}, "gamma must be a number"),
    "dtype": ({"dtype": np.array("float16")}, "dtype 'float16', expected float32 or float64"),
    "infinite vectors": ({"support_vectors": np.full((9, 7), np.inf)}, "not finite, expected finite"),
    "too few vectors": ({"support_vectors": np.ones((8, 7)), "centre": np.zeros(7)}, "sum .* support vectors, 8"),
    "negative count": ({"n_support": np.array([-1, 10], np.int32)}, r"n_support \[-1, 10\]"),
    "coefficients": ({"dual_coef": np.ones((1, 8))}, r"dual_coef float64 of shape \(1, 8\), expected .*\(1, 9\)"),
    "one number as coefficients": (
        {
            "task": np.array("nystrom_numbers"),
            "classes": np.zeros(0),
            "n_support": np.array([9], np.int32),
            "dual_coef": np.array(1.0),
        },
        r"dual_coef float64 of shape \(\)",
    ),
    "one class": ({"classes": np.arange(1)}, r"classes int64 of shape \(1,\), expected two labels or more"),
    "unknown task": ({"task": np.array("spam")}, "task 'spam', expected c_svc, nu_svc, one_class, epsilon_svr, nu_svr"),
    "classes of a regression": ({"task": np.array("nu_svr")}, r"classes int64 of shape \(2,\), expected no labels"),
    "offsets of pairs": (THREE, r"intercept float64 of shape \(1,\), expected .*\(3,\)"),
    "unknown layout": ({"layout": np.array("spam")}, "layout 'spam', expected one that"),
}
BAD_CSR: dict[str, tuple[Arrays | Callable[[Arrays], None], str]] = {
    "column beyond": ({"indices": put(-1, 9)}, "that do not fit together .*indices must be < 7"),
    "columns out of order": ({"indices": lambda a: np.r_[a[1::-1], a[2:]]}, "indices out of order"),
    "too few columns": ({"indices": lambda a: a[:-1]}, "that do not fit together"),
    "row beyond": ({"indptr": put(-1, 1000)}, "that do not fit together"),
    "absurd width": ({"shape": np.array([9, 2**40])}, "shape"),
    "data of text": ({"data": np.array(["a"])}, "data <U1"),
}


@pytest.mark.parametrize("name", [*BAD, *BAD_CSR])
def test_wrong_arrays(tmp_path: Path, name: str) -> None:
    change, words = {**BAD, **BAD_CSR}[name]
    arrays = arrays_of(make_model(sparse_=name in BAD_CSR), tmp_path)
    if callable(change):
        change(arrays)
    else:
        arrays |= {key: new(arrays[key]) if callable(new) else new for key, new in change.items()}
    with open(tmp_path / "bad", "wb") as stream:
        np.savez(stream, **arrays)
    with pytest.raises(ValueError, match=words) as caught:
        load_model(tmp_path / "bad")
    assert str(caught.value).startswith(f"{tmp_path / 'bad'}: got ")
    assert ", expected " in str(caught.value)
    assert len(str(caught.value)) < 2000


class Trap:
    """What runs when a pickle is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("opened",)


def test_a_pickle_inside_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = arrays_of(make_model(), tmp_path)
    for key in ("classes", "kernel", "spam"):
        with open(tmp_path / "bad", "wb") as stream:
            np.savez(stream, **{**arrays, key: np.array([Trap(), Trap()], object)})
        with pytest.raises(ValueError, match=r"bad: got a damaged file \(Object arrays cannot be loaded"):
            load_model(tmp_path / "bad")
    assert not (tmp_path / "opened").exists()


def member(shape: str, descr: str = "<f8", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


MEMBERS: dict[str, bytes] = {
    "empty": b"",
    "header beyond the end": b"\x93NUMPY\x01\x00\xff\xffspam",
    "shape that overflows": member("(4294967296, 4294967296)"),
    "absurd shape": member("(4294967296,)"),
    "negative shape": member("(-1,)", data=bytes(8)),
    "code in the header": member("[print('opened')]", data=bytes(8)),
    "no array": b"spam",
    "characters that are none": member("(1,)", "<U1", b"\xff\xff\xff\x7f"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_wrong_members(tmp_path: Path, name: str) -> None:
    arrays_of(make_model(), tmp_path)
    for key in ("intercept", "kernel", "classes"):
        with zipfile.ZipFile(tmp_path / "good") as good, zipfile.ZipFile(tmp_path / "bad", "w") as bad:
            for info in good.infolist():
                bad.writestr(info.filename, MEMBERS[name] if info.filename == f"{key}.npy" else good.read(info))
        with pytest.raises(ValueError, match=r"bad: got .*, expected "):
            load_model(tmp_path / "bad")


def test_archives_that_grow(tmp_path: Path) -> None:
    """Compressed members, and members that declare more than the file holds."""
    arrays = arrays_of(make_model(), tmp_path)
    with open(tmp_path / "bad", "wb") as stream:
        np.savez_compressed(stream, **{**arrays, "support_vectors": np.zeros((2000, 7))})
    with pytest.raises(ValueError, match=r"bad: got a damaged file \(an array is compressed\)"):
        load_model(tmp_path / "bad")
    content = bytearray((tmp_path / "good").read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 24 : at + 28] = (2**31).to_bytes(4, "little")  # the first member's declared size
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ValueError, match=r"bad: got a damaged file \(arrays overlap\)"):
        load_model(tmp_path / "bad")


def test_any_damage_is_an_error_or_harmless(tmp_path: Path) -> None:
    """A byte that is changed, one more or one less, wherever it stands."""
    path, model = tmp_path / "m", make_model(sparse_=True)
    save_model(model, path)
    good, harmless = path.read_bytes(), 0
    for place in range(0, len(good), 29):
        for new in (bytes([good[place] ^ 1 << place % 8]), b"", good[place : place + 1] * 2):
            path.write_bytes(good[:place] + new + good[place + 1 :])
            with contextlib.suppress(ValueError):
                assert_same(load_model(path), model)
                harmless += 1
    assert harmless < len(good) / 100  # (of dates in the archive)


@pytest.mark.parametrize(("good", "wrong"), [(b"2200)", b"2000)"), (b"(9,", b"(9=")])
def test_a_damaged_header_of_a_long_array(tmp_path: Path, good: bytes, wrong: bytes) -> None:
    """NumPy takes fewer columns than there are, and reads the rest of the member never."""
    path, X = tmp_path / "m", np.random.default_rng(0).normal(size=(9, 2200))
    save_model(replace(make_model(), support_vectors=X, plan=None), path)
    content = path.read_bytes()
    assert content.count(good) >= 1
    path.write_bytes(content.replace(good, wrong))
    with pytest.raises(ValueError, match="damaged"):
        load_model(path)


@pytest.mark.parametrize("sparse_", [False, True], ids=["dense", "csr"])
def test_more_columns_than_the_model_has(device: str, sparse_: bool) -> None:
    """The plan's centre grows with the support vectors, whatever lies behind it."""
    kernel = kernels.make("exponential", gamma=0.3)
    model = make_model(kernel, sparse_)
    assert model.plan
    assert model.plan.centre.any()
    X = sparse.csr_matrix(np.random.default_rng(0).normal(size=(20, 40)))
    kept, padded = svmlight.match_columns(model, X[:, :4])
    assert kept is model
    np.testing.assert_array_equal(padded.toarray(), np.pad(X[:, :4].toarray(), ((0, 0), (0, 3))))
    wide, same = svmlight.match_columns(model, X)
    assert wide.plan
    np.testing.assert_array_equal(wide.plan.centre, np.r_[model.plan.centre, np.zeros(33)])
    vectors = wide.support_vectors.toarray()
    expected = kernel(same, vectors) @ model.dual_coef[0] + model.intercept
    np.testing.assert_allclose(wide.decision_function(same, device), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("k", [2, 4])
def test_a_machine_of_crammer_and_singer(tmp_path: Path, k: int) -> None:
    rng = np.random.default_rng(2)
    y = rng.integers(0, k, 90)
    X = rng.normal(size=(90, 3)) + np.eye(k, 3)[y]
    model = SVC(multi_class="crammer_singer").fit(X, np.array(["a", "b", "c", "d"])[y]).model_
    save_model(model, tmp_path / "m")
    again = load_model(tmp_path / "m")
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    assert again.decision_function(X).shape == (90, k)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
