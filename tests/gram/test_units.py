"""Matrix units: their arithmetic, emulated in OpenCL C, through the kernels of a GPU; and when they are used."""

from dataclasses import replace

import numpy as np
import pytest

from clsvm import SVC, kernels
from clsvm.gram import blocks, layouts, units
from clsvm.gram.products import Gram, Store
from clsvm.gram.programs import UNITS, Units
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Stream
from tests.conftest import calls_of, simulated
from tests.gram.panels import gathered, products, summed

GPU = PROFILES["gpu"]
# The first of them in OpenCL C, in a tile whose local memory any device has: it takes far longer.
EMULATED = replace(
    UNITS[0], name="emulated tf32 x 3", platform="", groups=1, blocks=1, vectors=32, least=0,
    options=("-DEMULATED",), unroll="",
)  # fmt: skip
# The tile of tests, and those that GPUs have
TILES = {"small": EMULATED} | {one.text[5:]: replace(one, options=EMULATED.options, unroll="") for one in UNITS}
# Rows, features, working vectors, slabs: where these are several, rows stand in several buffers, too.
SHAPES = ((190, 37, 130, 1), (128, 16, 128, 1), (200, 3, 65, 1), (70, 1, 70, 1), (400, 90, 70, 8))


def made(stream: Stream, X: np.ndarray, kernel: kernels.Kernel, used: Units | None = EMULATED) -> Gram:
    """Products that take matrix units wherever there are many working vectors."""
    gram = products(stream, X, kernel, "dense")
    gram.min_tiles = 0
    gram.use(used)
    return gram


def values(stream: Stream, gram: Gram, m: int, slabs: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(K (m, n), D (2, m), c = 2 D K (2, n)): of the first rows against all, stored, summed, and summed alone."""
    rng, rows, of = np.random.default_rng(m), gram.rows, gathered(stream, gram, m)
    D, each = rng.normal(size=(2, m)), -(-m // slabs)
    stores = tuple(stream.zeros(4 * each * rows.n_pad) for _ in range(slabs))
    slot = rng.permutation(m).astype(np.int32)
    sums = summed(stream, gram, of, D, Store(stores, each, rows.n_pad, stream.upload(slot)))
    sums += summed(stream, gram, of, D)
    assert gram.units
    assert {name for _, name, _ in gram._grams} == {gram.units.name}
    K = np.concatenate([stream.read(store, np.float32, (each, rows.n_pad)) for store in stores])
    return K[slot][:, rows.position], D, sums


def near(device: str, kernel: kernels.Kernel, X: np.ndarray, m: int, slabs: int = 1, tile: str = "small") -> None:
    with Stream(device, profile=GPU) as stream:
        gram = made(stream, X, kernel, TILES[tile])
        K, D, c = values(stream, gram, m, slabs)
    expected = kernel(X[:m], X)
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(K, expected, rtol=0, atol=4e-6 * scale)
    np.testing.assert_allclose(c, 2 * D @ K, rtol=0, atol=1e-12 * m * scale)


@pytest.mark.parametrize("tile", list(TILES))
@pytest.mark.parametrize(("n", "d", "m", "slabs"), SHAPES)
def test_products(device: str, n: int, d: int, m: int, slabs: int, tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if slabs > 1:
        monkeypatch.setenv("CLSVM_LARGEST_BUFFER", "65536")
    X = np.random.default_rng(n).normal(size=(n, d)) / np.sqrt(d)
    near(device, kernels.make("rbf", gamma=0.7), X, m, slabs, tile)


OTHERS = [kernels.make("linear"), kernels.make("poly"), kernels.make("sigmoid", gamma=0.5), kernels.Kernel("1 / dot")]
SMALL = pytest.param(kernels.make("rbf", gamma=0.7), marks=pytest.mark.oclgrind)  # in 32 KB of local memory


@pytest.mark.parametrize("kernel", [*OTHERS, SMALL], ids=lambda kernel: kernel.name)
def test_functions(device: str, kernel: kernels.Kernel) -> None:
    """One of them has no value where there is no vector."""
    n, m = (66, 66) if simulated(device) else (100, 70)
    near(device, kernel, 1 / 3 + np.random.default_rng(1).random((n, 9)) / 3, m)


@pytest.mark.parametrize("tile", list(TILES))
@pytest.mark.parametrize("d", [5, 784])
def test_a_row_meets_itself_at_distance_0(device: str, d: int, tile: str) -> None:
    """To the last bit: squared norms are by the same units. Far from 0, where the function sees every bit."""
    X = np.random.default_rng(d).normal(size=(80, d)) + 3
    X[70] = X[3]
    kernel = kernels.Kernel("exp(-gamma * sqdist) + 0 * xx", gamma=50.0)
    with Stream(device, profile=GPU) as stream:
        gram = Gram(stream, layouts.build(stream, X, layouts.Plan("dense", np.zeros(d), ""), "float32"), kernel)
        gram.min_tiles = 0
        gram.use(TILES[tile])
        K, _, _ = values(stream, gram, 72)
    assert (np.diag(K[:, :72]) == 1).all()
    assert K[3, 70] == K[70, 3] == 1


@pytest.mark.parametrize("signs", [False, True], ids=["one sign", "both signs"])
@pytest.mark.parametrize("d", [8, 784])
def test_the_error_is_within_what_the_record_says(device: str, d: int, signs: bool) -> None:
    """Of float64's inner product, over both norms; where all terms are of one sign, cuts of sums add up."""
    rng = np.random.default_rng(d)
    X = rng.random((128, d)) * (rng.choice([-1, 1], (128, d)) if signs else 1)
    X = (X * np.exp2(rng.integers(-8, 8, (128, 1)))).astype(np.float32)
    with Stream(device, profile=GPU) as stream:
        K, _, _ = values(stream, made(stream, X, kernels.make("linear")), 128)
    exact = X.astype(np.float64)
    sizes = np.sqrt(np.square(exact).sum(axis=1))
    error = float((np.abs(K - exact @ exact.T) / np.outer(sizes, sizes)).max())
    assert error < EMULATED.error
    assert EMULATED.error < 2 * UNITS[0].error


def _without(made: Variant) -> Variant:
    words = "  units(part, u, x_low PASSED);"
    assert words in made.text
    return replace(made, text=made.text.replace(words, ""))


def test_a_trial_says_what_is_right(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Units.gram
    monkeypatch.setattr(units, "_FOUND", {})
    with Stream(device, profile=GPU) as stream:
        words = f"no matrix units are known of {stream.info.platform}"
        assert units.find_units(stream) == (None, words)
        monkeypatch.setattr(units, "UNITS", (replace(EMULATED, unroll="no OpenCL C"),))
        assert units.find_units(stream).why.startswith("emulated tf32 x 3 was not built: ")
        monkeypatch.setattr(units, "UNITS", (EMULATED,))
        with monkeypatch.context() as broken:  # (two of the three products)
            broken.setattr(Units, "gram", lambda *given: _without(build(*given)))
            assert units.find_units(stream).why.startswith("emulated tf32 x 3 is wrong by 0.0001")
        monkeypatch.setattr(units, "_FOUND", {})
        found = units.find_units(stream)
        assert found == (EMULATED, "")
        monkeypatch.setattr(units, "measure_units", None)
        assert units.find_units(stream) is found
    with Stream(device, profile=PROFILES["cpu"]) as stream:
        assert units.find_units(stream).units is None


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's profile, of a device that has the units of these tests."""
    monkeypatch.setenv("CLSVM_PROFILE", "gpu")
    monkeypatch.setattr(units, "UNITS", (EMULATED,))


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(n, 20)).astype(np.float32)
    return X, np.where(X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=n) > 0, 1, -1)


