"""The benchmarks of machines on centres: rows and numbers of each at tiny sizes; seconds are not looked at."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_approximation import Nystroem

from benchmarks import falkon, falkon_product
from benchmarks.__main__ import main
from benchmarks.falkon_studies import ablation, curves, features, growth, shared, table5
from benchmarks.falkon_studies.network import Network
from benchmarks.sets import MissingSetError

TINY = Network(d=60, classes=4, latent=5, hidden=12)


def two_classes(folder: Path | None) -> falkon.Split:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 4)).astype(np.float32)
    y = np.where(np.sin(2 * X[:, 0]) + X[:, 1] > 0, 1, -1)
    return X[:700], y[:700], X[700:], y[700:]


def numbers(folder: Path | None) -> falkon.Split:
    X, _, X_test, _ = two_classes(folder)
    return X, np.sin(X[:, 0]) + X[:, 1], X_test, np.sin(X_test[:, 0]) + X_test[:, 1]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets that need no files, in place of all."""
    for name, make in (("synthetic", two_classes), ("covtype", two_classes), ("kin40k", numbers)):
        monkeypatch.setitem(falkon.FALKON_SETS, name, falkon.FalkonSet(make, 0.2, 1e-5))
    monkeypatch.setattr(curves, "FIRST", 200)
    monkeypatch.setattr(table5, "Network", lambda: TINY)
    wide = table5.WideSet(table5.WIDE_SETS["synthetic"].make, gamma=0.5 / 60, C=1, penalty=1e-6)
    monkeypatch.setitem(table5.WIDE_SETS, "synthetic", wide)


def drawn(tmp_path: Path) -> tuple[str, ...]:
    """Words that ask for a picture, where there is what draws it."""
    return ("--plot", str(tmp_path / "new" / "picture.png")) if find_spec("matplotlib") else ()


def is_drawn(tmp_path: Path) -> bool:
    """Whether it is there, if it was asked for."""
    path = tmp_path / "new" / "picture.png"
    return not drawn(tmp_path) or path.read_bytes().startswith(b"\x89PNG")


