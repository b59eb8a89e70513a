"""Search a parameter grid with cross-validation, as scikit-learn's GridSearchCV does, but share work between the fits.

:class:`SVCSearchCV` is for SVMs, :class:`FalkonSearchCV` for Nyström kernel machines. A search has three steps:

1. Split the rows into folds, and run all fits (fits.py, folds.py). The results are decision values.
2. Let scikit-learn's GridSearchCV compute the scores. In place of fits, :class:`LookupEstimator` looks up the results.
3. Copy the attributes of this GridSearchCV, and refit the best estimator to all rows (:func:`copy_attributes`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring
from sklearn.model_selection import GridSearchCV, ParameterGrid, check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import indexable
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _num_samples

from clsvm.errors import warn
from clsvm.estimators import checks
from clsvm.estimators.base import KernelEstimator, set_parameters
from clsvm.estimators.callbacks import registered
from clsvm.estimators.dual import Machine
from clsvm.estimators.falkon import Falkon
from clsvm.model_selection.fits import Fits, FoldResult, Rows
from clsvm.model_selection.folds import Folds, NystromFolds
from clsvm.models.decoder import logistic


class _SearchCV(GridSearchCV):
    """Search a parameter grid by fits that share kernel values and solutions. This is the base class of both searches.

    Attributes
    ----------
    _estimator_class
        class of the estimators whose fits can share work.
    _estimator_name
        words for this class in messages, such as "one of clsvm's Falkon estimators".
    _folds
        subclass of :class:`Fits` that runs the fits.
    """

    _estimator_class: type[KernelEstimator]
    _estimator_name: str
    _folds: type[Fits]

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: Any = "2*n_jobs",
        error_score: Any = np.nan,
        return_train_score: bool = False,
        checkpoint: Any = None,
    ) -> None:
        set_parameters(self, locals())

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Search the parameter grid with X and y, and refit the best estimator.

        Warns with ConvergenceWarning if fits to folds did not converge.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), or kernel matrix (n, n)
            Rows. A kernel matrix is for estimators with kernel="precomputed".
        y : array-like of shape (n,)
            Targets.
        **params
            sample_weight and groups, as in scikit-learn.

        Returns
        -------
        self

        Raises
        ------
        TypeError
            If the search does not support the estimator's class, or for unknown ``params``.
        ValueError
            If the estimator has a checkpoint, or if GridSearchCV or the estimator raises it for these data.
        CheckpointError
            If the checkpoint belongs to another search.
        """
        if getattr(self.estimator, "checkpoint", None) is not None:
            raise ValueError("the estimator's checkpoint is for a single fit: give checkpoint= to the search instead")
        checks.check_missing(y)
        if self._needs_grid_search():
            if self.checkpoint is not None:
                raise ValueError(
                    "checkpoint is not supported for a Pipeline, for a subclass of clsvm's estimators that defines "
                    "more than __init__, or if the estimator or the search has callbacks, got "
                    f"{type(self.estimator).__name__}{' with callbacks' * registered(self, self.estimator)}"
                )
            return super().fit(X, y, **params)
        if not isinstance(self.estimator, self._estimator_class):
            raise TypeError(
                f"estimator must be {self._estimator_name}, or a Pipeline that ends in one, got {self.estimator!r}"
            )
        if unknown := params.keys() - {"sample_weight", "groups"}:
            raise TypeError(f"fit: expected sample_weight or groups, got {', '.join(sorted(unknown))}")
        X, y = indexable(X, y)
        splitter = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        groups = params.pop("groups", None)
        numbers = np.arange(_num_samples(X))
        splits = [(numbers[train], numbers[test]) for train, test in splitter.split(X, y, groups)]
        weights, candidates = params.get("sample_weight"), list(ParameterGrid(self.param_grid))
        estimator = clone(self.estimator)
        folds = self._folds(estimator, X, y, splits, candidates, weights, self.return_train_score)
        shared = {name: getattr(self, name) for name in ("scoring", "refit", "error_score", "return_train_score")}
        lookup = LookupSearch(LookupEstimator(clone(estimator), folds), self.param_grid, cv=splits, **shared)
        lookup.folds, lookup.work = folds, partial(folds.run, self.checkpoint, bool(self.verbose))
        lookup.fit(numbers[:, None], y, **params)
        copy_attributes(self, lookup, X, y, **params)
        self._set_fit_times(folds)
        return self

    def _set_fit_times(self, folds: Fits) -> None:
        """Set the mean and standard deviation of each candidate's fit times in cv_results_.

        Warns with ConvergenceWarning if fits did not converge.
        """
        seconds = np.full((len(folds.candidates), len(folds.splits)), np.nan)
        fitted = {job_id: result for job_id, result in folds.results.items() if isinstance(result, FoldResult)}
        for job_id, result in fitted.items():
            seconds[job_id] = result.seconds
        self.cv_results_["mean_fit_time"], self.cv_results_["std_fit_time"] = seconds.mean(axis=1), seconds.std(axis=1)
        if unconverged := sum(not result.converged for result in fitted.values()):
            warn(f"{unconverged} of {seconds.size} fold fits did not converge", ConvergenceWarning)

    def _needs_grid_search(self) -> bool:
        """Return whether scikit-learn's GridSearchCV has to run the fits, because the fits cannot share work.

        Fits cannot share work in three cases: the estimator is a Pipeline, the estimator or the search has callbacks,
        or a user's subclass of the estimator defines anything but a constructor. If the search does not support the
        estimator's class, return False, because :meth:`fit` then raises TypeError.
        """
        estimator = self.estimator
        if isinstance(estimator, Pipeline):
            return isinstance(estimator[-1], self._estimator_class)
        if not isinstance(estimator, self._estimator_class):
            return False
        own_class = next(one for one in type(estimator).__mro__ if one.__module__.startswith("clsvm."))
        return registered(self, estimator) or bool(checks.own_names(type(estimator), own_class) - {"__init__"})