def test_a_fit(device: str, emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its products are by the units, its answer is float32's, its bound counts their error, its report says so."""
    X, y = rows(2600)
    plain = SVC(gamma=0.02, device=device).fit(X, y)
    used = calls_of(monkeypatch, Units, "gram")
    fast = SVC(gamma=0.02, device=device, precision="fast").fit(X, y)
    assert used
    assert all(call.given[2] != "tile" for call in used)
    was, now = plain.fit_report_, fast.fit_report_
    assert (was.precision, now.precision, now.dtype) == ("float32", EMULATED.name, "float32")
    assert now.converged
    assert now.violation <= fast.tol
    assert 4 < now.error_bound / was.error_bound < 12
    assert now.primal == pytest.approx(was.primal, rel=1e-4)
    np.testing.assert_allclose(fast.decision_function(X), plain.decision_function(X), atol=5e-3)
    assert now.to_dict()["precision"] == EMULATED.name


REFUSED = {
    "float64": ("rbf", "dense", "float64", "fast", "float64"),
    "element-wise": (
        "laplacian", "dense", "float32", "fast", "float32: the kernel function is no function of inner products",
    ),
    "csr": ("rbf", "csr", "float32", "fast", "float32: rows are csr, float32"),
    "not asked": ("rbf", "dense", "float32", "float32", "float32"),
    "few features": (
        "rbf", "dense", "float32", "fast",
        f"float32: {EMULATED.name} is faster only for rows of at least 21 features, got 20",
    ),
    "passing": (
        "rbf", "dense", "float32", "fast",
        "float32: K is given, is stored whole, or is of rows that pass through the device",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_where_they_are_not_used(emulated: None, name: str, monkeypatch: pytest.MonkeyPatch, stream: Stream) -> None:
    function, kind, dtype, precision, words = REFUSED[name]
    X, kernel = rows(100)[0], kernels.make(function, gamma=0.02)
    if name == "few features":
        monkeypatch.setattr(units, "UNITS", (replace(EMULATED, least=X.shape[1] + 1),))
    of = blocks.BlockGram if name == "passing" else blocks.products_of
    gram = of(stream, X, layouts.choose(stream.profile, X, kernel.spec, kind), kernel, dtype)
    assert units.choose_units(gram, precision) == (None, words)


def test_a_bound_that_is_too_coarse(device: str, emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """C so large that the units' error would hide 100 tol, and float32's would not."""
    X, y = rows(2600)
    used = calls_of(monkeypatch, Units, "gram")
    for C, words in ((1e2, EMULATED.name), (1e5, f"float32: {EMULATED.name} is too coarse for tol")):
        with pytest.warns(UserWarning, match="max_iter"):
            model = SVC(C=C, gamma=0.02, device=device, precision="fast", max_iter=100).fit(X, y)
        assert model.fit_report_.precision == words
        assert bool(used) == (words == EMULATED.name)
        used.clear()
