"""kernel_matrix: K(X, Y) from a device, whatever the layout, the memory and the shape of the input."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from clsvm import Kernel, kernel_matrix
from clsvm.gram import layouts
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(150, 40)), RNG.normal(size=(333, 40))
FAR = np.array([[1e-3], [1e13]])
BLOCKS = X * (np.arange(40) // 10 == np.arange(150)[:, None] % 4)  # four patterns: rows to cluster


def largest_error(K: np.ndarray, kernel: Kernel, X: Any, Y: Any) -> float:
    expected = kernel(X, Y)
    assert K.shape == expected.shape
    return float(np.abs(K - expected).max(initial=0.0) / max(1.0, np.abs(expected).max(initial=0.0)))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("rows", [X, BLOCKS])
def test_is_the_kernel_function(device: str, profile: str, rows: np.ndarray, form: Any) -> None:
    """Rows of the result are X: nothing is turned round where a function is not symmetric."""
    symmetric = Kernel("rbf", gamma=0.05), Kernel("dot + c", c=2.0)
    for kernel in (*symmetric, Kernel("exp(-0.1 * sqdist) * (1 + xx)"), Kernel.elementwise("x * abs(y)")):
        for left, right in ((rows, Y), (rows, None), (Y, rows[:1]), (rows[:1], rows)):
            K = kernel_matrix(form(left), None if right is None else form(right), kernel, device=device)
            assert largest_error(K, kernel, left, right) < 1e-5


@pytest.mark.oclgrind
def test_small_matrices(device: str, profile: str) -> None:
    """The rows of a cluster, padding included, are more than there are working vectors."""
    few = BLOCKS[:20, :12]
    for kernel in (Kernel("rbf", gamma=0.05), Kernel("laplacian", gamma=0.1)):
        assert largest_error(kernel_matrix(few[:3], few, kernel, device=device), kernel, few[:3], few) < 1e-5
    csr = sp.csr_matrix(few)
    assert largest_error(kernel_matrix(csr, csr, kernel, device=device), kernel, few, few) < 1e-5


def test_in_little_memory_and_in_float64(device: str) -> None:
    kernel = Kernel("matern52", gamma=0.2)
    K = kernel_matrix(X, Y, "matern52", gamma=0.2, device=device, memory_limit="300kB")
    np.testing.assert_array_equal(K, kernel_matrix(X, Y, kernel, device=device))
    K = kernel_matrix(X, Y, kernel, device=device, dtype="float64", memory_limit="600kB")
    assert K.dtype == np.float64
    assert largest_error(K, kernel, X, Y) < 1e-14
    with pytest.raises(ValueError, match="memory_limit"):
        kernel_matrix(X, Y, kernel, device=device, memory_limit="10kB")


@pytest.mark.parametrize(
    ("X", "Y", "options", "match"),
    [
        (abs(X), Y, {"kernel": "spam"}, "unknown kernel 'spam'"),
        (abs(X), Y, {"dtype": "float16"}, "dtype must be 'float32' or 'float64', got 'float16'"),
        (abs(X), Y[:, :3], {}, "ncompatible dimension"),
        (abs(X), Y * np.nan, {}, "Input Y contains NaN"),
        (X * np.nan, Y, {}, "Input X contains NaN"),
        (abs(X), Y[0], {}, "Y: Expected 2D array"),
        (abs(X), Y * 1e30, {}, "norm of a row is too large for float32"),
        (abs(X), Y, {"kernel": "chi2"}, "Y: kernel chi2 is for rows without negative values"),
        (X, abs(Y), {"kernel": "chi2"}, "X: kernel chi2 is for rows without negative values"),
        (abs(X), Y, {"kernel": Kernel("dot + c", c=1e39)}, "c=1e.39 is outside the range .* for float32"),
        (abs(X), Y, {"kernel": Kernel("power(10, c) * dot", c=39.0)}, "is too large for float32"),
        (FAR, FAR[1:], {"kernel": "poly"}, "is inf in float32 for row 1 of X and row 0 of Y"),
        (FAR * 1e-173, FAR, {"kernel": "cosine"}, r"squared norms from \S+ to \S+: .* leave the range of float64"),
        (X, Y, {"kernel": Kernel("rbf"), "gamma": 1.0}, "parameters gamma are only for a kernel given by name"),
    ],
)
def test_bad_input(device: str, X: np.ndarray, Y: np.ndarray, options: dict[str, Any], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        kernel_matrix(X, Y, device=device, **options)


@pytest.mark.parametrize("kind", ["dense", "clustered", "csr", "hybrid", "inverted"])
def test_float32_rows_are_their_numbers(device: str, profile: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are centred before they are rounded, as the same numbers in float64 are, in all layouts."""
    choose = layouts.choose
    monkeypatch.setattr(layouts, "choose", lambda profile, X, spec: choose(profile, X, spec, kind))
    rows = (BLOCKS + (np.arange(40) < 5) * 3.3).astype(np.float32)
    wide = rows.astype(np.float64)
    forms = (np.asarray, sp.csr_matrix) if kind != "dense" else (np.asarray,)
    kernel = Kernel("rbf", gamma=2.0)
    for form in forms:
        assert choose(Stream(device).profile, form(rows), kernel.spec, kind).centre.any()
        for dtype in ("float32", "float64") if profile != "gpu-pair" else ("float32",):
            K, expected = (kernel_matrix(form(some), None, kernel, device=device, dtype=dtype) for some in (rows, wide))
            np.testing.assert_array_equal(K, expected)
            assert largest_error(K, kernel, wide, None) < {"float32": 1e-4, "float64": 1e-13}[dtype]


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [("float32", -87.0, 88.7), ("float64", -708.0, 709.7)], ids=["float32", "float64"]
)
def test_exponentials(device: str, dtype: str, least: float, most: float, stream: Stream) -> None:
    """To 1.1 units in the last place over the whole range, 1 at 0, 0 below the range."""
    if dtype == "float64" and not devices.find(device).fp64:
        pytest.skip("the device has no float64")
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.uniform(least, most, 20000), rng.uniform(-1, 1, 5000), -(10.0 ** rng.uniform(-12, 1, 5000))]
    )
    x = np.concatenate([x, np.arange(-80, 80) * np.log(2) / 2, [least, most, 0.0]]).astype(dtype)
    x = x[(x >= least) & (x <= most)]

    def exponentials(x: np.ndarray) -> np.ndarray:
        return kernel_matrix(x[:, None], np.ones((1, 1), dtype), Kernel("exp(dot)"), device=device, dtype=dtype)[:, 0]

    expected, got = np.exp(x.astype(np.longdouble)), exponentials(x)
    units = np.abs(got - expected) / np.spacing(expected.astype(dtype))
    allowed = 1.1 if stream.profile.style == "simd" else 3.0  # OpenCL's own
    assert units.max() <= allowed, x[units.argmax()]
    assert (got[x == 0] == 1).all()
    below = np.array([1.01 * least, 2 * least, -1e10], dtype)
    assert (exponentials(below) <= 2 * np.finfo(dtype).tiny).all()
    assert exponentials(below)[1:].tolist() == [0.0, 0.0]


def test_float64_where_a_device_has_none(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host computes it then, and what is too small for float32, too."""
    monkeypatch.setenv("CLSVM_PROFILE", "gpu-pair")
    X = np.random.default_rng(0).normal(size=(50, 3))
    for rows, gamma in ((X, 0.3), (X * 1e-20, 0.3e40)):
        kernel = Kernel("exp(-gamma * sqdist)", gamma=gamma)
        K = kernel_matrix(rows, rows[:20], kernel, device=device, dtype="float64")
        assert K.dtype == np.float64
        np.testing.assert_allclose(K, kernel(rows, rows[:20]), rtol=1e-12)
