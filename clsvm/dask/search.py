"""Run grid searches over Dask's workers.

pieces   The fits of a search are divided into pieces. Each worker runs one piece at a time. A piece has all fits with
         one kernel function, or a share of such fits if there are more workers than kernel functions.
data     X and y are sent to every worker once, and again only if no worker has X and y any more.
results  Workers return the decision values of test rows. The caller computes the scores from them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Generator
from concurrent.futures import CancelledError
from contextlib import nullcontext
from typing import Any, Self

import joblib
from distributed import Client, Future, as_completed
from sklearn.base import clone

from clsvm import model_selection as local
from clsvm.dask import worker
from clsvm.dask.executor import LOST_STATES, neighbours, workers
from clsvm.dask.rows import ChunkPredictions, client_for, computed
from clsvm.errors import DeviceError, warn
from clsvm.model_selection.fits import Fits, FoldResult
from clsvm.model_selection.folds import Folds, NystromFolds

Jobs = list[tuple[int, int]]
Results = dict[tuple[int, int], FoldResult | Exception]
Warned = list[tuple[str, type[Warning]]]
NEEDS = "a search over workers needs"
MAX_LOSSES = 3  # a search fails if all workers are lost more than MAX_LOSSES times without a finished piece between


class DistributedFits(Fits):
    """Run the fits of a grid search on Dask's workers, in groups of fits that share kernel values."""

    def _run_all(self) -> Generator[None]:
        client = client_for(NEEDS)
        todo = self.pieces(max(1, len(workers(client))))
        if not todo:
            return
        data, among, losses = self._broadcast(client), neighbours(client), 0
        futures: dict[Future[Any], tuple[Jobs, Future[Any]]] = {}
        waiting = as_completed()

        def submit(jobs: Jobs) -> None:
            future = client.submit(worker.in_thread, _run_fits, data, jobs, among, pure=False)
            futures[future] = jobs, data
            waiting.add(future)

        try:
            for jobs in todo:
                submit(jobs)
            for future in waiting:
                jobs, data_used = futures.pop(future)
                if (outcome := _result_of(future)) is None:
                    if data_used is data:  # else the loss of another piece has had the data sent again already
                        losses += 1
                        if losses > MAX_LOSSES:
                            raise DeviceError(
                                f"Dask lost all workers that had the data {losses} times and no piece of the search "
                                "was done in between: do the workers have enough memory?"
                            )
                        data = self._broadcast(client)
                    submit(jobs)
                    continue
                results, warned = outcome
                losses = 0
                self.results.update(results)
                for words, category in warned:
                    warn(words, category)
                yield
        finally:
            client.cancel([*futures, data])

    def _broadcast(self, client: Client) -> Future[Any]:
        """Send one object, with the data and parameters of all fits, to every worker. Return the object's Dask future.

        Raises DeviceError if there is no worker.
        """
        try:
            data: Future[Any] = client.scatter(self.without_data(), broadcast=True, hash=False)
        except TimeoutError:
            raise DeviceError("Dask has no worker that runs, and none came: start one") from None
        return data


def _result_of(future: Future[Any]) -> tuple[Results, Warned] | None:
    """Return the results and warnings of a piece of the search, a group of its fits, that a worker ran.

    Return None if Dask has lost the piece or its data.
    """
    try:
        return None if future.status in LOST_STATES else future.result()
    except CancelledError:
        return None


def _run_fits(fits: Fits, jobs: Jobs, among: int) -> tuple[Results, Warned]:
    """Run some fits of a search on this worker's device, and return their results and warnings.

    ``fits`` has the data and all fits of the search. ``jobs`` has the (candidate, fold) of each fit to run. ``among``
    is the number of workers that share this computer's memory.
    """
    local_fits = copy.copy(fits)
    if among > 1 and local_fits.estimator.memory_limit is None:
        local_fits.estimator = clone(local_fits.estimator).set_params(
            memory_limit=worker.share(local_fits.estimator.device, among)
        )
    local_fits.rows = clone(local_fits.estimator)._rows(local_fits.X, reset=True)
    with warnings.catch_warnings(record=True) as warned:
        results = local_fits.run_jobs(jobs)
    return results, [(str(one.message), one.category) for one in warned]


class _Folds(DistributedFits, Folds):
    """Run the fits of a grid search over SVMs on Dask's workers."""


class _NystromFolds(DistributedFits, NystromFolds):
    """Run the fits of a grid search over Falkon models on Dask's workers."""


class SearchOverWorkers(ChunkPredictions):
    """Run a grid search on Dask's workers. This is the base class of SVCSearchCV and FalkonSearchCV.

    Dask collections are gathered on the caller's computer, and sent to every worker as a whole. The best estimator
    returns predictions for Dask collections as Dask arrays.
    """

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Search the grid with X and y, and refit the best estimator.

        Parameters
        ----------
        X : array-like of NumPy, SciPy, pandas or Dask, shape (n, d), or precomputed K (n, n)
            Rows, dense or sparse.
        y : array-like of shape (n,)
            Targets.
        **params
            sample_weight and groups, as in scikit-learn.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If there is no open Dask client, or for the reasons of the search without Dask.
        DeviceError
            If there is no worker, or if workers are lost repeatedly.
        """
        client_for(NEEDS)
        X, y, *_ = (found := computed(**{"X": X, "y": y} | params)).values()
        params = {name: found[name] for name in params}
        over_joblib = self._needs_grid_search()  # type: ignore[attr-defined]
        with joblib.parallel_config(backend="dask", n_jobs=-1) if over_joblib else nullcontext():
            return super().fit(X, y, **params)  # type: ignore[misc]

    def score(self, X: Any, y: Any = None, **params: Any) -> float:
        """Return the best estimator's score on X (n, d) and y (n,).

        Dask collections are first brought to the caller's computer.
        """
        found = computed(**{"X": X, "y": y} | params)
        return float(super().score(**found))  # type: ignore[misc]


class SVCSearchCV(SearchOverWorkers, local.SVCSearchCV):
    """Run the grid search :class:`clsvm.model_selection.SVCSearchCV` over Dask's workers.

    Parameters, attributes and scores are those of that class. A worker runs all fits with one kernel function, then
    takes the next kernel function. If there are fewer kernel functions than workers, each worker runs only some folds.
    The caller refits the best estimator on the caller's device.

    ``device`` and ``memory_limit`` of the estimator hold for each worker. Without a limit, the workers of one computer
    divide its memory. ``checkpoint`` is a file on the caller's computer, and ``verbose`` shows the finished fits.

    X and y are sent to every worker once. If a worker is lost, Dask has another worker repeat its fits. If all workers
    are lost, the data is sent again to new workers. Ctrl-C and errors cancel the fits that no worker has begun. A
    worker finishes the group of fits that it has begun. The fits of a Pipeline go to the workers one by one, through
    joblib.
    """

    _folds = _Folds


class FalkonSearchCV(SearchOverWorkers, local.FalkonSearchCV):
    """Run the grid search :class:`clsvm.model_selection.FalkonSearchCV` over Dask's workers.

    The workers divide the fits as for :class:`SVCSearchCV`.
    """

    _folds = _NystromFolds
