"""Run grid searches over Dask's workers.

pieces   The fits of a search are divided into pieces. Each worker runs one piece at a time. A piece has all fits with
         one kernel function. If there are more workers than kernel functions, a piece has only the fits to some folds.
data     X and y are sent to every worker once. X and y are sent again only if all workers that had them are lost.
results  Workers return the decision values of test rows. The caller computes the scores from the decision values.
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
# A search fails if it loses all its workers more than MAX_LOSSES times. Each finished group of fits resets the count.
MAX_LOSSES = 3


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
                    # Several groups of fits can lose the same copy of the data. One loss is then counted, and the data
                    # are sent again once.
                    if data_used is data:
                        losses += 1
                        if losses > MAX_LOSSES:
                            raise DeviceError(
                                f"Dask lost all workers with the data of the search {losses} times, without progress "
                                "in between: do the workers have enough memory?"
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
        """Send the data and parameters of all fits, as one object, to every worker. Return the object's Dask future.

        Raises DeviceError if no worker is live.
        """
        try:
            data: Future[Any] = client.scatter(self.without_data(), broadcast=True, hash=False)
        except TimeoutError:
            raise DeviceError("Dask has no running worker, and none came in time: start one") from None
        return data


def _result_of(future: Future[Any]) -> tuple[Results, Warned] | None:
    """Return the results and warnings of a group of fits that a worker ran.

    future: the group's Dask future, which has ended.

    Return None if Dask has lost the group's results or data.
    """
    try:
        return None if future.status in LOST_STATES else future.result()
    except CancelledError:
        return None


def _run_fits(fits: Fits, jobs: Jobs, among: int) -> tuple[Results, Warned]:
    """Run some fits of a search on this worker's device, and return their results and warnings.

    fits: the data and all fits of the search.
    jobs: the pair (candidate, fold) of each fit to run.
    among: number of workers that divide the memory of this computer's devices.
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
        """Search the parameter grid with X and y, and refit the best estimator.

        Parameters
        ----------
        X : array-like of NumPy, SciPy, pandas or Dask, shape (n, d), or kernel matrix (n, n)
            Rows, dense or sparse. A kernel matrix is for estimators with kernel="precomputed".
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
            If no Dask client is open, or if the data or parameters are invalid, as in a search without Dask.
        DeviceError
            If no worker is live, or if workers are lost repeatedly.
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
    takes the next kernel function. If there are fewer kernel functions than workers, each worker runs the fits to some
    of the folds. The caller refits the best estimator on the caller's device.

    ``device`` and ``memory_limit`` of the estimator hold for each worker. Without a limit, the workers of one computer
    divide the memory of its device. ``checkpoint`` is a file on the caller's computer, and ``verbose`` shows the number
    of finished fits.

    X and y are sent to every worker once. If a worker is lost, Dask lets another worker repeat the lost worker's fits.
    If all workers are lost, X and y are sent again to new workers. Ctrl-C and errors cancel the fits that no worker has
    begun. A worker finishes the group of fits that it has begun. The fits of a Pipeline go to the workers one by one,
    through joblib.
    """

    _folds = _Folds


class FalkonSearchCV(SearchOverWorkers, local.FalkonSearchCV):
    """Run the grid search :class:`clsvm.model_selection.FalkonSearchCV` over Dask's workers.

    Parameters, attributes and scores are those of that class. The fits are divided among the workers, and ``device``,
    ``memory_limit`` and ``checkpoint`` are used, as in :class:`clsvm.dask.SVCSearchCV`.
    """

    _folds = _NystromFolds
