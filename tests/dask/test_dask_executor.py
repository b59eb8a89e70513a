"""The executor over Dask's workers where things go wrong: nobody there, parts lost again and again, a worker that takes
over with too little room."""

from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from clsvm.dask import executor, worker
from clsvm.distribute import TRIES, Lost
from clsvm.errors import DeviceError, MemoryLimitError
from clsvm.losses import LOSSES
from clsvm.nystrom.rows import RowOperator, Task
from tests.dask.conftest import DEVICE, current


def test_no_worker_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody comes in a lost worker's place: an error, not a wait without an end."""
    monkeypatch.setattr(executor, "WORKER_TIMEOUT", 0.2)
    with current(1, processes=False) as client:
        chunks = executor.Chunks(client, [client.submit(np.ones, (3, 2))], [None], [None])
        parts = executor.OnWorkers(chunks, np.ones, [3], None, None)
        client.cluster.scale(0)
        ends = perf_counter() + 20
        while executor.workers(client) and perf_counter() < ends:
            sleep(0.05)
        with pytest.raises(DeviceError, match="no running worker, and none came"):
            parts.call("n", [()])


def test_a_part_is_lost_again_and_again() -> None:
    class Doomed:
        sizes = (1,)
        posed = 0

        def call(self, name: str, given: Any) -> list[Any]:
            self.posed += name == "begin_task"
            return [Lost()]

    parts: Any = Doomed()
    task = Task(LOSSES["squared"], np.zeros((1, 1)), np.ones(1), np.zeros(1), 1.0, np.ones(1))
    with pytest.raises(DeviceError, match=f"lost the rows of a chunk {TRIES + 1} times"):
        RowOperator(parts, task, 1, lambda i: (None,))
    assert parts.posed == TRIES + 1


def test_every_worker_dies_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one that lays it out is gone then: an error, not a loop."""
    parts: Any = object.__new__(executor.OnWorkers)
    client: Any = Mock(submit=Mock(return_value=Mock(status="lost")))
    parts._chunks, parts.client, parts.addresses = executor.Chunks(client, [Mock()], ["y"], [None]), client, ["home"]
    parts._built, parts._recipe, parts._reassign = set(), None, lambda missing: {0}
    monkeypatch.setattr(executor, "ended", lambda *_: [])
    with pytest.raises(DeviceError, match=f"lost the rows of a chunk {TRIES + 1} times"):
        parts.call("n", [()])
    assert client.submit.call_count == TRIES + 1


def test_a_worker_dies_before_it_answers_for_anything() -> None:
    """Nobody waits for the answering actor of a worker that is gone, but for that of one that is there."""
    made = Mock(result=Mock(side_effect=TimeoutError))
    parts: Any = object.__new__(executor.OnWorkers)
    parts.client = Mock(submit=Mock(return_value=made), nthreads=Mock(side_effect=[{"home": 1}, {"home": 1}, {}]))
    parts._name, parts.addresses, parts._versions, parts._actors = "fit", ["home"], [None], {}
    assert parts._send(0, "n", ()) is None
    assert made.result.call_count == 3
    made.cancel.assert_called_once_with()


def test_who_takes_over_makes_room() -> None:
    """Parts that leave no room for a lost worker's are built again, in less."""
    shares: list[tuple[int, int]] = []

    def build(stream: Any, number: int) -> Any:
        if worker._fits["tight"].parts and len(shares) == 1:  # (the first one took it all)
            raise MemoryLimitError(1, 1, 1)
        shares.append((number, stream.limit))
        return SimpleNamespace(number=number)

    recipe = worker.Recipe("tight", build, DEVICE, 1000, 1, 1)
    try:
        for i in (0, 1):
            worker.build_part(recipe, i, i)
        actor = worker.WorkerActor()
        assert actor.call("tight", 1, None, "number", ()) == 1
        assert isinstance(actor.call("tight", 0, None, "number", ()), Lost)
        worker.build_part(recipe, 0, 0)
        assert actor.call("tight", 0, None, "number", ()) == 0
        assert isinstance(actor.call("tight", 0, 0, "number", ()), Lost), "an answer that did not arrive"
    finally:
        worker.forget("tight")
    assert shares == [(0, 1000), (1, 500), (0, 1000)]
