"""Workers of Dask that are killed (-9) in the middle of a fit: the result stands."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

import clsvm
from clsvm import dask as over_dask
from clsvm.dask.executor import OnWorkers
from tests.dask.conftest import DEVICE, NUMBERS, SIGNS, X, current

CLASSES = np.array(["a", "b", "c"])[(NUMBERS > 0).astype(int) + (NUMBERS > 1.5)]
ROWS = da.from_array(X, chunks=(400, 6))


@pytest.fixture
def doomed() -> Iterator[Any]:
    """Two workers. (On a busy machine one that is killed may not come again: each test has its own.)"""
    with current(2) as client:
        yield client


@pytest.fixture
def killed(doomed: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that has a worker killed at a question of the executor, and returns a list for its process."""
    real = OnWorkers.call

    def at(question: str, number: int) -> list[int]:
        asked, dead = [0], list[int]()

        def ask(self: Any, name: str, given: Any) -> Any:
            asked[0] += question in ("", name)
            if asked[0] == number and not dead:
                dead.append(next(iter(doomed.run(os.getpid, workers=[self.addresses[0]]).values())))
                os.kill(dead[0], signal.SIGKILL)
            return real(self, name, given)

        monkeypatch.setattr(OnWorkers, "call", ask)
        return dead

    return at


@pytest.mark.parametrize("number", [3, pytest.param(14, marks=pytest.mark.sweep)])
def test_of_an_svm(killed: Any, number: int) -> None:
    """Early and late in a solve: the optimum is the same within the tolerance, by the certificate."""
    given = {"device": DEVICE, "gamma": 0.1, "working_set_size": 256, "C": 10.0}
    alone = clsvm.SVC(**given).fit(X, SIGNS)
    dead = killed("", number)
    made = over_dask.SVC(**given).fit(ROWS, da.from_array(SIGNS, chunks=400))
    assert dead
    assert made.fit_report_.converged
    assert made.fit_report_.violation <= 1e-3
    assert made.fit_report_.dual == pytest.approx(alone.fit_report_.dual, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "y", "given"),
    [
        ("FalkonRegressor", NUMBERS, {"penalty": 1e-7, "tol": 1e-7}),
        pytest.param("LogisticFalkonClassifier", CLASSES, {"penalty": 1e-4}, marks=pytest.mark.sweep),
    ],
)
def test_of_a_falkon_model(killed: Any, name: str, y: Any, given: dict[str, Any]) -> None:
    """In the middle of conjugate gradients: its rows are laid out elsewhere."""
    targets = da.from_array(y, chunks=400)

    def fitted() -> Any:
        model = getattr(over_dask, name)(n_centers=80, random_state=0, device=DEVICE, **given)
        return model.fit(ROWS, targets)

    whole = fitted()
    dead = killed("hessian", 2)
    again = fitted()
    assert dead
    assert again.fit_report_.converged
    assert again.fit_report_.objective == pytest.approx(whole.fit_report_.objective, rel=1e-8)
    scale = np.abs(whole.dual_coef_).max()
    np.testing.assert_allclose(again.dual_coef_, whole.dual_coef_, rtol=0, atol=1e-5 * scale)
