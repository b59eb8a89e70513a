"""Search a parameter grid with cross-validation, as scikit-learn's GridSearchCV does, with fits that share their work.

:class:`SVCSearchCV` is for SVMs, :class:`FalkonSearchCV` for Nyström kernel machines. A search has three steps:

1. Split the rows into folds, and run all fits (fits.py, folds.py). The results are decision values.
2. Run scikit-learn's own search to compute the scores. Its estimator :class:`LookupEstimator` looks up the results.
3. Copy the attributes of scikit-learn's search, and refit the best estimator to all rows (:func:`copy_attributes`).
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
    """Search a parameter grid by fits that share their work. This is the base class of both searches.

    Attributes
    ----------
    _estimator_class
        class of the estimators whose fits can share work.
    _estimator_name
        description of these estimators for messages.
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
        """Search the grid with X and y, and refit the best estimator.

        Warns with ConvergenceWarning if fits to folds did not converge.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), or precomputed K (n, n)
            Rows.
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
            If the search is not for this class of estimators.
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
                    "checkpoint is for fits that share work: expected an estimator of clsvm without steps before it, "
                    "with no method overridden, and without callbacks on it or on the search, got "
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
        """Set the mean and deviation of the fits' times in cv_results_. Warn if fits did not converge."""
        seconds = np.full((len(folds.candidates), len(folds.splits)), np.nan)
        fitted = {job_id: result for job_id, result in folds.results.items() if isinstance(result, FoldResult)}
        for job_id, result in fitted.items():
            seconds[job_id] = result.seconds
        self.cv_results_["mean_fit_time"], self.cv_results_["std_fit_time"] = seconds.mean(axis=1), seconds.std(axis=1)
        if unconverged := sum(not result.converged for result in fitted.values()):
            warn(f"{unconverged} of {seconds.size} fold fits did not converge", ConvergenceWarning)

    def _needs_grid_search(self) -> bool:
        """Return whether scikit-learn's GridSearchCV has to run the fits, because they cannot share work.

        Fits cannot share work for a Pipeline, with callbacks, or for a user's subclass that defines more than a
        constructor. Return False for an estimator of another class, for which :meth:`fit` raises TypeError.
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

    The search has the parameters, splits, scores and attributes of scikit-learn's GridSearchCV. All fits with the same
    kernel function share kernel values and the rows on the device, and start from solutions of earlier fits.

    Parameters
    ----------
    estimator : estimator of clsvm, or pipeline
        SVC, NuSVC, SVR, NuSVR or OneClassSVM, or a Pipeline that ends in one of them. OneClassSVM needs ``scoring``;
        y may then be None. A Pipeline transforms each fold's rows differently, so GridSearchCV runs its fits.
        GridSearchCV also runs fits with scikit-learn's callbacks. For both, ``checkpoint`` must be None. Fits share no
        work if ``multi_class`` is "crammer_singer", or if they have more than two classes and few rows.
    param_grid, scoring, refit, cv, error_score, return_train_score, verbose
        As in GridSearchCV. A scoring function gets row numbers in place of X, and a substitute estimator that predicts
        from row numbers. The substitute has no parameters such as C.
    n_jobs, pre_dispatch
        As in GridSearchCV if GridSearchCV runs the fits, else without effect.
    checkpoint : path or None
        File of results. The search continues from this file if it exists. The file is written every few seconds, at
        the end and on Ctrl-C. A checkpoint of another search raises CheckpointError.

    Notes
    -----
    A fit to a fold uses kernel values in ``dtype``, and stops at ``tol``. If rounding errors of the kernel values could
    move a decision value by more than 0.005, the fit is checked in float64, and continues if ``tol`` is not reached. If
    the fit stalls, the estimator's own ``fit`` is called for this fold. ``best_estimator_`` is always fitted by its own
    ``fit``. Fit times in ``cv_results_`` are those of the solver alone.
    """

    _estimator_class, _estimator_name, _folds = Machine, "one of clsvm's support vector machines", Folds


