"""Searches over Dask's workers, and scikit-learn's loops over joblib's Dask backend: the scores of one place."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import dask.array as da
import distributed
import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import clsvm
from clsvm import dask as over_dask
from clsvm.dask import search as dealing
from clsvm.errors import CheckpointError, DeviceError
from clsvm.model_selection import FalkonSearchCV, folds
from clsvm.opencl.stream import Stream
from tests.dask.conftest import DEVICE, LABELS, NUMBERS, X, cluster, current

KERNELS = {"C": [0.1, 1, 10], "gamma": [0.05, 0.1, 0.3]}  # three kernel functions: more than workers
FOLDS = {"C": [0.1, 10]}  # one: some folds are a piece


@pytest.fixture
def threads() -> Iterator[Any]:
    """Two workers with three threads each, all in this process."""
    with current(2, processes=False, threads_per_worker=3) as client:
        yield client


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What goes to the workers from here on: "data" that is scattered, and the "pieces" of searches, their jobs."""
    calls: dict[str, list[Any]] = {"data": [], "pieces": []}
    scatter, submit = distributed.Client.scatter, distributed.Client.submit

    def scattered(self: Any, data: Any, **how: Any) -> Any:
        calls["data"] += [data] * isinstance(data, dealing.DistributedFits)
        return scatter(self, data, **how)

    def submitted(self: Any, call: Any, *given: Any, **how: Any) -> Any:
        calls["pieces"] += [given[2]] if given and given[0] is dealing._run_fits else []
        return submit(self, call, *given, **how)

    monkeypatch.setattr(distributed.Client, "scatter", scattered)
    monkeypatch.setattr(distributed.Client, "submit", submitted)
    return calls


def machine(**given: Any) -> Any:
    return clsvm.SVC(**{"device": DEVICE, "gamma": 0.1, "working_set_size": 256} | given)


def searched(module: Any, grid: Any, y: Any = LABELS, rows: Any = X, **given: Any) -> Any:
    return module.SVCSearchCV(machine(), grid, **{"cv": 3, "refit": False} | given).fit(rows, y)


def scores(search: Any) -> Any:
    """Of each candidate and fold."""
    return np.stack([search.cv_results_[f"split{fold}_test_score"] for fold in range(3)])


