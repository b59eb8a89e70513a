"""Going on from where a fit of several problems was: pairs of classes, and each class against the rest."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm

from clsvm import SVC, NuSVC, from_sklearn
from clsvm.errors import CheckpointError, MemoryLimitError
from clsvm.fit import checkpoint, driver, host
from clsvm.solvers import batch, newton
from tests.estimators.test_restart import classes, interrupted_in_a_solve

X, Y = classes(360)
OPTIONS: dict[str, Any] = {"gamma": 0.3, "tol": 1e-4, "working_set_size": 32}
KINDS = {
    "ovo": (SVC, {"C": 2.0}),
    "ovr": (SVC, {"C": 2.0, "multi_class": "ovr"}),
    "nu": (NuSVC, {"nu": 0.3}),
}


@pytest.fixture(autouse=True)
def pair_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what is counted here."""
    monkeypatch.setattr(newton, "MOST", 0)
    monkeypatch.setattr(host, "SEVERAL", 0)


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Machines that the device takes whole, side by side; and such as are solved one after another."""
    if request.param == "large":
        monkeypatch.setattr(batch, "largest", lambda stream: 100)
    return request.param


def machine(kind: str, device: Any, **given: Any) -> Any:
    made, own = KINDS[kind]
    return made(**{**OPTIONS, **own, "device": device, **given})


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.support_, other.support_)
    np.testing.assert_array_equal(one.dual_coef_, other.dual_coef_)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)


def interrupted_at(monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> list[int]:
    """Ctrl-C at a call of a checkpoint's method, before it does anything; the places that it was called for."""
    real, asked, lock = getattr(checkpoint.Checkpoint, method), list[int](), threading.Lock()

    def interrupting(self: Any, place: int, *given: Any) -> None:
        with lock:
            asked.append(place)
            if len(asked) == call:
                raise KeyboardInterrupt
        real(self, place, *given)

    monkeypatch.setattr(checkpoint.Checkpoint, method, interrupting)
    return asked


# Warm starts


@pytest.mark.parametrize(
    ("kind", "changed"),
    [("ovo", {"C": 2.02}), ("ovr", {"C": 2.02}), ("nu", {"nu": 0.302}), ("ovo", {"gamma": 0.302})],
)
def test_warm_start_takes_few_steps_to_the_same_objective(
    device: str, size: str, kind: str, changed: dict[str, Any]
) -> None:
    cold = machine(kind, device, **changed).fit(X, Y)
    model = machine(kind, device, warm_start=True).fit(X, Y)
    warm = model.set_params(**changed).fit(X, Y)
    assert warm.fit_report_.converged
    assert warm.fit_report_.dual == pytest.approx(cold.fit_report_.dual, rel=1e-6)
    assert (warm.n_iter_ < cold.n_iter_).all()
    assert warm.fit_report_.steps < 0.7 * cold.fit_report_.steps
    again = warm.fit(X, Y)  # nothing changed: it is there already
    assert again.fit_report_.steps <= cold.fit_report_.steps // 20
    np.testing.assert_allclose(again.decision_function(X), cold.decision_function(X), atol=1e-2)


def test_warm_start_from_scikit_learns_solution(device: str, size: str) -> None:
    """Its coefficients of pairs stand where ours do."""
    theirs = svm.SVC(C=2.0, gamma=0.3, tol=1e-4).fit(X, Y)
    cold, warm = machine("ovo", device), from_sklearn(theirs, warm_start=True, tol=1e-4, device=device)
    warm.fit(X, Y)
    assert warm.fit_report_.dual == pytest.approx(cold.fit(X, Y).fit_report_.dual, rel=1e-6)
    assert warm.fit_report_.steps < cold.fit_report_.steps // 2


