"""Going on from where a fit was: warm starts, checkpoints, and a process that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

import clsvm
from clsvm import SVC
from clsvm.fit import driver
from clsvm.problem import Constraint, Problem
from clsvm.problem.posed import c_svc, crammer_singer
from clsvm.solvers import newton
from tests.conftest import noisy

OPTIONS: dict[str, Any] = {"gamma": 0.3, "tol": 1e-4, "working_set_size": 32}


def classes(n: int, k: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    y = rng.integers(0, k, n)
    return rng.normal(size=(n, 6)) + np.eye(k, 6)[y], y


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, {"C": 3.0}),
        ({"C": 5.0}, {"C": 0.2}),
        ({}, {"gamma": 0.5}),
        ({"bias": False}, {"C": 0.2}),
        ({"multi_class": "crammer_singer"}, {"C": 3.0}),
        ({"multi_class": "crammer_singer", "C": 4.0}, {"C": 0.3, "gamma": 0.2}),
    ],
)
def test_warm_start_ends_at_the_same_objective(
    device: str, options: dict[str, Any], changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newton, "MOST", 0)  # (pair steps alone are counted)
    X, y = classes(300) if "multi_class" in options else noisy(300, 6)
    options = {**OPTIONS, **options, "device": device}
    cold = SVC(**{**options, **changed}).fit(X, y).fit_report_
    model = SVC(**options, warm_start=True).fit(X, y)
    first = model.fit_report_
    warm = model.set_params(**changed).fit(X, y).fit_report_
    assert warm.converged
    assert warm.dual == pytest.approx(cold.dual, rel=1e-6)
    assert warm.steps < first.steps + cold.steps
    again = model.fit(X, y).fit_report_  # nothing changed: it is there already
    assert again.dual == pytest.approx(warm.dual, rel=1e-7)
    assert again.steps < warm.steps


def test_warm_start_with_further_rows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newton, "MOST", 0)  # (pair steps alone are counted)
    X, y = noisy(400, 6)
    model = SVC(**OPTIONS, device=device, warm_start=True).fit(X[:300], y[:300])
    warm = model.fit(X, y).fit_report_
    cold = SVC(**OPTIONS, device=device).fit(X, y).fit_report_
    assert warm.dual == pytest.approx(cold.dual, rel=1e-6)
    assert warm.steps < cold.steps
    with pytest.raises(ValueError, match="warm_start: X has 300 rows, expected the 400 of the fit before, or more"):
        model.fit(X[:300], y[:300])
    with pytest.raises(ValueError, match="warm_start: the fit before had the classes"):
        model.fit(X, np.where(y > 0, 5, 6))
    with pytest.raises(ValueError, match="warm_start: the fit before was of another multi_class"):
        model.set_params(multi_class="crammer_singer").fit(X, y)


@pytest.mark.parametrize("seed", range(20))
def test_what_a_start_is_made_into_is_feasible(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = 30, 4
    C = rng.choice([0.0, 0.5, 2.0], n)
    signs = rng.choice([-1.0, 1.0], n)
    problems: list[Problem] = [
        c_svc(signs[None], C[None]), c_svc(signs[None], C[None], False), crammer_singer(rng.integers(0, k, n), C, k)
    ]  # fmt: skip
    for problem in problems:
        b = problem.feasible(rng.normal(size=problem.q.shape) * 2)
        assert (b >= problem.lo).all()
        assert (b <= problem.hi + 1e-12).all()
        if problem.constraint is not Constraint.NONE:
            axis = 1 if problem.constraint is Constraint.BIAS else 0
            np.testing.assert_allclose(b.sum(axis=axis), 0, atol=1e-12)
        np.testing.assert_allclose(problem.feasible(b), b, atol=1e-12)
        assert np.abs(b).sum() > 0


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("multi", [False, True])
def test_checkpoint(device: str, tmp_path: Path, form: Any, multi: bool) -> None:
    X, y = classes(300) if multi else noisy(300, 6)
    file = tmp_path / "state"
    options = {**OPTIONS, "device": device, "multi_class": "crammer_singer" if multi else "ovo"}
    whole = SVC(**options).fit(form(X), y).fit_report_
    with pytest.warns(UserWarning, match="max_iter"):
        part = SVC(**options, max_iter=30, checkpoint=file, checkpoint_every=0).fit(form(X), y).fit_report_
    assert part.dual < whole.dual
    rest = SVC(**options, checkpoint=str(file)).fit(form(X), y).fit_report_
    assert rest.trace[0].dual == pytest.approx(part.dual, rel=1e-6)
    assert rest.dual == pytest.approx(whole.dual, rel=1e-6)
    last = SVC(**options, checkpoint=file).fit(form(X), y).fit_report_
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


def run(*words: str, wait: bool = True) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(clsvm.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "clsvm", *words], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if wait:
        process.wait()
    return process


def dual_of(said: str) -> float:
    return -float(said.split("obj = ")[1].split(",")[0])


@pytest.mark.full
def test_kill_and_resume(tmp_path: Path) -> None:
    """kill -9 at random moments, CLSVM_KILLS of them: nothing is lost, and the end is the same."""
    X, y = noisy(3000, 60, seed=3)
    data, state, model = (str(tmp_path / name) for name in ("data", "state", "model"))
    dump_svmlight_file(X, y, data, zero_based=False)
    options = ["-g", "0.02", "-c", "30", "-e", "1e-4", "--working-set-size", "64"]
    whole = run("train", *options, data, model)
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout is not None
    expected = dual_of(whole.stdout.read())
    rng, levels = np.random.default_rng(1), 0
    keep = ["--checkpoint-every", "0.02"]
    for kill in range(int(os.environ.get("CLSVM_KILLS", "2"))):
        how = "--resume" if Path(state).exists() else "--checkpoint"
        process = run("train", *options, *keep, how, state, data, model, wait=False)
        start, before = time.monotonic(), Path(state).stat().st_mtime_ns if Path(state).exists() else 0
        while process.poll() is None and time.monotonic() < start + 60:
            if Path(state).exists() and Path(state).stat().st_mtime_ns != before:
                time.sleep(rng.random() * 0.3)
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        levels += Path(state).exists()
        assert Path(state).exists(), (kill, process.stderr and process.stderr.read())
    assert levels
    done = run("train", *options, "--resume", state, data, model)
    assert done.stdout is not None
    assert done.stderr is not None
    said = done.stdout.read()
    assert done.returncode == 0, done.stderr.read()
    assert dual_of(said) == pytest.approx(expected, rel=1e-6)
    other = run("train", "-g", "0.03", "-c", "30", "--resume", state, data, model)
    assert other.stderr is not None
    assert other.returncode == 1
    assert "is of another fit: other kernel" in other.stderr.read()
    again = run("train", *options, "--checkpoint", state, data, model)
    assert again.stderr is not None
    assert again.returncode == 1
    assert "exists; go on from it with --resume" in again.stderr.read()
    none = run("train", *options, "--resume", str(tmp_path / "none"), data, model)
    assert none.stderr is not None
    assert none.returncode == 1
    assert "there is no checkpoint" in none.stderr.read()
