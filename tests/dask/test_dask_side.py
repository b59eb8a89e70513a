"""The rows' side of a solve over Dask's workers where things go wrong: nobody there, chunks lost again and again, a
worker that takes over with too little room."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

import clsvm  # noqa: E402
from clsvm import dask as over_dask  # noqa: E402
from clsvm.dask import side, worker  # noqa: E402
from clsvm.errors import DeviceError, MemoryLimitError  # noqa: E402
from tests.dask.test_dask_falkon import CLASSES, DEVICE, X, Y, machine  # noqa: E402


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two workers, in this process."""
    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "set_as_default": False}
    with distributed.Client(processes=False, **how) as two, two.as_current():
        yield two


def test_no_worker_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody comes in a lost worker's place: an error, not a wait without an end."""
    monkeypatch.setattr(side, "LONG", 0.2)
    how = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0", "processes": False}
    with (
        distributed.LocalCluster(**how) as one,
        distributed.Client(one, set_as_default=False) as client,
        client.as_current(),
    ):
        chunks = side.Chunks(client, [client.submit(np.ones, (3, 2))], [None], [None])
        chunks.settle()
        chunks.agree(SimpleNamespace(name="fit"))  # type: ignore[arg-type]
        one.scale(0)
        ends = perf_counter() + 20
        while side.workers(client) and perf_counter() < ends:
            sleep(0.05)
        with pytest.raises(DeviceError, match="no worker that runs, and none came"):
            chunks.ask(lambda i, again: (0, None, "peak", []))


def test_a_chunk_is_lost_again_and_again() -> None:
    class Doomed(side.Chunks):
        laid = 0

        def _lay(self, missing: list[int]) -> None:
            self.laid += len(missing)

        def _call(self, i: int, given: tuple[Any, ...]) -> Any:
            return None

    chunks = Doomed(None, ["X"], ["y"], [None])  # type: ignore[arg-type, list-item]
    chunks._there, chunks.homes = set(), ["gone"]
    with pytest.raises(DeviceError, match=f"lost the rows of a chunk {side.TRIES + 1} times"):
        chunks.ask(lambda i, again: ())
    assert chunks.laid == side.TRIES + 1


def test_a_worker_dies_before_it_answers_for_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the answering actor of a worker that is gone, but for that of one that is there."""

    class Made:
        cancelled = False

        def result(self, timeout: float) -> Any:
            raise TimeoutError

        def cancel(self) -> None:
            self.cancelled = True

    class Client:
        there = 3
        made: tuple[Made, ...] = ()

        def submit(self, *given: Any, **how: Any) -> Made:
            self.made = (*self.made, Made())
            return self.made[-1]

        def run_on_scheduler(self, call: Any) -> list[str]:
            self.there -= 1
            return ["home"] if self.there else []

    client = Client()
    chunks = side.Chunks(client, ["X"], ["y"], [None])  # type: ignore[arg-type, list-item]
    chunks.homes, chunks._name = ["home"], "fit"
    assert chunks._call(0, ()) is None
    assert client.there == 0
    assert [one.cancelled for one in client.made] == [True]


def test_who_takes_over_makes_room() -> None:
    """Chunks that leave no room for a lost worker's are laid out again, in less."""
    shares: list[tuple[int, int]] = []

    def laid(stream: Any, left: int, i: int, *chunk: Any) -> Any:
        if worker._fits["tight"].chunks and left == 1 and len(shares) == 1:  # (the first one took it all)
            raise MemoryLimitError(1, 1, 1)
        shares.append((i, left))
        return SimpleNamespace(number=i)

    terms: Any = SimpleNamespace(
        name="tight", device=DEVICE, memory_limit=None, neighbours=1, chunks=1, changes=(), laid=laid
    )
    try:
        for i in (0, 1):
            worker.lay(terms, i, np.ones((1, 1)), None, None)
        desk = worker.Desk()
        assert desk.ask("tight", 1, 0, None, "number", []) == 1
        assert isinstance(desk.ask("tight", 0, 0, None, "number", []), worker.Lost)
        worker.lay(terms, 0, np.ones((1, 1)), None, None)
        assert desk.ask("tight", 0, 0, None, "number", []) == 0
    finally:
        worker.forget("tight")
    assert shares == [(0, 1), (1, 2), (0, 1)]


def test_an_empty_first_chunk(client: Any) -> None:
    """Filters leave such."""
    keep = np.arange(len(X)) >= 1000
    rows, y = (da.from_array(one, chunks=(1000, *one.shape[1:])) for one in (X, Y))
    there = da.from_array(keep, chunks=1000)
    made = machine("FalkonRegressor").fit(rows[there], y[there])
    alone = clsvm.FalkonRegressor(center_selection=made.centers_, random_state=0, device=DEVICE).fit(X[keep], Y[keep])
    np.testing.assert_allclose(made.predict(X), alone.predict(X), atol=2e-3)
    exact = over_dask.SVR(device=DEVICE).fit(rows[there], y[there])
    for one in (made, exact):  # (of chunks whose sizes nobody knows)
        np.testing.assert_array_equal(one.predict(rows[there]).compute(), one.predict(X[keep]))
    dual = clsvm.SVR(device=DEVICE).fit(X[keep], Y[keep]).fit_report_.dual
    assert exact.fit_report_.dual == pytest.approx(dual, rel=1e-5)


def test_one_device_a_worker(client: Any) -> None:
    rows, y = da.from_array(X, chunks=(1000, 5)), da.from_array(Y, chunks=1000)
    for made in (machine("FalkonRegressor", device=[DEVICE] * 2), over_dask.SVR(device=f"{DEVICE},{DEVICE}")):
        with pytest.raises(ValueError, match="one device a worker, got device="):
            made.fit(rows, y)


def test_searches_answer_in_chunks(client: Any) -> None:
    frame = pytest.importorskip("dask.dataframe")
    pandas = pytest.importorskip("pandas")
    table = frame.from_pandas(pandas.DataFrame(X, columns=list("abcde")), npartitions=3)
    alone = clsvm.SVC(gamma=0.1, device=DEVICE).fit(pandas.DataFrame(X, columns=list("abcde")), CLASSES)
    search = over_dask.SVCSearchCV(clsvm.SVC(gamma=0.1, device=DEVICE), {"C": [1.0]}, cv=3)
    search.fit(table, da.from_array(CLASSES, chunks=1000))
    for name in ("predict", "decision_function"):
        found = getattr(search, name)(table)
        assert hasattr(found, "chunks")
        want = getattr(alone, name)(table.compute())
        np.testing.assert_array_equal(found.compute(), want)
    assert search.score(table, da.from_array(CLASSES, chunks=1000)) == alone.score(table.compute(), CLASSES)
    assert not hasattr(search, "predict_proba")
