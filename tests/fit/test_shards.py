"""Exact SVMs over several devices: rows in shards, the same optimum by the same rule, whatever is lost on the way."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks import check
from clsvm import SVC, SVR, Kernel, NuSVC, NuSVR, OneClassSVM
from clsvm.distribute import Lost, OnDevices
from clsvm.errors import DeviceError
from clsvm.solvers.sharded import Candidates, Change, Sharded
from tests.conftest import calls_of, noisy, simulated, thrifty

X, SIGNS = noisy(700, 6)
NUMBERS = np.sin(X).sum(axis=1)
TASKS: list[tuple[Any, Any, dict[str, Any]]] = [
    (SVC, SIGNS, {"C": 2.0}),
    (SVC, SIGNS, {"bias": False}),
    (SVC, SIGNS, {"class_weight": {1: 0.1, -1: 3.0}, "tol": 1e-5}),
    (SVR, NUMBERS, {"epsilon": 0.2}),
    (OneClassSVM, None, {"nu": 0.2}),
    (NuSVC, SIGNS, {"nu": 0.4, "tol": 1e-5}),
    (NuSVR, NUMBERS, {"nu": 0.3}),
]


def fitted(device: Any, machine: Any = SVC, y: Any = SIGNS, rows: Any = X, **given: Any) -> Any:
    return machine(**{"gamma": 0.1, "device": device, "working_set_size": 64} | given).fit(rows, y)


def violation(made: Any, y: Any, rows: Any) -> float:
    """Of an SVC, recomputed in float64 from its coefficients alone."""
    rows = np.asarray(rows.toarray() if sp.issparse(rows) else rows, np.float64)
    return check.check(made, Kernel("rbf", gamma=0.1)(rows), y).violation


@pytest.mark.parametrize(("machine", "y", "given"), TASKS)
@pytest.mark.parametrize("sparse", [False, True])
def test_as_on_one_device(device: str, machine: Any, y: Any, given: dict[str, Any], sparse: bool) -> None:
    if thrifty(device) and (sparse or machine in (NuSVC, NuSVR)):
        pytest.skip("one task of each kind is tried here")
    rows = sp.csr_matrix(np.where(X > 0, X, 0)) if sparse else X
    alone, several = (fitted(where, machine, y, rows, **given) for where in (device, [device] * 3))
    one, many = alone.fit_report_, several.fit_report_
    assert many.converged
    assert many.violation <= given.get("tol", 1e-3)
    near = 280 * many.violation if machine is NuSVC else 0.0  # (of an objective near 0; nu n is the sum of all |b|)
    assert many.dual == pytest.approx(one.dual, rel=1e-5, abs=near)
    assert many.layout.startswith("3 shards of 23") or machine is NuSVR
    assert many.outer_steps > 3
    assert "rows are cached after" not in many.selection
    assert many.rows_computed > 100
    if machine is not NuSVC:  # (whose offset is divided by a width that can be near 0)
        np.testing.assert_allclose(
            several.intercept_, alone.intercept_, atol=5e-3 * max(1, np.abs(alone.intercept_).max())
        )
    if machine is SVC and "C" in given:
        assert violation(several, y, rows) <= 1.2e-3


@pytest.mark.parametrize("layout", ["dense", "clustered", "csr", "hybrid", "inverted"])
@pytest.mark.parametrize("kernel", [Kernel("rbf", gamma=0.1), Kernel("laplacian", gamma=0.1)], ids=["rbf", "laplacian"])
def test_layouts_and_rows_far_from_zero(device: str, layout: str, kernel: Kernel) -> None:
    """Rows travel centred, which their differences do not see; float32 would not hold what is left of them else."""
    if thrifty(device) or (layout in ("clustered", "inverted") and kernel.spec.element):
        pytest.skip("each layout is tried on Intel's runtime; clusters and inverted rows have no element-wise sums")
    rows = np.where(np.random.default_rng(0).random(X.shape) < 0.3, X, 0)
    for some in (rows + 1e4, sp.csr_matrix(rows)):
        alone, several = (fitted(where, rows=some, kernel=kernel, layout=layout) for where in (device, [device] * 2))
        assert several.fit_report_.converged
        assert several.fit_report_.dual == pytest.approx(alone.fit_report_.dual, rel=1e-5)
        assert layout in several.fit_report_.layout


@pytest.mark.oclgrind
def test_work_groups(profile: str, device: str) -> None:
    """Every shape of kernels, with a row cache; small enough for a simulator."""
    if thrifty(device) and profile == "gpu":
        pytest.skip("the same kernels as of gpu-pair, which do more: a slow device has those")
    n, C, W, tol = (40, 0.5, 16, 0.5) if simulated(device) else (130, 5.0, 32, 1e-3)
    made = fitted([device] * 2, rows=X[:n], y=SIGNS[:n], working_set_size=W, cache_size=1, C=C, tol=tol)
    assert made.fit_report_.converged
    assert violation(made, SIGNS[:n], X[:n]) <= 1.2 * tol


def test_classes_apart(device: str) -> None:
    """Each shard is of one class, and so at its optimum as far as it can see: the other's extremes decide."""
    order = np.argsort(SIGNS, kind="stable")
    made, alone = fitted([device] * 2, rows=X[order], y=SIGNS[order]), fitted(device)
    assert made.fit_report_.converged
    assert made.fit_report_.dual == pytest.approx(alone.fit_report_.dual, rel=1e-5)