class SVCSearchCV(_SearchCV):
    """Search a parameter grid with cross-validation for support vector machines, faster than separate fits.

    The search has the parameters, splits, scores and attributes of scikit-learn's GridSearchCV. Fits with the same
    kernel function share kernel values and the rows on the device. Each fit starts from the solution of an earlier fit.

    Parameters
    ----------
    estimator : estimator of clsvm, or pipeline
        SVC, NuSVC, SVR, NuSVR or OneClassSVM, or a Pipeline that ends in one of them. OneClassSVM needs ``scoring``;
        y may then be None. scikit-learn's GridSearchCV runs the fits if the estimator is a Pipeline, or if
        scikit-learn's callbacks are used. ``checkpoint`` must then be None. Fits share no work if ``multi_class`` is
        "crammer_singer". Fits to more than two classes share no work if every binary problem has at most about 2,500
        rows, or on a GPU about 2,000 rows.
    param_grid, scoring, refit, cv, error_score, return_train_score, verbose
        As in GridSearchCV. A scoring function gets row numbers in place of X, and a substitute estimator that predicts
        from row numbers. The substitute has no parameters such as C.
    n_jobs, pre_dispatch
        As in GridSearchCV if GridSearchCV runs the fits, else without effect.
    checkpoint : path or None
        File of results. If the file exists, the search continues from it. The file is written every few seconds, at
        the end and on Ctrl-C. A checkpoint of another search raises CheckpointError.

    Notes
    -----
    A fit to a fold uses kernel values in ``dtype``, and stops at ``tol``. If rounding errors of the kernel values could
    move a decision value by more than 0.005, the solution is checked in float64. If the KKT violation in float64
    exceeds ``tol``, the fit continues. If the fit stalls, the estimator's own ``fit`` is called for this fold.
    ``best_estimator_`` is always fitted by its own ``fit``. Fit times in ``cv_results_`` are those of the solver alone.
    """

    _estimator_class, _estimator_name, _folds = Machine, "one of clsvm's support vector machines", Folds


class FalkonSearchCV(_SearchCV):
    """Search a parameter grid with cross-validation for Nyström kernel machines, faster than separate fits.

    The search has the parameters, splits, scores and attributes of scikit-learn's GridSearchCV. With the same parameter
    values, all folds are fitted together, as outputs of one problem in which a fold's test rows have weight 0. The
    folds are divided among several such problems if they have more than 64 outputs in all, or if the host's arrays for
    one problem would take more than 1 GiB. A fit starts from the solution for the next larger penalty. Folds with a
    softmax loss are fitted one after another with the same kernel values.

    Parameters
    ----------
    estimator : estimator of clsvm, or pipeline
        A Falkon estimator, or a Pipeline that ends in one. scikit-learn's GridSearchCV runs the fits if the estimator
        is a Pipeline, or if scikit-learn's callbacks are used. ``checkpoint`` must then be None.
    param_grid, scoring, refit, cv, error_score, return_train_score, verbose, n_jobs, pre_dispatch, checkpoint
        As in :class:`SVCSearchCV`.

    Notes
    -----
    The inducing points of all folds are drawn once from all rows, and gamma="scale" uses the variance of all rows. A
    fit therefore depends on the features of its test rows. The targets of the test rows have no effect. In
    GridSearchCV, a fit would use its training rows alone. ``best_estimator_`` is fitted by its own ``fit``. The time of
    fits that were solved together is divided equally among them in ``cv_results_``.
    """

    _estimator_class, _estimator_name, _folds = Falkon, "one of clsvm's Falkon estimators", NystromFolds


def copy_attributes(search: GridSearchCV, result: GridSearchCV, X: Any, y: Any, **params: Any) -> None:
    """Copy the attributes of the fitted search ``result`` to ``search``.

    If ``search.refit`` is set, fit the best estimator to all rows X (n, d) and targets y.
    """
    for name, value in vars(result).items():
        if name.endswith("_") and not name.startswith("_"):
            setattr(search, name, value)
    if search.scoring is None:
        # A new scorer is made, because the scorer of the search ``result`` would keep all fits in memory.
        search.scorer_ = check_scoring(search.estimator)
    if search.refit:
        began = perf_counter()
        best = clone(search.estimator).set_params(**clone(search.best_params_, safe=False))
        search.best_estimator_ = best.fit(X, y, **params)
        search.refit_time_ = perf_counter() - began
        if hasattr(best, "feature_names_in_"):
            search.feature_names_in_ = best.feature_names_in_


