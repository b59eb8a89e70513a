"""Going on from where a fit was: warm starts and checkpoints; one problem and several."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from clsvm import SVC, SVR, NuSVC, OneClassSVM
from clsvm.errors import CheckpointError
from clsvm.fit import checkpoint, driver, host
from clsvm.fit.run import FitContext
from clsvm.solvers import batch, newton

OPTIONS: dict[str, Any] = {"gamma": 0.3, "tol": 1e-4, "working_set_size": 32}


def classes(n: int, k: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    y = rng.integers(0, k, n)
    return rng.normal(size=(n, 6)) + np.eye(k, 6)[y], y


X, Y = classes(360)
KINDS = {"ovo": (SVC, {"C": 2.0}), "ovr": (SVC, {"C": 2.0, "multi_class": "ovr"}), "nu": (NuSVC, {"nu": 0.3})}
SINGLE: dict[str, tuple[Any, dict[str, Any]]] = {  # of one dual problem
    "one": (SVC, {"C": 2.0}),
    "no bias": (SVC, {"C": 2.0, "bias": False}),
    "coupled": (SVC, {"C": 2.0, "multi_class": "crammer_singer"}),
}


@pytest.fixture(autouse=True)
def smo_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what is counted here."""
    monkeypatch.setattr(newton, "MOST", 0)
    monkeypatch.setattr(host, "SEVERAL", 0)


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Machines that the device takes whole, side by side; and such as are solved one after another."""
    if request.param == "large":
        monkeypatch.setattr(batch, "max_rows", lambda stream: 100)
    return request.param


def machine(kind: str, device: Any, **given: Any) -> Any:
    made, own = (KINDS | SINGLE)[kind]
    return made(**{**OPTIONS, **own, "device": device, **given})


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.support_, other.support_)
    np.testing.assert_array_equal(one.dual_coef_, other.dual_coef_)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)


def interrupted_at(monkeypatch: pytest.MonkeyPatch, where: type, name: str, call: int) -> list[int]:
    """Raise Ctrl-C in the call-th call of the method ``name`` for a subproblem; return the numbers that it was told."""
    real, told, lock = getattr(where, name), list[int](), threading.Lock()

    def interrupting(self: Any, index: int, *given: Any) -> None:
        with lock:
            told.append(index)
            if len(told) == call:
                raise KeyboardInterrupt
        real(self, index, *given)

    monkeypatch.setattr(where, name, interrupting)
    return told


# Warm starts


@pytest.mark.parametrize("make", [SVC, NuSVC, SVR, OneClassSVM, partial(SVC, multi_class="crammer_singer")])
def test_a_warm_start_on_the_same_rows_ends_at_once(device: str, make: Any) -> None:
    """Rounding errors of sums do not move coefficients away from their bounds."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(300, 4))
        y = X[:, 0] + rng.normal(size=300)
        weights = {"class_weight": "balanced"} if make is SVC else {}
        model = make(**weights, tol=1e-4, warm_start=True, device=device)
        labels = y if make in (SVR, OneClassSVM) else y > 0
        before = model.fit(X, labels).dual_coef_
        model.set_params(max_iter=0).fit(X, labels)
        assert model.fit_report_.converged
        np.testing.assert_allclose(model.dual_coef_, before, rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        *(("ovo", {"C": 2.02}), ("ovr", {"C": 2.02}), ("nu", {"nu": 0.302}), ("ovo", {"gamma": 0.302})),
        *(("one", {"C": 1.98}), ("one", {"gamma": 0.302}), ("no bias", {"C": 1.98})),
        *(("coupled", {"C": 2.02}), ("coupled", {"C": 1.98, "gamma": 0.302})),
    ],
)
def test_warm_start_takes_few_steps_to_the_same_objective(
    device: str, size: str, kind: str, changed: dict[str, Any]
) -> None:
    labels = Y > 1 if kind in ("one", "no bias") else Y
    cold = machine(kind, device, **changed).fit(X, labels)
    model = machine(kind, device, warm_start=True).fit(X, labels)
    warm = model.set_params(**changed).fit(X, labels)
    assert warm.fit_report_.converged
    assert warm.fit_report_.dual == pytest.approx(cold.fit_report_.dual, rel=1e-6)
    assert (warm.n_iter_ < cold.n_iter_).all()
    assert warm.fit_report_.steps < 0.7 * cold.fit_report_.steps
    again = warm.fit(X, labels)  # nothing changed: it is there already
    assert again.fit_report_.steps <= cold.fit_report_.steps // 20
    np.testing.assert_allclose(again.decision_function(X), cold.decision_function(X), atol=1e-2)