def measured(name: str, device: str, tmp_path: Path, capsys: Any, *words: str) -> dict[str, Any]:
    """What the command writes; it shows the same from the file."""
    out = tmp_path / "found.json"
    assert main(["study", name, *words, "--device", device, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert (result["kind"], result["study"]) == ("study", name)
    assert {"date", "device", "machine", "versions"} <= set(result)
    capsys.readouterr()
    assert main(["table", str(out)]) == 0
    assert capsys.readouterr().out.strip()
    return result


def test_the_rows_of_a_network() -> None:
    X, y = TINY.rows(5000, 1)
    again, labels = Network(d=60, classes=4, latent=5, hidden=12).rows(5000, 1)
    np.testing.assert_array_equal(X, again)
    np.testing.assert_array_equal(y, labels)
    assert X.dtype == np.float32
    assert np.bincount(y).min() > 500
    assert not np.array_equal(X, TINY.rows(5000, 2)[0])
    spread = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2 / len(X)
    assert spread[4] > 4 * spread[5]  # five directions, and noise of 0.5
    assert spread[5] == pytest.approx(0.25, rel=0.5)


def test_table_5(tiny: None, device: str, tmp_path: Path, capsys: Any) -> None:
    words = "--sets", "synthetic", "--rows", "1200", "--centers", "150", "--libsvm-rows", "400"
    result = measured("table5", device, tmp_path, capsys, *words)
    (one,) = result["sets"]
    assert (one["set"], one["n"], one["d"]) == ("synthetic", 1200, 60)
    ours, svc, libsvm = one["rows"]
    assert [row["solver"] for row in one["rows"]] == ["FalkonClassifier", "SVC", "LIBSVM"]
    assert (ours["rows"], ours["vectors"], svc["rows"]) == (1200, 150, 1200)
    for row in ours, svc:
        assert row["error"] < 0.4
        assert row["converged"]
        assert row["seconds"] > 0
    assert libsvm["rows"] == 400
    assert libsvm["seconds"] == pytest.approx(9 * libsvm["measured_seconds"])
    assert libsvm["error"] is None
    assert 0 < libsvm["measured_error"] < 0.5
    assert "extrapolated from 400 rows" in libsvm["note"]


def test_table_5_with_all_rows_and_without_peers(tiny: None, device: str) -> None:
    given = {"sets": ["synthetic"], "device": device, "rows": 300, "centers": 50}
    rows = table5.run(shared.Options(**given, peers=["libsvm"]))["sets"][0]["rows"]
    libsvm, svc = rows[2], rows[1]
    assert libsvm["seconds"] == libsvm["measured_seconds"]
    assert libsvm["note"] == ""
    assert libsvm["error"] == pytest.approx(svc["error"], abs=0.02)
    assert len(table5.run(shared.Options(**given))["sets"][0]["rows"]) == 2


def test_the_ablation(tiny: None, device: str, tmp_path: Path, capsys: Any) -> None:
    result = measured("ablation", device, tmp_path, capsys, "--centers", "60")
    assert (result["set"], result["n"], result["centers"]) == ("covtype", 700, 60)
    assert [row["part"] for row in result["rows"]] == [part.name for part in ablation.PARTS]
    assert [row["sample"] > 60 for row in result["rows"]] == [False, False, False, True, True]
    for before, row in zip(result["rows"], result["rows"][1:], strict=False):
        assert row["gain"] == pytest.approx(before["seconds"]["total"] / row["seconds"]["total"])
    for row in result["rows"]:
        assert set(row["seconds"]) == {"layout", "preconditioner", "conjugate gradients", "total"}
        assert row["residual"] <= result["tol"]
        assert row["above_least"] < 1e-3
        assert row["error"] < 0.15
        assert row["steps"] > 0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_numpys_products_are_the_definition(dtype: str) -> None:
    rng = np.random.default_rng(0)
    X, C, w, V = rng.normal(size=(9000, 3)), rng.normal(size=(7, 3)), rng.random(9000), rng.normal(size=(1, 7))
    K, R = RBF(0.5**0.5 / 0.3**0.5)(X, C), rng.normal(size=(1, 9000))
    blocks = ablation.Blocks(X, C, 0.3, dtype)
    close = {"rtol": 1e-10 if dtype == "float64" else 1e-3, "atol": 1e-10 if dtype == "float64" else 1e-3}
    blocks.weigh(w)
    np.testing.assert_allclose(blocks.forward(V), V @ K.T, **close)
    np.testing.assert_allclose(blocks.back(R), R @ K, **close)
    np.testing.assert_allclose(blocks.forward_back(V), (V @ K.T * w) @ K, **close)
    assert blocks.passes == 3


def test_features(device: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of KeOps, which compiles for long, NumPy."""

    def product(X: Any, C: Any, V: Any, gamma: float) -> Any:
        return lambda: falkon_product.by_blocks(X, C, V, gamma).T

    monkeypatch.setattr(features, "keops", product)
    monkeypatch.setattr(features, "PROBE", 100)
    words = "--rows", "500", "--centers", "40", "--repeats", "2"
    result = measured("features", device, tmp_path, capsys, *words, *drawn(tmp_path))
    assert is_drawn(tmp_path)
    assert [row["d"] for row in result["rows"]] == [1, 3, 10, 30, 100, 300, 784]
    assert (result["n"], result["m"]) == (500, 40)
    for row in result["rows"]:
        assert row["rows"] == {"clsvm": 500, "keops": 500}
        assert row["way"] == "rows"
        assert row["apart"] < 1e-4
        assert all(len(row["all_seconds"][name]) == 2 for name in ("clsvm", "keops"))

    monkeypatch.setattr(features, "FEATURES", (3,))
    given = {"device": device, "rows": 500, "centers": 40, "repeats": 1}
    (row,) = features.run(shared.Options(**given, peers=["keops"], limit=0.0))["rows"]
    assert row["rows"] == {"clsvm": 500, "keops": 100}
    assert row["seconds"]["keops"] == pytest.approx(5 * row["all_seconds"]["keops"][0])
    assert row["apart"] is None
    (row,) = features.run(shared.Options(**given))["rows"]
    assert set(row["seconds"]) == {"clsvm"}


def test_growth(device: str, tmp_path: Path, capsys: Any) -> None:
    words = "--rows", "40000", "--centers", "20", "--memory-limit", "20MB"
    result = measured("growth", device, tmp_path, capsys, *words, *drawn(tmp_path))
    assert is_drawn(tmp_path)
    assert [row["n"] for row in result["rows"]] == [1000, 2000, 5000, 10000, 20000, 40000]
    assert (result["centers"], result["d"], result["memory_limit"]) == (20, 18, 20_000_000)
    assert np.isfinite(result["exponent"])
    for row in result["rows"]:
        assert 0 < row["bytes_held"] <= result["memory_limit"]
        assert row["rows_per_second"] == pytest.approx(row["n"] / row["seconds_per_step"])


def test_the_rows_of_growth_are_read_from_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "BLOCK", 300)
    X, y = growth.written(tmp_path / "rows.npy", 1000)
    assert isinstance(X, np.memmap)
    assert (X.shape, X.dtype) == ((1000, 18), np.float32)
    np.testing.assert_allclose(y, np.sin(X[:, 0]) + X[:, 1] * X[:, 2] / 2)
    assert 0.9 < X[-100:].std() < 1.1


def test_curves(tiny: None, device: str, tmp_path: Path, capsys: Any) -> None:
    words = "--rows", "500", "--centers", "200"
    result = measured("curves", device, tmp_path, capsys, "--sets", "kin40k,covtype", *words, *drawn(tmp_path))
    assert is_drawn(tmp_path)
    assert [one["set"] for one in result["sets"]] == ["kin40k", "covtype"]
    for one, svm, machine in zip(result["sets"], ("SVR", "SVC"), ("FalkonRegressor", "FalkonClassifier"), strict=True):
        assert [(row["machine"], row["rows"]) for row in one["rows"]] == [
            *((svm, n) for n in (200, 400, 500)),
            *((machine, 500) for _ in range(2)),
        ]
        assert [row["vectors"] for row in one["rows"][3:]] == [100, 200]
        assert all(0 < row["vectors"] <= row["rows"] for row in one["rows"])
        assert max(row["error"] for row in one["rows"]) < 0.3
    few = curves.run(shared.Options(sets=["covtype"], device=device, centers=100, limit=0.0))["sets"][0]["rows"]
    assert [(row["machine"], row["rows"]) for row in few] == [("SVC", 200), ("FalkonClassifier", 700)]


def test_sets_that_are_not_there(device: str, capsys: Any) -> None:
    with pytest.raises(MissingSetError, match="no set 'kin40k'"):
        table5.run(shared.Options(sets=["kin40k"]))
    assert main(["study", "table5", "--sets", "mnist", "--data", "nowhere", "--device", device]) == 1
    assert "mnist.npz is not there" in capsys.readouterr().err


def test_mnist(device: str, data_folder: Path) -> None:
    given = {"sets": ["mnist"], "data": data_folder, "device": device}
    (one,) = table5.run(shared.Options(**given, rows=600, centers=100))["sets"]
    assert (one["n"], one["d"]) == (600, 784)
    assert one["paper"]["Falkon"] == 10.9
    assert all(row["error"] < 0.3 for row in one["rows"])


def test_falkon_without_its_peer_and_the_centres_that_it_draws(
    tiny: None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = two_classes(None)[0]
    features_of_peer = Nystroem(n_components=30, random_state=0).fit(X)
    np.testing.assert_array_equal(features_of_peer.component_indices_, falkon.drawn(len(X), 30))
    monkeypatch.setattr(Nystroem, "fit", lambda *_: pytest.fail("the peer was fitted"))
    result = falkon.run(["synthetic"], [], None, device, 1, 30, None)
    (row,) = result["sets"][0]["rows"]
    assert row["solver"] == "clsvm"
    assert falkon.holds(result)
