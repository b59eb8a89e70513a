"""Grid searches over Dask's workers: what shares a kernel function goes to one of them, with data that is sent once."""

from __future__ import annotations

import copy
from collections.abc import Generator
from typing import Any, Self

from distributed import as_completed

from clsvm import model_selection as local
from clsvm.dask import worker
from clsvm.dask.rows import client_for, is_dask
from clsvm.model_selection.fits import Fits, Found
from clsvm.model_selection.folds import Folds
from clsvm.model_selection.nystrom import NystromFolds

Jobs = list[tuple[int, int]]


class _Dealt(Fits):
    """The fits of a search, in pieces for Dask's workers."""

    def _each(self) -> Generator[None]:
        client = client_for("a search over workers needs")
        sent = copy.copy(self)
        sent.found = {}
        everywhere = client.scatter(sent, broadcast=True, hash=False)
        workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
        todo = self.pieces(workers)
        asked = {client.submit(_done, everywhere, jobs, pure=False): jobs for jobs in todo}
        try:
            waiting = as_completed(list(asked))
            for future in waiting:
                jobs = asked.pop(future)
                if future.status in ("cancelled", "lost"):  # with the last worker that had the data
                    everywhere = client.scatter(sent, broadcast=True, hash=False)
                    again = client.submit(_done, everywhere, jobs, pure=False)
                    asked[again] = jobs
                    waiting.add(again)
                    continue
                self.found.update(future.result())
                yield
        finally:
            client.cancel(list(asked))


def _done(fits: Fits, jobs: Jobs) -> dict[tuple[int, int], Found | Exception]:
    """What some fits come to, on this worker's device."""
    found: dict[tuple[int, int], Found | Exception] = worker.in_thread(fits.done, jobs)
    return found


class _Folds(_Dealt, Folds):
    """Of support vector machines."""


class _NystromFolds(_Dealt, NystromFolds):
    """Of machines on centres."""


class _Here:
    """A search takes Dask's collections, too: they are brought together here and sent to every worker as they are."""

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """As the search without Dask; a Dask client has to be there."""
        X, y = (one.compute() if is_dask(one) else one for one in (X, y))
        params = {name: one.compute() if is_dask(one) else one for name, one in params.items()}
        super().fit(X, y, **params)  # type: ignore[misc]
        return self


class SVCSearchCV(_Here, local.SVCSearchCV):
    """:class:`clsvm.model_selection.SVCSearchCV` over Dask's workers: each takes a kernel function after the other, or
    a fold where there are fewer kernel functions than workers; scores are those of one device of their kind.

    X and y are sent to every worker once. A worker that is lost has its piece done again by another. The refit is done
    here. ``device`` and ``memory_limit`` of the estimator are of each worker's device.
    """

    _folds = _Folds


class FalkonSearchCV(_Here, local.FalkonSearchCV):
    """:class:`clsvm.model_selection.FalkonSearchCV`, the same way."""

    _folds = _NystromFolds