class FalkonSearchCV(_SearchCV):
    """Search a parameter grid with cross-validation for Nyström kernel machines, faster than separate fits.

    The search has the parameters, splits, scores and attributes of scikit-learn's GridSearchCV. All folds with the same
    kernel function are fitted together, as outputs of one problem in which a fold's test rows have weight 0. A fit
    starts from the solution for the next larger penalty. Folds with a softmax loss are fitted one after another with
    the same kernel values.

    Parameters
    ----------
    estimator : estimator of clsvm, or pipeline
        A Falkon estimator, or a Pipeline that ends in one. GridSearchCV runs the fits of a Pipeline, and fits with
        scikit-learn's callbacks. For both, ``checkpoint`` must be None.
    param_grid, scoring, refit, cv, error_score, return_train_score, verbose, n_jobs, pre_dispatch, checkpoint
        As in :class:`SVCSearchCV`.

    Notes
    -----
    The inducing points of all folds are drawn once from all rows, and gamma="scale" uses the variance of all rows. So a
    fit depends on the features of its test rows, but not on their targets. In GridSearchCV, a fit would use its
    training rows alone. ``best_estimator_`` is fitted by its own ``fit``. Fits that were solved together have equal
    shares of the time in ``cv_results_``.
    """

    _estimator_class, _estimator_name, _folds = Falkon, "one of clsvm's Falkon estimators", NystromFolds


def copy_attributes(search: GridSearchCV, result: GridSearchCV, X: Any, y: Any, **params: Any) -> None:
    """Copy the attributes of the fitted search ``result`` to ``search``, and refit the best estimator to X (n, d)."""
    for name, value in vars(result).items():
        if name.endswith("_") and not name.startswith("_"):
            setattr(search, name, value)
    if search.scoring is None:
        search.scorer_ = check_scoring(search.estimator)  # the lookup search's scorer would keep all fits in memory
    if search.refit:
        began = perf_counter()
        best = clone(search.estimator).set_params(**clone(search.best_params_, safe=False))
        search.best_estimator_ = best.fit(X, y, **params)
        search.refit_time_ = perf_counter() - began
        if hasattr(best, "feature_names_in_"):
            search.feature_names_in_ = best.feature_names_in_


class LookupSearch(GridSearchCV):
    """Run scikit-learn's search with an estimator that looks up results (:class:`LookupEstimator`).

    scikit-learn first checks the arguments of the search. Then ``work`` runs all fits, and scikit-learn computes the
    scores. Each candidate is identified by its number, because scikit-learn copies parameter values.

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
    """Make a method of :class:`LookupEstimator` available only if the estimator for which it stands has it."""
    return available_if(lambda fold: hasattr(fold.original, method.__name__))(method)


class LookupEstimator(BaseEstimator):
    """Replace an estimator in scikit-learn's search: look up results of fits that were run before.

    The methods take row numbers (n, 1) in place of X.

    Attributes
    ----------
    original
        the estimator for which this one stands.
    folds
        all fits and their results.
    candidate
        number of the candidate, -1 before set_params.
    result_
        result of the fit for this candidate and fold.
    decoder_
        decoder that turns the result's decision values into predictions.
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
        """Set the parameters of the estimator.

        If ``params`` has the key "candidate", its value is an index in the list of candidates, and the estimator gets
        this candidate's parameters. Without the key, as for a refit, ``params`` are the estimator's parameters.
        """
        if "candidate" in params:
            self.candidate = params["candidate"]
            params = clone(dict(self.folds.candidates[self.candidate]), safe=False)
        self.original.set_params(**params)
        return self

    def fit(self, numbers: Rows, y: Any = None, **params: Any) -> Self:
        """Find the stored result of the fit to the training rows with these ``numbers``. No fit runs.

        If that fit failed, raise its exception. ``y`` and ``params`` are not used. For a refit to all rows, do nothing.
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
        """Return the entries of the rows ``numbers`` (n, 1). ``entries`` has one entry for each row in ``rows_``."""
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