@pytest.mark.parametrize("cache", [0, 1])
def test_lost_shards_begin_again(device: str, cache: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then a shard forgets all that it knows, also while f is made again: the end is the same."""
    real, count = OnDevices.call, 0

    def ask(self: Any, name: str, given: Any) -> list[Any]:
        nonlocal count
        count += 1
        answers = real(self, name, given)
        if count % 60 in (2, 9, 12, 13, 40) and given[count % len(given)] is not None:
            answers[count % len(given)] = Lost()
        return answers

    monkeypatch.setattr(OnDevices, "call", ask)
    monkeypatch.setattr("clsvm.solvers.sharded.PIECE", 50)
    made = fitted([device] * 3, C=2.0, cache_size=cache, warm_start=True)
    assert made.fit_report_.converged
    assert count > 30
    assert violation(made, SIGNS, X) <= 1.2e-3
    again = made.set_params(C=2.2).fit(X, SIGNS)  # (begins with coefficients)
    assert violation(again, SIGNS, X) <= 1.2e-3
    found = calls_of(monkeypatch, Sharded, "_result")
    fitted([device] * 3, C=2.0, cache_size=cache)
    ((_, _, one),) = found
    np.testing.assert_allclose(one.f[0], Kernel("rbf", gamma=0.1)(X) @ one.b[0] - SIGNS, atol=1e-4)


@pytest.mark.parametrize("name", ["step", "prepared"])
def test_a_shard_that_is_lost_at_every_question_ends_the_fit(
    device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is lost while it is brought back."""
    real, asked = OnDevices.call, Counter[str]()

    def ask(self: Any, question: str, given: Any) -> list[Any]:
        asked[question] += 1
        lost = asked["step"] > 3 and question in ("step", name) and given[1] is not None
        answers = real(self, question, given)
        return [answers[0], Lost()] if lost else answers

    monkeypatch.setattr(OnDevices, "call", ask)
    with pytest.raises(DeviceError, match="lost the rows of a chunk 4 times"):
        fitted([device] * 2)
    assert asked["step"] < 10


def test_what_travels(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step sends at most the working set's rows and a few numbers for each, both ways."""
    real, steps = OnDevices.call, []

    def size(one: Any) -> int:
        if isinstance(one, np.ndarray):
            return one.nbytes
        return sum(map(size, one)) if isinstance(one, list | tuple) else 0

    def ask(self: Any, name: str, given: Any) -> list[Any]:
        answers = real(self, name, given)
        if name == "step":
            assert all(isinstance(one, Candidates) for one in answers)
            assert all(isinstance(change, Change) for (change,) in given)
            steps.extend(size(change) + size(answer) for (change,), answer in zip(given, answers, strict=True))
        return answers

    monkeypatch.setattr(OnDevices, "call", ask)
    wide = np.random.default_rng(0).normal(size=(1200, 40)).astype(np.float32)
    W, d = fitted([device] * 2, rows=wide, y=np.sign(wide[:, 0] * wide[:, 1])).fit_report_.working_set_size, 40
    assert len(steps) > 20
    assert max(steps) <= 2 * (W * d + 4 * W) * 4 + (1 << 16)
    assert np.mean(steps) <= 2 * (W * d + 4 * W) * 4


def test_the_estimator_is_as_ever(device: str, tmp_path: Path) -> None:
    """Limits, warm starts, checkpoints, the duality gap."""
    both = [device] * 2
    with pytest.warns(match="max_iter was reached"):
        short = fitted(both, max_iter=50)
    assert 50 <= short.n_iter_[0] < 2000
    assert fitted(both, gap_tol=0.05).fit_report_.gap <= 0.05
    first = fitted(both, warm_start=True, C=1.0)
    again = first.set_params(C=1.1).fit(X, SIGNS)
    assert again.fit_report_.steps < fitted(both, C=1.1).fit_report_.steps
    assert violation(again, SIGNS, X) <= 1.2e-3
    file = tmp_path / "checkpoint"
    fitted(both, checkpoint=file)
    assert file.exists()
    assert fitted(both, checkpoint=file).fit_report_.steps < 50


def test_float64_where_float32_is_too_coarse(device: str) -> None:
    with pytest.warns(match="max_iter was reached"):
        hard = fitted([device] * 2, C=1e6, tol=1e-6, max_iter=2000)
    assert hard.fit_report_.dtype == "float64"


def test_bad_input(device: str) -> None:
    both = [device] * 2
    with pytest.raises(ValueError, match="Python kernel functions need one device"):
        fitted(both, kernel="precomputed", rows=np.eye(700))
    with pytest.raises(ValueError, match=r"multi_class='crammer_singer' needs one device"):
        fitted(both, multi_class="crammer_singer", y=np.arange(700) % 3)
    with pytest.raises(ValueError, match="3 devices need at least one row each, got 2 rows"):
        fitted([device] * 3, rows=X[:2], y=[-1, 1])
    with pytest.raises(ValueError, match="memory_limit of 20000 bytes is too small"):
        fitted(both, memory_limit=20000)
