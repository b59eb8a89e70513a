"""One problem of few rows, which a batch takes: its report, all that was asked is kept; and a checkpoint by itself."""

import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from clsvm import SVC, SVR, NuSVC, NuSVR, OneClassSVM
from clsvm.errors import CheckpointError
from clsvm.fit import driver
from clsvm.fit.checkpoint import open_checkpoint
from clsvm.kernels import make
from clsvm.opencl.devices import default_profile, find
from clsvm.parameters import Options
from clsvm.problem import Subproblem, c_svc
from tests.conftest import noisy

X, Y = noisy(400, 5)


@pytest.mark.parametrize("make", [SVC, NuSVC, SVR, NuSVR, OneClassSVM])
def test_the_same_optimum_either_way(device: str, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    batched = make(gamma=0.3, tol=1e-5, device=device).fit(X, Y)
    report = batched.fit_report_
    assert report.selection == "all rows are one working set"
    assert (report.outer_steps, len(report.trace)) == (1, 1)
    assert report.trace[-1].steps == report.steps == np.max(batched.n_iter_)
    monkeypatch.setattr(driver, "_suits_batch", lambda *given: False)
    other = make(gamma=0.3, tol=1e-5, device=device).fit(X, Y)
    assert other.fit_report_.selection != report.selection
    assert report.dual == pytest.approx(other.fit_report_.dual, rel=1e-6)
    values = [model.model_.decision_function(X, device) for model in (batched, other)]
    np.testing.assert_allclose(*values, atol=1e-3)


NOT_A_BATCHS: tuple[dict[str, Any], ...] = (
    *({"layout": "clustered"}, {"working_set_size": 64}, {"cache_size": 0.5}),
    *({"gap_tol": 1e-3}, {"checkpoint": "state"}),
)


@pytest.mark.parametrize("asked", NOT_A_BATCHS, ids=str)
def test_what_a_batch_does_not_do_is_the_solver_s(device: str, tmp_path: Path, asked: dict[str, Any]) -> None:
    if "checkpoint" in asked:
        asked = {"checkpoint": str(tmp_path / "state")}
    report = SVC(gamma=0.3, device=device, **asked).fit(X, Y).fit_report_
    assert report.selection != "all rows are one working set"
    assert report.outer_steps > 1
    whole = SVC(gamma=0.3, cache_size=4e-6 * 400**2, device=device).fit(X, Y).fit_report_  # (a cache of all values)
    assert whole.selection == "all rows are one working set"


def test_no_time_leaves_what_there_was(device: str) -> None:
    model = SVC(gamma=0.3, device=device, warm_start=True).fit(X, Y)
    before, support = model.dual_coef_.copy(), model.support_.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_params(max_time=1e-9).fit(X, Y)
    assert not model.fit_report_.converged
    assert model.fit_report_.outer_steps == 0
    np.testing.assert_array_equal(model.support_, support)
    np.testing.assert_allclose(model.dual_coef_, before, atol=1e-12)


def test_progress_counts_the_steps_of_the_point_s_own_problem(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[Any] = []

    def told(display: Any) -> Any:
        def show(point: Any) -> None:
            points.append(point)

        show.phase = lambda words: None  # type: ignore[attr-defined]
        return show

    monkeypatch.setattr(driver.Display, "__enter__", told)
    report = SVC(gamma=0.3, device=device).fit(X, Y).fit_report_
    assert points[-1].steps == report.steps > 0


def test_a_checkpoint_knows_the_rows_that_weigh_nothing(device: str, tmp_path: Path) -> None:
    """Classes that weigh nothing are none; the problems of the others can be equal."""
    rows, y = np.random.default_rng(0).normal(size=(8, 2)), np.arange(8) // 2
    given: dict[str, Any] = {"gamma": 1.0, "device": device, "checkpoint": str(tmp_path / "state")}
    for _ in range(2):
        SVC(**given).fit(rows, y, (y != 0).astype(float))
    with pytest.raises(CheckpointError, match="different C, nu or weights"):
        SVC(**given).fit(rows, y, (y != 1).astype(float))


def test_as_many_rows_as_a_work_item_solves(device: str) -> None:
    most = default_profile(find(device)).batch_rows
    rows, y = noisy(most + 1, 3)
    for n, whole in ((most, True), (most + 1, False)):
        report = SVC(gamma=0.3, device=device).fit(rows[:n], y[:n]).fit_report_
        assert (report.selection == "all rows are one working set") == whole


def posed(file: Path, count: int) -> Any:
    """What a checkpoint is opened with, of some equal problems of two rows."""
    members = [Subproblem(np.arange(2), c_svc(np.array([[1.0, -1.0]]), np.ones((1, 2))))] * count
    return Options(checkpoint=file), np.eye(2), members, make("rbf", gamma=1.0)


def test_one_thread_writes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most, real = [0], list[int](), np.savez

    def writing(stream: Any, **content: Any) -> None:
        inside[0] += 1
        most.append(inside[0])
        time.sleep(0.005)
        real(stream, **content)
        inside[0] -= 1

    monkeypatch.setattr(np, "savez", writing)
    with open_checkpoint(*posed(tmp_path / "state", 4)) as made:
        assert made
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda place: made.save(place, np.full(2, 0.5 + place)), range(4)))
    assert len(most) == 5
    assert max(most) == 1
    with open_checkpoint(*posed(tmp_path / "state", 4)) as again:
        assert again
        assert [b[0, 0] for b in again.b] == [0.5, 1.5, 2.5, 3.5]