def after_the_first(monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> list[bool]:
    """Have ``call`` called once the first piece of a search is done; returns a list that is filled then."""
    real, called = dealing.DistributedFits._run_all, list[bool]()

    def each(self: Any) -> Iterator[None]:
        for _ in (steps := real(self)):
            if not called:
                called.append(True)
                try:
                    call()
                except BaseException as error:
                    steps.throw(error)  # as if it came where the search waits
            yield

    monkeypatch.setattr(dealing.DistributedFits, "_run_all", each)
    return called


def assert_nothing_left(client: Any) -> None:
    """Neither pieces nor data: the scheduler takes a moment to hear of it."""

    def left(dask_scheduler: Any) -> list[str]:
        return [key for key in map(str, dask_scheduler.tasks) if key.startswith(("in_thread", "_Folds"))]

    ends = perf_counter() + 20
    while (found := client.run_on_scheduler(left)) and perf_counter() < ends:
        sleep(0.1)
    assert not found


def at_work(client: Any) -> list[str]:
    """Addresses of the workers that have a piece in hand."""
    return [address for address, tasks in client.processing().items() if tasks]


def kill(client: Any, addresses: list[str]) -> None:
    for process in client.run(os.getpid, workers=addresses).values():
        os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize(("grid", "pieces", "sparse"), [(KERNELS, 3, False), (FOLDS, 2, False), (FOLDS, 2, True)])
def test_as_in_one_place(client: Any, sent: dict[str, list[Any]], grid: Any, pieces: int, sparse: bool) -> None:
    """Every score and the refit, by kernel functions and by folds; Dask's rows are brought together and sent once."""
    here, there = X, da.from_array(X, chunks=(500, 6))
    if sparse:
        here, there = sp.csr_matrix(X), there.map_blocks(sp.csr_matrix)
    alone = searched(clsvm.model_selection, grid, rows=here, refit=True)
    made = searched(over_dask, grid, rows=there, refit=True)
    np.testing.assert_array_equal(scores(made), scores(alone))
    np.testing.assert_array_equal(made.cv_results_["rank_test_score"], alone.cv_results_["rank_test_score"])
    assert made.best_params_ == alone.best_params_
    np.testing.assert_array_equal(made.predict(here), alone.predict(here))
    assert (len(sent["data"]), len(sent["pieces"])) == (1, pieces)
    assert all(len(distributed.protocol.pickle.dumps(jobs)) < 1000 for jobs in sent["pieces"])


def test_machines_on_centres(client: Any) -> None:
    regressor = clsvm.FalkonRegressor(n_centers=50, random_state=0, device=DEVICE)
    grid = {"gamma": [0.1, 0.3], "penalty": [1e-3, 1e-5]}
    alone = FalkonSearchCV(regressor, grid, cv=3).fit(X, NUMBERS)
    made = over_dask.FalkonSearchCV(regressor, grid, cv=3).fit(X, NUMBERS)
    np.testing.assert_allclose(scores(made), scores(alone), rtol=1e-9)


def test_verbose(client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    searched(over_dask, KERNELS, verbose=1)
    assert "27 of 27 fits" in capsys.readouterr().err


def test_errors_and_warnings_come_here(client: Any) -> None:
    with pytest.raises(ValueError, match="C must be") as raised:
        searched(over_dask, {"C": [1, -1]}, error_score="raise")
    assert_nothing_left(client)
    assert raised.traceback

    def full() -> None:
        from clsvm.model_selection import folds

        folds.NystromFolds._solved_here = folds.NystromFolds._solve_fits  # type: ignore[attr-defined]

        def failing(*_: Any) -> bool:
            raise MemoryError("no room for all folds")

        folds.NystromFolds._solve_fits = failing  # type: ignore[method-assign]

    def again() -> None:
        from clsvm.model_selection import folds

        folds.NystromFolds._solve_fits = folds.NystromFolds._solved_here  # type: ignore[attr-defined,method-assign]

    client.run(full)
    regressor = clsvm.FalkonRegressor(n_centers=50, random_state=0, device=DEVICE)
    try:
        with pytest.warns(RuntimeWarning, match="done one by one: out of memory: no room for all folds"):
            over_dask.FalkonSearchCV(regressor, {"penalty": [1e-3, 1e-2]}, cv=3, refit=False).fit(X, NUMBERS)
    finally:
        client.run(again)


def test_ctrl_c_and_a_checkpoint(client: Any, sent: dict[str, list[Any]], tmp_path: Path, monkeypatch: Any) -> None:
    """Pieces are cancelled; the file has what came back, and the search goes on from there."""
    file = tmp_path / "search"
    with monkeypatch.context() as patch:
        after_the_first(patch, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt) as interrupted:
            searched(over_dask, KERNELS, checkpoint=file)
    assert_nothing_left(client)
    assert interrupted.traceback  # (kept until here, as a notebook keeps it, with all that the search had at hand)
    assert len(sent["pieces"]) == 3
    again = searched(over_dask, KERNELS, checkpoint=file)
    assert len(sent["pieces"]) == 3 + 2
    np.testing.assert_array_equal(scores(again), scores(searched(clsvm.model_selection, KERNELS)))
    data = len(sent["data"])
    np.testing.assert_array_equal(scores(searched(over_dask, KERNELS, checkpoint=file)), scores(again))
    assert len(sent["data"]) == data  # all was there: nothing is sent
    with pytest.raises(CheckpointError, match="another search"):
        searched(over_dask, FOLDS, checkpoint=file)


@pytest.mark.sweep
@pytest.mark.full
@pytest.mark.parametrize("everyone", [False, True])
def test_workers_die(sent: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch, everyone: bool) -> None:
    """One that is at a piece, or all with the data: scores are the same, and data is sent again once, if all die."""
    grid = {"C": [0.1, 10], "gamma": [0.02, 0.05, 0.1, 0.2, 0.3, 0.5]}
    expected = scores(searched(clsvm.model_selection, grid))
    with cluster(2) as two, distributed.Client(two) as client:
        client.wait_for_workers(2)
        before = set(client.run(os.getpid).values())

        def some() -> None:
            busy = at_work(client)
            assert busy
            kill(client, client.run(os.getpid) if everyone else busy[:1])

        called = after_the_first(monkeypatch, some)
        made = searched(over_dask, grid)
        assert called
        client.wait_for_workers(2)
        assert len(before & set(client.run(os.getpid).values())) == (0 if everyone else 1)
        assert len(sent["data"]) == 1 + everyone
        np.testing.assert_array_equal(scores(made), expected)


def test_a_piece_that_is_lost_once_it_is_done(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker went before the answer was fetched: it is asked for again."""
    lost: list[str] = []
    result = distributed.Future.result

    def gone(future: Any, *given: Any, **named: Any) -> Any:
        if not lost and future.key.startswith("in_thread"):
            lost.append(future.key)
            raise CancelledError(future.key)
        return result(future, *given, **named)

    monkeypatch.setattr(distributed.Future, "result", gone)
    made = searched(over_dask, FOLDS)
    assert lost
    np.testing.assert_allclose(scores(made), scores(searched(clsvm.model_selection, FOLDS)), atol=2e-3)


def test_pieces_that_are_lost_again_and_again(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that no worker survives is an error, not an endless loop."""
    monkeypatch.setattr(dealing, "_result_of", lambda future: None)
    with pytest.raises(DeviceError, match="Dask lost all workers with the data of the search"):
        searched(over_dask, FOLDS)
    assert_nothing_left(client)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a client nor a worker."""
    with monkeypatch.context() as patch:

        def none() -> Any:
            raise ValueError("No global client found")

        patch.setattr(over_dask.rows, "get_client", none)
        for estimator in (machine(), make_pipeline(machine())):
            with pytest.raises(ValueError, match="a search over workers needs a Dask client: make one by"):
                over_dask.SVCSearchCV(estimator, {}, cv=3).fit(X, LABELS)
    with (
        cluster(0, processes=False) as none_yet,
        distributed.Client(none_yet, timeout=1),
        pytest.raises(DeviceError, match="Dask has no running worker"),
    ):
        searched(over_dask, FOLDS)


def test_workers_of_one_machine_share_its_memory(threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Noted(Stream):
        def __init__(self, spec: Any = None, memory_limit: Any = None, *rest: Any) -> None:
            given.append(memory_limit)
            super().__init__(spec, memory_limit, *rest)

    monkeypatch.setattr(folds, "Stream", Noted)
    with Stream(DEVICE) as stream:
        searched(over_dask, KERNELS)
        assert len(given) == 3
        assert all(0.3 * stream.limit < limit < 0.7 * stream.limit for limit in given)
    over_dask.SVCSearchCV(machine(memory_limit="200MB"), KERNELS, cv=3, refit=False).fit(X, LABELS)
    assert given[3:] == ["200MB"] * 3


def test_a_pipeline_goes_to_the_workers(client: Any, tmp_path: Path) -> None:
    """Its fits, one by one; the refit is here."""

    def seen(rows: Any) -> Any:
        (tmp_path / str(os.getpid())).touch()
        return rows

    pipeline = make_pipeline(FunctionTransformer(seen), machine())
    grid = {"svc__C": [0.1, 10]}
    made = over_dask.SVCSearchCV(pipeline, grid, cv=3, refit=False).fit(X, LABELS)
    assert {one.name for one in tmp_path.iterdir()} <= {str(one) for one in client.run(os.getpid).values()}
    np.testing.assert_array_equal(scores(made), scores(GridSearchCV(pipeline, grid, cv=3, refit=False).fit(X, LABELS)))


def test_joblib_and_threads_of_one_process(threads: Any) -> None:
    """scikit-learn's own parallel loops, over Dask."""
    classes = (NUMBERS > 0).astype(int) + (NUMBERS > 1.5)
    alone = GridSearchCV(machine(), KERNELS, cv=3).fit(X, LABELS)
    pairs = OneVsOneClassifier(machine()).fit(X, classes)
    with joblib.parallel_config(backend="dask"):
        made = GridSearchCV(machine(), KERNELS, cv=3, n_jobs=-1).fit(X, LABELS)
        both = OneVsOneClassifier(machine(), n_jobs=-1).fit(X, classes)
    np.testing.assert_array_equal(scores(made), scores(alone))
    np.testing.assert_array_equal(both.predict(X), pairs.predict(X))
