"""Grid searches over Dask's workers.

pieces   fits that share a kernel function go to one worker, or those of some folds where there are more workers
         than kernel functions
data     X and y are sent to every worker once, and again only where all workers that had them are lost
results  decision values of the rows that a fold leaves out come back; scores are made of them here
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Generator
from concurrent.futures import CancelledError
from typing import Any, Self

import joblib
from distributed import Client, Future, as_completed
from sklearn.base import clone

from clsvm import model_selection as local
from clsvm.dask import worker
from clsvm.dask.executor import LOST, neighbours, pickled, workers
from clsvm.dask.rows import Answering, client_for, here
from clsvm.errors import DeviceError, warn
from clsvm.model_selection.fits import Fits, FoldResult
from clsvm.model_selection.folds import Folds, NystromFolds

Jobs = list[tuple[int, int]]
Results = dict[tuple[int, int], FoldResult | Exception]
Said = list[tuple[str, type[Warning]]]
NEEDS = "a search over workers needs"
LOSSES = 3  # how often all workers that have the data may be lost before another piece is done


class DealtFits(Fits):
    """The fits of a search, in pieces for Dask's workers. sent, received: bytes to and from them."""

    sent = received = 0

    def _each(self) -> Generator[None]:
        client = client_for(NEEDS)
        todo = self.pieces(max(1, len(workers(client))))
        if not todo:
            return
        data, among, losses = self._everywhere(client), neighbours(client), 0
        asked: dict[Future[Any], tuple[Jobs, Future[Any]]] = {}
        waiting = as_completed()

        def ask(jobs: Jobs) -> None:
            future = client.submit(worker.in_thread, _done, data, jobs, among, pure=False)
            asked[future] = jobs, data
            waiting.add(future)

        try:
            for jobs in todo:
                ask(jobs)
            for future in waiting:
                jobs, had = asked.pop(future)
                if (came := _come_to(future)) is None:
                    if had is data:  # (the others that were lost with it find it sent)
                        losses += 1
                        if losses > LOSSES:
                            raise DeviceError(
                                f"Dask lost all workers that had the data {losses} times and no piece of the search "
                                "was done in between: do the workers have enough memory?"
                            )
                        data = self._everywhere(client)
                    ask(jobs)
                    continue
                results, said = came
                losses = 0
                self.received += sum(one.nbytes for one in results.values() if isinstance(one, FoldResult))
                self.found.update(results)
                for words, category in said:
                    warn(words, category)
                yield
        finally:
            client.cancel([*asked, data])

    def _everywhere(self, client: Client) -> Future[Any]:
        """Send these fits to every worker, bare. Raises DeviceError where no worker is there."""
        bare = self.bare()
        try:
            data: Future[Any] = client.scatter(bare, broadcast=True, hash=False)
        except TimeoutError:
            raise DeviceError("Dask has no worker that runs, and none came: start one") from None
        self.sent += pickled(bare) * len(client.who_has([data]).get(data.key, ()))
        return data


def _come_to(future: Future[Any]) -> tuple[Results, Said] | None:
    """Return what a piece came to; None where it was lost, with the last worker that had the data or after its end."""
    try:
        result: tuple[Results, Said] | None = None if future.status in LOST else future.result()
    except CancelledError:
        return None
    return result


def _done(fits: Fits, jobs: Jobs, among: int) -> tuple[Results, Said]:
    """Return what some fits come to on this worker's device, and the warnings meanwhile; among: the workers that share
    this machine's memory."""
    own = copy.copy(fits)
    if among > 1 and own.machine.memory_limit is None:
        own.machine = clone(own.machine).set_params(memory_limit=worker.share(own.machine.device, among))
    own.rows = clone(own.machine)._rows(own.X, reset=True)
    with warnings.catch_warnings(record=True) as said:
        results = own.done(jobs)
    return results, [(str(one.message), one.category) for one in said]


class _Folds(DealtFits, Folds):
    """The fits of an SVM's search."""


class _NystromFolds(DealtFits, NystromFolds):
    """The fits of a Falkon model's search."""


class SearchOverWorkers(Answering):
    """A search takes Dask's collections, too: they are brought together here and sent to every worker as they are. What
    the best estimator answers for chunks comes in chunks."""

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Search on X (n, d), dense or sparse, or K (n, n), and y (n,), of NumPy, SciPy, pandas or Dask; sample_weight
        and groups as in scikit-learn.

        Raises what the search without Dask raises, ValueError where there is no Dask client, and DeviceError where
        there is no worker, or where workers are lost again and again.
        """
        client_for(NEEDS)
        X, y, *_ = (found := here(**{"X": X, "y": y} | params)).values()
        params = {name: found[name] for name in params}
        if self._by_itself():  # type: ignore[attr-defined]
            with joblib.parallel_config(backend="dask", n_jobs=-1):
                super().fit(X, y, **params)  # type: ignore[misc]
        else:
            super().fit(X, y, **params)  # type: ignore[misc]
        return self

    def score(self, X: Any, y: Any = None, **params: Any) -> float:
        """Return the best estimator's score on X (n, d) and y (n,); Dask collections are gathered first."""
        found = here(**{"X": X, "y": y} | params)
        return float(super().score(**found))  # type: ignore[misc]

    def _note(self, folds: Any) -> None:
        super()._note(folds)  # type: ignore[misc]
        self.bytes_sent_ = {"to the workers": folds.sent, "back": folds.received}


class SVCSearchCV(SearchOverWorkers, local.SVCSearchCV):
    """:class:`clsvm.model_selection.SVCSearchCV` over Dask's workers, with the same parameters, attributes and scores.

    Each worker takes all fits of one kernel function, then those of the next one; where there are fewer kernel
    functions than workers, the fits of some folds. It uses its own device: ``device`` and ``memory_limit`` of the
    estimator are each worker's, and workers of one machine share its memory where no limit is given. The refit is done
    here, by the caller.

    X and y are sent to every worker once. If a worker is lost, Dask has another one do its piece; if all of them are
    lost, the data is sent again to those that come in their place. Ctrl-C and errors cancel the pieces that have not
    begun; a worker ends the piece that it is at. ``checkpoint`` is a file here, and ``verbose`` shows what has come
    back. The fits of a Pipeline go to the workers one by one, through joblib.

    bytes_sent_ : dict, the bytes that went "to the workers" and came "back"; not of a Pipeline
    """

    _folds = _Folds


class FalkonSearchCV(SearchOverWorkers, local.FalkonSearchCV):
    """:class:`clsvm.model_selection.FalkonSearchCV` over Dask's workers, as :class:`SVCSearchCV` is."""

    _folds = _NystromFolds