@pytest.mark.parametrize(("kind", "other"), [("ovo", "ovr"), ("ovr", "ovo"), ("one", "crammer_singer")])
def test_warm_start_from_the_classes_of_before(device: str, kind: str, other: str) -> None:
    labels, kind = (Y > 1, "ovo") if kind == "one" else (Y, kind)
    model = machine(kind, device, warm_start=True).fit(X[:300], labels[:300])
    cold = machine(kind, device).fit(X, labels).fit_report_
    warm = model.fit(X, labels).fit_report_  # further rows
    assert warm.steps < cold.steps
    assert warm.dual == pytest.approx(cold.dual, rel=1e-6)
    with pytest.raises(ValueError, match="warm_start: X has 300 rows, expected at least the 360 rows of the last fit"):
        model.fit(X[:300], labels[:300])
    if labels is not Y:
        with pytest.raises(ValueError, match="warm_start: the last fit had the classes"):
            model.fit(X, np.where(labels, 5, 6))
    with pytest.raises(ValueError, match="warm_start: multi_class must be as in the last fit"):
        model.set_params(multi_class=other).fit(X, labels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", [Y + 1, Y % 3])
def test_other_classes_begin_anew(device: str, kind: str, labels: np.ndarray) -> None:
    model = machine(kind, device, warm_start=True).fit(X, Y).fit(X, labels)
    cold = machine(kind, device).fit(X, labels)
    same(model, cold)
    np.testing.assert_array_equal(model.n_iter_, cold.n_iter_)


# Checkpoints


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_checkpoint(device: str, size: str, tmp_path: Path, kind: str, form: Any) -> None:
    file = tmp_path / "state"
    whole = machine(kind, device).fit(form(X), Y)
    with pytest.warns(UserWarning, match="max_iter"):
        part = machine(kind, device, max_iter=200, checkpoint=file, checkpoint_every=0).fit(form(X), Y)
    rest = machine(kind, device, checkpoint=str(file)).fit(form(X), Y)
    assert rest.fit_report_.converged
    assert rest.fit_report_.dual == pytest.approx(whole.fit_report_.dual, rel=1e-6)
    assert rest.fit_report_.steps < whole.fit_report_.steps
    assert part.fit_report_.dual < whole.fit_report_.dual
    last = machine(kind, device, checkpoint=file).fit(form(X), Y)
    assert last.fit_report_.steps < whole.fit_report_.steps // 10  # it begins where the fit before ended
    assert last.fit_report_.converged
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_changes_nothing(device: str, size: str, tmp_path: Path, kind: str, devices: int) -> None:
    file, alone = tmp_path / "state", machine(kind, device).fit(X, Y)
    kept = machine(kind, [device] * devices, checkpoint=file, checkpoint_every=0).fit(X, Y)
    same(kept, alone)
    np.testing.assert_array_equal(kept.n_iter_, alone.n_iter_)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_solved_ones_begin_at_their_end(
    device: str, size: str, tmp_path: Path, kind: str, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, where = tmp_path / "state", [device] * devices
    whole = machine(kind, where).fit(X, Y)
    with monkeypatch.context() as within:
        ended = interrupted_at(within, FitContext, "store", 3)
        with pytest.raises(KeyboardInterrupt):
            machine(kind, where, checkpoint=file).fit(X, Y)
        done = sorted({*ended[:2], *ended[3:]})
    assert not [thread for thread in threading.enumerate() if thread.name == "clsvm"]
    rest = machine(kind, where, checkpoint=file).fit(X, Y)
    report = rest.fit_report_
    assert rest.n_iter_[done].sum() < whole.n_iter_[done].sum() // 10
    assert report.converged
    assert report.dual == pytest.approx(whole.fit_report_.dual, rel=1e-6)
    np.testing.assert_allclose(rest.decision_function(X), whole.decision_function(X), atol=1e-2)


@pytest.mark.parametrize("small", [True, False])
def test_one_in_progress_stays_where_it_stands(device: str, tmp_path: Path, small: bool, monkeypatch: Any) -> None:
    """Small ones are told of after their batch, a large one where it is interrupted."""
    file = tmp_path / "state"
    if not small:
        monkeypatch.setattr(batch, "max_rows", lambda stream: 100)
    whole = machine("ovr", device).fit(X, Y)
    with monkeypatch.context() as within:
        if small:
            interrupted_at(within, checkpoint.Checkpoint, "save", 2)
        else:
            interrupted_in_a_solve(within)
        with pytest.raises(KeyboardInterrupt):
            machine("ovr", device, checkpoint=file).fit(X, Y)
    with np.load(file) as content:
        b = content["b"].reshape(4, len(X))
    assert np.count_nonzero(b.any(axis=1)) == 1
    rest = machine("ovr", device, checkpoint=file).fit(X, Y)
    assert rest.fit_report_.steps < whole.fit_report_.steps
    assert rest.fit_report_.dual == pytest.approx(whole.fit_report_.dual, rel=1e-6)


def test_a_checkpoint_of_another_fit_is_refused(device: str, tmp_path: Path) -> None:
    file = tmp_path / "state"
    machine("ovo", device, checkpoint=file).fit(X, Y)
    kept = file.read_bytes()
    moved, other = X.copy(), Y.copy()
    moved[3, 1] += 1e-9
    other[:2] = other[1::-1]
    assert (other != Y).any()
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (moved, Y, {}, "different rows of X"),
        (X[:300], Y[:300], {}, "different rows of X"),
        (X, other, {}, "different labels"),
        (X, Y % 3, {}, "different labels"),
        *((X, Y, {"multi_class": way}, "different labels") for way in ("ovr", "crammer_singer")),
        (X, Y, {"C": 2.5}, "different C, nu or weights"),
        (X, Y, {"class_weight": {1: 3.0}}, "different C, nu or weights"),
        (
            X,
            Y,
            {"gamma": 0.31},
            r"different kernel \(Kernel\('rbf', gamma=0.3\), expected Kernel\('rbf', gamma=0.31\)\)",
        ),
        (X, Y, {"bias": False}, "different labels"),
    ]
    for rows, labels, changed, words in cases:
        with pytest.raises(CheckpointError, match=words):
            machine("ovo", device, checkpoint=file, **changed).fit(rows, labels)
        assert file.read_bytes() == kept
    with pytest.raises(CheckpointError, match="different labels"):
        machine("nu", device, checkpoint=file).fit(X, Y)
    with pytest.raises(CheckpointError, match="there is no folder"):
        machine("ovo", device, checkpoint=tmp_path / "none" / "state").fit(X, Y)
    with pytest.raises(TypeError, match="checkpoint must be the name of a file or None, got 3"):
        machine("ovo", device, checkpoint=3).fit(X, Y)
    for content in (b"", kept[:100], kept[:-200]):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="is no checkpoint of clsvm"):
            machine("ovo", device, checkpoint=file).fit(X, Y)
    file.write_bytes(kept)
    with np.load(file) as content:
        held = {name: content[name] for name in content.files}
    other_contents: list[tuple[dict[str, Any], str]] = [
        ({"clsvm_checkpoint": np.int64(1)}, "is a checkpoint of version 1, expected 2"),
        ({"b": np.zeros(7)}, r"shape \(7,\) and dtype float64, expected finite float64 of shape \(1080,\)"),
    ]
    for changed, words in other_contents:
        with file.open("wb") as stream:
            np.savez(stream, **held | changed)
        with pytest.raises(CheckpointError, match=words):
            machine("ovo", device, checkpoint=file).fit(X, Y)