class LookupSearch(GridSearchCV):
    """Run scikit-learn's search with an estimator that looks up the results of earlier fits (:class:`LookupEstimator`).

    scikit-learn first checks the arguments of the search. Then ``work`` runs all fits, and scikit-learn computes the
    scores. A candidate is one choice of parameter values. Each candidate is identified by its number in the list of
    candidates. Its parameter values cannot identify it, because scikit-learn copies them.

    Attributes
    ----------
    folds
        all fits and their results.
    work
        function that runs all fits.
    """

    folds: Fits
    work: Callable[[], None]

    def _run_search(self, evaluate_candidates: Callable[[Any], Any]) -> None:
        self.work()
        evaluate_candidates([{"candidate": number} for number in range(len(self.folds.candidates))])

    def _format_results(self, candidate_params: Any, *args: Any, **options: Any) -> Any:
        candidates = [self.folds.candidates[one["candidate"]] for one in candidate_params]
        return super()._format_results(candidates, *args, **options)


def _if_estimator_has_it(method: Any) -> Any:
    """Make ``method`` of :class:`LookupEstimator` available only if ``original`` has a method of the same name.

    ``original`` is the estimator that the LookupEstimator object replaces in scikit-learn's search.
    """
    return available_if(lambda fold: hasattr(fold.original, method.__name__))(method)


class LookupEstimator(BaseEstimator):
    """Replace an estimator in scikit-learn's search, and look up results of fits that were run before.

    The methods take row numbers (n, 1) in place of X.

    Attributes
    ----------
    original
        the estimator that this object replaces.
    folds
        all fits and their results.
    candidate
        number of the candidate, which is one choice of parameter values; -1 before set_params.
    result_
        result of the fit for this candidate and fold.
    decoder_
        object that computes predictions from the decision values of the result.
    rows_
        numbers of the rows that have decision values in the result, in ascending order.
    """

    def __init__(self, original: Any, folds: Any, candidate: int = -1) -> None:
        self.original, self.folds, self.candidate = original, folds, candidate

    def __repr__(self) -> str:
        return repr(self.original)

    def __sklearn_tags__(self) -> Any:
        tags = self.original.__sklearn_tags__()
        tags.input_tags.pairwise = False
        return tags

    def set_params(self, **params: Any) -> Self:
        """Set the parameters of the estimator ``original``, which this object replaces in scikit-learn's search.

        For a fit to a fold, ``params`` is {"candidate": i}, where i is an index in the list of the grid's parameter
        choices. ``original`` then gets the parameter values of choice i. In all other calls, for example before a
        refit to all rows, ``params`` are parameter values of ``original``, which are set.
        """
        if "candidate" in params:
            self.candidate = params["candidate"]
            params = clone(dict(self.folds.candidates[self.candidate]), safe=False)
        self.original.set_params(**params)
        return self

    def fit(self, numbers: Rows, y: Any = None, **params: Any) -> Self:
        """Find the stored result of the fit to the training rows with the row numbers ``numbers``. No fit runs.

        If the fit raised an exception, raise it again. For a refit to all rows, do nothing. ``y`` and ``params`` are
        not used.
        """
        fold = self.folds.fold_of(np.asarray(numbers)[:, 0]) if self.candidate >= 0 else None
        if fold is not None:
            result: FoldResult | Exception = self.folds.results[self.candidate, fold]
            if isinstance(result, Exception):
                raise result
            self.result_, self.decoder_ = result, self.folds.decoder(self.original, fold)
            self.rows_ = self.folds.stored_rows[fold]
        return self

    @property
    def classes_(self) -> Any:
        if not len(self.decoder_.classes):
            raise AttributeError("classes_")
        return self.decoder_.classes

    def _entries(self, entries: NDArray[Any], numbers: Rows) -> Any:
        """Return the items of ``entries`` for the rows with the row numbers ``numbers`` (n, 1).

        ``entries[i]`` belongs to the row with the number ``rows_[i]``.
        """
        return entries[np.searchsorted(self.rows_, np.asarray(numbers)[:, 0])]

    def predict(self, numbers: Rows) -> Any:
        result = self.result_
        if result.predicted is not None:
            return self._entries(result.predicted, numbers)
        return self.decoder_.predict(self._entries(result.values, numbers))

    @_if_estimator_has_it
    def decision_function(self, numbers: Rows) -> Any:
        values = self._entries(self.result_.values, numbers)
        return values if self.result_.predicted is not None else self.decoder_.decision_function(values)

    @_if_estimator_has_it
    def score_samples(self, numbers: Rows) -> Any:
        return self.decision_function(numbers) + self.result_.offsets

    @_if_estimator_has_it
    def predict_proba(self, numbers: Rows) -> Any:
        return logistic(self._entries(self.result_.values, numbers))

    @_if_estimator_has_it
    def score(self, numbers: Rows, y: Any, sample_weight: Any = None) -> float:
        return float(type(self.original).score(self, numbers, y, sample_weight))