@pytest.mark.parametrize("kind", ["ovo", "ovr"])
def test_warm_start_from_the_classes_of_before(device: str, kind: str) -> None:
    model = machine(kind, device, warm_start=True).fit(X[:300], Y[:300])
    steps = machine(kind, device).fit(X, Y).fit_report_.steps
    assert model.fit(X, Y).fit_report_.steps < steps  # further rows
    with pytest.raises(ValueError, match="warm_start: X has 300 rows, expected the 360 of the fit before, or more"):
        model.fit(X[:300], Y[:300])
    with pytest.raises(ValueError, match="warm_start: the fit before was of another multi_class"):
        model.set_params(multi_class="ovr" if kind == "ovo" else "ovo").fit(X, Y)


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
    assert not last.n_iter_.any()  # how they ended is there
    same(last, rest)
    words = f"{len(whole.intercept_)} solved by the fit before, as its checkpoint says"
    assert words in last.fit_report_.selection
    for name in ("primal", "dual", "gap", "violation", "status", "error_bound", "dtype", "device", "converged"):
        assert getattr(last.fit_report_, name) == getattr(rest.fit_report_, name), name
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_changes_nothing(device: str, size: str, tmp_path: Path, kind: str, devices: int) -> None:
    file, alone = tmp_path / "state", machine(kind, device).fit(X, Y)
    kept = machine(kind, [device] * devices, checkpoint=file, checkpoint_every=0).fit(X, Y)
    same(kept, alone)
    np.testing.assert_array_equal(kept.n_iter_, alone.n_iter_)
    assert not machine(kind, device, checkpoint=file).fit(X, Y).n_iter_.any()


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_solved_ones_are_not_solved_again(
    device: str, size: str, tmp_path: Path, kind: str, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, where = tmp_path / "state", [device] * devices
    monkeypatch.setattr(batch, "ROWS", 1)
    monkeypatch.setattr(batch, "at_once", lambda stream: 1)
    whole = machine(kind, where).fit(X, Y)
    with monkeypatch.context() as within:
        ended = interrupted_at(within, "ended", 3)
        with pytest.raises(KeyboardInterrupt):
            machine(kind, where, checkpoint=file).fit(X, Y)
        done = sorted({*ended[:2], *ended[3:]})
    assert not [thread for thread in threading.enumerate() if thread.name == "clsvm"]
    rest = machine(kind, where, checkpoint=file).fit(X, Y)
    report = rest.fit_report_
    assert not rest.n_iter_[done].any()
    left = np.setdiff1d(np.arange(len(whole.n_iter_)), done)
    assert len(left)
    if devices == 1:  # (else who was not interrupted may have solved all others)
        assert (rest.n_iter_[left] == whole.n_iter_[left]).any()  # not begun before
    assert f"{len(done)} solved by the fit before" in report.selection
    assert report.converged
    assert report.dual == pytest.approx(whole.fit_report_.dual, rel=1e-6)
    np.testing.assert_allclose(rest.decision_function(X), whole.decision_function(X), atol=1e-2)


@pytest.mark.parametrize("method", ["stands", "save"])
def test_one_in_progress_stays_where_it_stands(
    device: str, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones are told of after each launch, a large one where it is interrupted."""
    file = tmp_path / "state"
    if method == "save":
        monkeypatch.setattr(batch, "largest", lambda stream: 100)
    monkeypatch.setattr(batch, "LAUNCH", 1)
    whole = machine("ovr", device).fit(X, Y)
    with monkeypatch.context() as within:
        if method == "stands":
            interrupted_at(within, method, 5)  # (after the second launch of four members)
        else:
            interrupted_in_a_solve(within)
        with pytest.raises(KeyboardInterrupt):
            machine("ovr", device, checkpoint=file).fit(X, Y)
    with np.load(file) as content:
        b, solved = content["b"].reshape(4, len(X)), content["solved"]
    assert not len(solved)
    assert b.any(axis=1).tolist() == ([True] * 4 if method == "stands" else [True, False, False, False])
    rest = machine("ovr", device, checkpoint=file).fit(X, Y)
    assert rest.fit_report_.steps < whole.fit_report_.steps
    assert rest.fit_report_.dual == pytest.approx(whole.fit_report_.dual, rel=1e-6)


@pytest.mark.parametrize("changed", [{"tol": 1e-6}, {"gap_tol": 1e-5}, {"dtype": "float64"}])
def test_what_was_solved_for_another_tolerance_is_solved_again(
    device: str, size: str, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """The report says what was checked for the tolerance asked for."""
    file = tmp_path / "state"
    machine("ovo", device, checkpoint=file, tol=1e-2).fit(X, Y)
    first = machine("ovo", device, checkpoint=file, tol=1e-2).fit(X, Y).fit_report_
    assert "solved by the fit before" in first.selection
    report = machine("ovo", device, checkpoint=file, **{"tol": 1e-2, **changed}).fit(X, Y).fit_report_
    assert "solved by the fit before" not in report.selection
    assert report.converged
    assert report.dtype == changed.get("dtype", report.dtype)
    assert report.violation <= changed.get("tol", 1e-2)


def test_what_stands_still_in_float32_is_not_solved(device: str, tmp_path: Path) -> None:
    """Nor what max_iter ends: a resumed fit says as little of them as the first one."""
    file = tmp_path / "state"
    for given in ({"max_iter": 5}, {"C": 1e12, "tol": 1e-12, "max_iter": 5}):
        for _ in range(2):
            with pytest.warns(UserWarning, match="not converged"):
                report = machine("ovo", device, checkpoint=file, **given).fit(X, Y).fit_report_
            assert not report.converged
            assert "solved by the fit before" not in report.selection
        file.unlink()


def test_a_checkpoint_of_another_fit_is_refused(device: str, tmp_path: Path) -> None:
    file = tmp_path / "state"
    machine("ovo", device, checkpoint=file).fit(X, Y)
    kept = file.read_bytes()
    moved, other = X.copy(), Y.copy()
    moved[3, 1] += 1e-9
    other[:2] = other[1::-1]
    assert (other != Y).any()
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (moved, Y, {}, "other rows of X"),
        (X[:300], Y[:300], {}, "other rows of X"),
        (X, other, {}, "other labels"),
        (X, Y % 3, {}, "other labels"),
        (X, Y > 1, {}, r"other problems \(one for each pair of classes, expected one\)"),
        (X, Y, {"multi_class": "ovr"}, r"other problems \(one for each pair of classes, expected one for each class\)"),
        (X, Y, {"multi_class": "crammer_singer"}, r"other problems \(.*, expected one for all classes\)"),
        (X, Y, {"C": 2.5}, "other C, nu or weights"),
        (X, Y, {"class_weight": {1: 3.0}}, "other C, nu or weights"),
        (X, Y, {"gamma": 0.31}, r"other kernel \(Kernel\('rbf', gamma=0.3\), expected Kernel\('rbf', gamma=0.31\)\)"),
        (X, Y, {"bias": False}, "other labels"),
    ]
    for rows, labels, changed, words in cases:
        with pytest.raises(CheckpointError, match=words):
            machine("ovo", device, checkpoint=file, **changed).fit(rows, labels)
        assert file.read_bytes() == kept
    with pytest.raises(CheckpointError, match="other labels"):
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
        ({"ended": np.array([("NO", "float32", "it")] * 6)}, "is no checkpoint of clsvm"),
        ({"b": np.zeros(7)}, r"holds coefficients \(7,\) of float64, expected \(1080,\)"),
    ]
    for changed, words in other_contents:
        with file.open("wb") as stream:
            np.savez(stream, **held | changed)
        with pytest.raises(CheckpointError, match=words):
            machine("ovo", device, checkpoint=file).fit(X, Y)


def test_memory_that_holds_no_batch_leaves_what_is_solved(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = tmp_path / "state", machine("ovo", device).fit(X, Y).fit_report_
    with monkeypatch.context() as within:
        within.setattr(batch, "ROWS", 1)
        within.setattr(batch, "at_once", lambda stream: 2)
        interrupted_at(within, "ended", 3)
        with pytest.raises(KeyboardInterrupt):
            machine("ovo", device, checkpoint=file).fit(X, Y)

    def full(*given: Any) -> Any:
        raise MemoryLimitError(1, 1, 1)

    monkeypatch.setattr(batch, "solve", full)
    model = machine("ovo", device, checkpoint=file).fit(X, Y)
    assert "4 by decomposition, 2 solved by the fit before" in model.fit_report_.selection
    assert model.fit_report_.converged
    assert model.fit_report_.dual == pytest.approx(whole.dual, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_values_that_are_given(device: str, size: str, tmp_path: Path, kind: str) -> None:
    K = np.exp(-0.3 * ((X[:, None] - X) ** 2).sum(axis=2))
    model = machine(kind, device, kernel="precomputed", warm_start=True, checkpoint=tmp_path / "state").fit(K, Y)
    last = machine(kind, device, kernel="precomputed", checkpoint=tmp_path / "state").fit(K, Y)
    same(last, model)
    assert not last.n_iter_.any()
    steps = model.fit_report_.steps
    assert model.set_params(checkpoint=None).fit(K, Y).fit_report_.steps < steps // 10
    K[0, 1] = K[1, 0] = 0.5
    with pytest.raises(CheckpointError, match="other rows of X"):
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

    monkeypatch.setattr(driver, "_room", broken)
    with pytest.raises(KeyboardInterrupt):
        machine("ovo", device, checkpoint=tmp_path / "none").fit(X, Y)
    assert not (tmp_path / "none").exists()