def test_memory_that_holds_no_batch_is_enough_for_one_problem_after_another(device: str) -> None:
    """A limit may hold X, and no tiles of several problems beside it."""
    random, y = np.random.default_rng(0), np.repeat(np.arange(3), 100)
    rows = random.normal(size=(300, 2000)) + y[:, None] / 10
    best = SVC(device=device).fit(rows, y).fit_report_
    for megabytes in (2.5, 3.2, 4.0, 4.5, 6.0):
        report = SVC(device=device, memory_limit=int(megabytes * 1e6)).fit(rows, y).fit_report_
        assert report.converged
        assert report.dual == pytest.approx(best.dual, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_values_that_are_given(device: str, size: str, tmp_path: Path, kind: str) -> None:
    K = np.exp(-0.3 * ((X[:, None] - X) ** 2).sum(axis=2))
    model = machine(kind, device, kernel="precomputed", warm_start=True, checkpoint=tmp_path / "state").fit(K, Y)
    last, steps = machine(kind, device, kernel="precomputed", checkpoint=tmp_path / "state"), model.fit_report_.steps
    assert last.fit(K, Y).fit_report_.steps < steps // 10
    assert model.set_params(checkpoint=None).fit(K, Y).fit_report_.steps < steps // 10
    K[0, 1] = K[1, 0] = 0.5
    with pytest.raises(CheckpointError, match="different rows of X"):
        machine(kind, device, kernel="precomputed", checkpoint=tmp_path / "state").fit(K, Y)


def test_what_is_written_when(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end, and in time; not where nothing was done."""
    written, real = list[int](), checkpoint.Checkpoint.write
    monkeypatch.setattr(checkpoint.Checkpoint, "write", lambda self: written.append(1) or real(self))
    machine("ovo", device, checkpoint=tmp_path / "end").fit(X, Y)
    assert len(written) == 1
    machine("ovo", device, checkpoint=tmp_path / "often", checkpoint_every=0).fit(X, Y)
    assert len(written) > 6
    with pytest.warns(UserWarning, match="max_time"):
        machine("ovo", device, checkpoint=tmp_path / "late", max_time=1e-9).fit(X, Y)
    assert (tmp_path / "late").exists()

    def broken(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "_batch_limits", broken)
    with pytest.raises(KeyboardInterrupt):
        machine("ovo", device, checkpoint=tmp_path / "none").fit(X, Y)
    assert not (tmp_path / "none").exists()


# One problem


@pytest.mark.parametrize("kind", ["one", "coupled"])
def test_checkpoint_of_one_problem(device: str, tmp_path: Path, kind: str) -> None:
    file, labels = tmp_path / "state", Y > 1 if kind == "one" else Y
    whole = machine(kind, device).fit(X, labels).fit_report_
    with pytest.warns(UserWarning, match="max_iter"):
        part = machine(kind, device, max_iter=30, checkpoint=file, checkpoint_every=0).fit(X, labels).fit_report_
    assert part.dual < whole.dual
    rest = machine(kind, device, checkpoint=str(file)).fit(X, labels).fit_report_
    assert rest.trace[0].dual == pytest.approx(part.dual, rel=1e-6)
    assert rest.dual == pytest.approx(whole.dual, rel=1e-6)
    last = machine(kind, device, checkpoint=file).fit(X, labels).fit_report_
    assert last.steps == 0 or last.steps < whole.steps // 4
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def interrupted_in_a_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next fits of one problem after another end as by Ctrl-C, each when its solver has looked four times."""
    real = driver.Display.__enter__

    def interrupts(display: Any) -> Any:
        real(display)
        points: list[Any] = []

        def show(point: Any) -> None:
            points.append(point)
            if len(points) == 4:
                raise KeyboardInterrupt

        show.phase = lambda words: None  # type: ignore[attr-defined]
        return show

    monkeypatch.setattr(driver.Display, "__enter__", interrupts)
