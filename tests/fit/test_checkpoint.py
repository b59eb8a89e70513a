"""A checkpoint by itself: what it says of problems, and threads that write it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clsvm.fit.checkpoint import open_checkpoint
from clsvm.kernels import make
from clsvm.parameters import Options
from clsvm.problem import Subproblem, c_svc
from clsvm.report import Status
from clsvm.solvers.result import Result


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
        threads = [threading.Thread(target=made.save, args=(place, np.full(2, 0.5 + place))) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(most) == 5
    assert max(most) == 1
    with open_checkpoint(*posed(tmp_path / "state", 4)) as again:
        assert again
        assert [b[0, 0] for b in again.b] == [0.5, 1.5, 2.5, 3.5]


def test_what_is_begun_again_is_not_solved(tmp_path: Path) -> None:
    """What was said of other coefficients is not said of these."""
    given = posed(tmp_path / "state", 2)
    ones, none = np.ones((1, 2)), np.zeros((1, 1))
    end = Result(ones, ones, none, 1.0, 1.0, 0.0, 3, Status.TOLERANCE, 0.0, 2, 2, "float32", device="it")
    with open_checkpoint(*given) as made:
        assert made
        made.save(0, end.b, 1e9, end)
        made.save(1, end.b, 1e9, end)
    with open_checkpoint(*given) as again:
        assert again
        assert sorted(again.solved) == [0, 1]
        again.save(1, np.full(2, 0.5), 1e9)
    with open_checkpoint(*given) as last:
        assert last
        assert list(last.solved) == [0]
        assert [b.tolist() for b in last.b] == [[[1.0, 1.0]], [[0.5, 0.5]]]
        assert last.solved[0].exact_rows == 2
