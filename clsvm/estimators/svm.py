"""Define the SVM estimators: SVC, NuSVC (classification), SVR, NuSVR (regression) and OneClassSVM (novelty detection).

Each estimator makes the dual problem of its task. The base class in dual.py solves it and sets the learnt attributes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, OutlierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from clsvm.errors import warn
from clsvm.estimators import checks
from clsvm.estimators.base import KernelLike, documented, set_parameters, without_probability
from clsvm.estimators.dual import Group, Machine, Vector
from clsvm.models.decoder import Decoder, pairs
from clsvm.parameters import Number
from clsvm.problem import Problem, Subproblem, c_svc, crammer_singer, epsilon_svr, largest_nu, nu_svc, nu_svr, one_class
from clsvm.tasks import CLASSES

Pair = tuple[int, int | None]  # positive and negative class of a binary problem; None means all other classes
COEFFICIENTS = 1 << 19  # binary problems solved together have about this many coefficients of about 100 bytes each
MIN_PROBLEMS = 1024  # at least about this many binary problems are solved together, to send X to the device seldom


class _Classifier(ClassifierMixin, Machine):
    """Fit a classifier. SVC and NuSVC are subclasses, and each of them defines its dual problem for two classes."""

    _weights_error = "Invalid input"  # start of the error message for weights that leave fewer than two classes
    multi_class = "ovo"  # for NuSVC, which has no other strategy; SVC's parameter of this name replaces it

    def _problem(self, signs: Vector, bounds: Vector) -> Problem:
        """Return the dual problem of two classes.

        ``signs`` (n,) are 1 for rows of the positive class, else -1. ``bounds`` (n,) are the upper bounds of the
        coefficients' absolute values.
        """
        raise NotImplementedError

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        X, y = self._rows(X, y, reset=True)
        box = self._class_bounds(y, sample_weight)
        classes, k, coupled = box.classes, len(box.classes), self.multi_class == "crammer_singer"
        before = getattr(self, "classes_", classes)
        same_classes = np.array_equal(before, classes)
        if self.warm_start and not same_classes and (k == 2 or coupled):
            raise ValueError(f"warm_start: the last fit had the classes {before}, got {classes}")
        self.classes_, self.class_weight_ = classes, box.weights
        count = k if coupled or (k > 2 and self.multi_class == "ovr") else k - 1
        self._fit_groups(X, self._groups(box), count, box.index, started, same_classes)

    def _groups(self, box: checks.ClassBounds) -> Iterator[Group]:
        """Yield the dual problems of a fit in groups that are solved together, and that fit into the host's memory."""
        index, bounds, k, n = box.index, box.bounds, len(box.classes), len(box.index)
        if self.multi_class == "crammer_singer":
            yield [(Subproblem(np.arange(n), crammer_singer(index, bounds, k)), ...)]
        elif k == 2:
            yield [(one.embedded(n), ...) for one in self._subproblems(index, self._class_pairs(k), bounds)]
        else:
            for some in _pair_groups(self._class_pairs(k), np.bincount(index[index >= 0]), self.checkpoint is not None):
                subproblems = self._subproblems(index, some, bounds)
                each = zip(some, subproblems, strict=True)
                yield [(one, _dual_coef_index(pair, one.rows, index)) for pair, one in each]

    def _class_bounds(self, y: Any, sample_weight: Any) -> checks.ClassBounds:
        """Return the classes of labels y (n,), and the bounds of the coefficients.

        Classes without a row of positive weight are left out. Raises ValueError if fewer than two classes remain.
        """
        classes, index = checks.classes_of(y)
        weights = checks.class_weights(self.class_weight, classes, classes[index])
        rows = checks.weights_of(sample_weight, index, self._weights_error)
        bounds = checks.bounds_of(self._bound, rows, weights[index])
        left, index = checks.weighted_classes(index, bounds, self._weights_error)
        return checks.ClassBounds(classes[left], weights[left], index, np.maximum(bounds, 0))

    def _class_pairs(self, k: int) -> list[Pair]:
        """Return the positive and the negative class of each binary problem of a fit to k classes.

        None in place of the negative class stands for all other classes.
        """
        if k == 2:
            return [(1, 0)]
        return [*pairs(k)] if self.multi_class == "ovo" else [(i, None) for i in range(k)]

    def _subproblems(self, index: checks.Indices, class_pairs: Sequence[Pair], bounds: Vector) -> list[Subproblem]:
        """Return a dual problem for each pair of classes in ``class_pairs``, over the rows of both classes.

        ``index`` (n,) is each row's class, -1 for rows left out. ``bounds`` (n,) are the bounds of the coefficients.
        """
        made = []
        of_class = [np.flatnonzero(index == i) for i in range(index.max() + 1)]
        for i, j in class_pairs:
            rows = np.flatnonzero(index >= 0) if j is None else np.sort(np.concatenate([of_class[i], of_class[j]]))
            made.append(Subproblem(rows, self._problem(np.where(index[rows] == i, 1.0, -1.0), bounds[rows])))
        return made

    def _formulate(self, y: Any, sample_weight: Any) -> list[Subproblem]:
        if self.multi_class == "crammer_singer":
            raise NotImplementedError
        box = self._class_bounds(y, sample_weight)
        return self._subproblems(box.index, self._class_pairs(len(box.classes)), box.bounds)

    def _decoder(self, y: Any, sample_weight: Any) -> Decoder:
        classes = self._class_bounds(y, sample_weight).classes
        return self._decoder_of(classes, len(classes) > 2 and self.multi_class == "ovo")

    @property
    def _fitted_decoder(self) -> Decoder:
        check_is_fitted(self)
        return self._decoder_of(self.classes_, self.model_.of_pairs)

    def _decoder_of(self, classes: NDArray[Any], of_pairs: bool) -> Decoder:
        return Decoder(CLASSES, classes, of_pairs, self.decision_function_shape, bool(self.break_ties))

    def decision_function(self, X: Any) -> Vector:
        """Return the decision values of the rows of X.

        Parameters
        ----------
        X : array or CSR matrix of shape (n, d)
            Rows. The decision values of a row do not depend on the other rows of the call.

        Returns
        -------
        ndarray of float64
            Two classes: shape (n,), where a positive value is for ``classes_[1]``. k > 2 classes: shape (n, k). With
            ``decision_function_shape="ovo"``: shape (n, k * (k - 1) / 2), one column for each pair of classes, where a
            positive value is for the first class of the pair.
        """
        values = self._decision_values(X, self.decision_function_shape)
        coupled = values.ndim == 2 and len(self.classes_) == 2
        return np.asarray(values[:, 1] - values[:, 0]) if coupled else values

    def _coef(self) -> Any:
        """Return the weights of the d features for the linear kernel, (problems, d): a row for each binary problem."""
        if not self.model_.of_pairs:
            return super()._coef()
        ends = np.cumsum(self.n_support_)
        part = [slice(end - size, end) for end, size in zip(ends, self.n_support_, strict=True)]
        rows, dual = self.support_vectors_, self.dual_coef_
        made = [dual[j - 1, part[i]] @ rows[part[i]] + dual[i, part[j]] @ rows[part[j]] for i, j in pairs(len(ends))]
        return np.stack(made)


@documented
class SVC(_Classifier):
    """Classify rows by a C-support vector machine (C-SVC) on an OpenCL device.

    The parameter ``multi_class`` chooses how a fit to k classes is solved. "ovo" solves a binary problem for each pair
    of classes, "ovr" one for each class against the rest, and "crammer_singer" a single problem. The model has p
    decision functions: p = k (k - 1) / 2 for "ovo", and p = k for "ovr" and "crammer_singer". For two classes, "ovr"
    solves the same problem as "ovo", so p = 1.

    Attributes
    ----------
    classes_ : ndarray of shape (k,)
        Class labels.
    class_weight_ : ndarray of shape (k,)
        Factor by which C is multiplied for each class.
    support_ : ndarray of shape (n_SV,), int32
        Row numbers of the support vectors.
    support_vectors_ : ndarray or CSR matrix of shape (n_SV, d)
        Support vectors.
    n_support_ : ndarray of shape (k,), int32
        Number of support vectors of each class.
    dual_coef_ : ndarray of shape (k - 1, n_SV) for "ovo", else (p, n_SV), float64
        Signed coefficients of the support vectors.
    intercept_ : ndarray of shape (p,), float64
        Offset of each decision function.
    coef_ : ndarray of shape (p, d)
        Weights of the features for each decision function, for the linear kernel only.
    n_iter_ : ndarray of shape (p,), or (1,) for "crammer_singer", int32
        Number of SMO iterations for each problem.
    fit_status_ : int
        0, or 1 if the fit did not converge.
    shape_fit_ : tuple of int
        Shape of the training rows.
    n_features_in_ : int
        Number of features.
    fit_report_ : :class:`clsvm.report.FitReport`
        Report of the fit: its result, how close it came to the optimum, and its cost.
    model_ : :class:`clsvm.models.model.KernelModel`
        Kernel expansion that predicts.

    References
    ----------
    A. Cotter, N. Srebro, J. Keshet, "A GPU-tailored approach for training kernelized SVMs", KDD 2011.
    C.-C. Chang, C.-J. Lin, "LIBSVM: a library for support vector machines", ACM TIST 2011.
    """

    _task = "c_svc"

    @without_probability
    def __init__(
        self,
        *,
        C: float = 1.0,
        kernel: KernelLike = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        shrinking: bool = True,
        tol: float = 1e-3,
        cache_size: float | str = "auto",
        class_weight: Any = None,
        verbose: bool = False,
        max_iter: int = -1,
        decision_function_shape: str = "ovr",
        break_ties: bool = False,
        random_state: Any = None,
        device: Any = None,
        working_set_size: int | str = "auto",
        gap_tol: float | None = None,
        dtype: str = "float32",
        precision: str = "float32",
        memory_limit: int | str | None = None,
        layout: str = "auto",
        multi_class: str = "ovo",
        bias: bool = True,
        max_time: float | None = None,
        warm_start: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        set_parameters(self, locals())

    def _problem(self, signs: Vector, bounds: Vector) -> Problem:
        return c_svc(signs[None], bounds[None], bool(self.bias))


@documented
class NuSVC(_Classifier):
    """Classify rows by a nu-support vector machine (nu-SVC) on an OpenCL device.

    More than two classes are solved as a binary problem for each pair of classes. Unlike scikit-learn's NuSVC, this
    class applies class_weight. At the end of a fit the coefficients are divided by the margin. gap_tol refers to the
    dual problem before this division. If the margin is at most tol, the signs of decision values mean nothing, and the
    fit warns. The attributes are those of :class:`SVC`.

    References
    ----------
    B. Schoelkopf, A. Smola, R. Williamson, P. Bartlett, "New support vector algorithms", Neural Computation 2000.
    """

    _task = "nu_svc"
    _weights_error = "specified nu is infeasible"

    @without_probability
    def __init__(
        self,
        *,
        nu: float = 0.5,
        kernel: KernelLike = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        shrinking: bool = True,
        tol: float = 1e-3,
        cache_size: float | str = "auto",
        class_weight: Any = None,
        verbose: bool = False,
        max_iter: int = -1,
        decision_function_shape: str = "ovr",
        break_ties: bool = False,
        random_state: Any = None,
        device: Any = None,
        working_set_size: int | str = "auto",
        gap_tol: float | None = None,
        dtype: str = "float32",
        precision: str = "float32",
        memory_limit: int | str | None = None,
        layout: str = "auto",
        max_time: float | None = None,
        warm_start: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        set_parameters(self, locals())

    def _problem(self, signs: Vector, bounds: Vector) -> Problem:
        return nu_svc(signs, float(self.nu), bounds)

    def _scaled(self, b: Vector, rho: Vector) -> tuple[Vector, Vector]:
        """Return coefficients and offsets (problems,), scaled to decision values 1 and -1 on the margin's boundaries.

        A decision value is sum_i b_i K(x_i, x) - offset. b (problems, n) has the coefficients before scaling. ``rho``
        (problems, 2) has the values of the sum on the margin's positive and negative boundary. The offset before
        scaling is the mean of both. b and offset are divided by r = (rho[:, 0] - rho[:, 1]) / 2 if r is positive."""
        r = self._margins(rho)
        r = np.where(r > 0, r, 1.0)
        return b / r[:, None], (rho[:, 0] + rho[:, 1]) / 2 / r

    @staticmethod
    def _margins(rho: Vector) -> Vector:
        """Return the margin of each problem, (problems,): (rho[:, 0] - rho[:, 1]) / 2.

        ``rho`` (problems, 2) has the decision values, without offset, on the margin's positive and negative boundary.
        """
        return np.asarray((rho[:, 0] - rho[:, 1]) / 2)

    def _check_margins(self, rho: Vector, problems: Sequence[Problem]) -> None:
        if (self._margins(rho) <= self.tol).any():
            most = min(largest_nu(one.lo, one.hi) for one in problems)
            warn(
                f"NuSVC found a margin of no more than tol={self.tol:g} between two classes, so that it cannot tell "
                f"them apart: nu={self.nu:g} is too small for these rows and this kernel function; the sizes of the "
                f"classes allow at most nu={most:g}"
            )


def _pair_groups(class_pairs: Sequence[Pair], counts: checks.Indices, whole: bool) -> Iterator[Sequence[Pair]]:
    """Divide binary problems into groups that are solved together, and yield the class pairs of each group.

    ``class_pairs`` has the positive and negative class of each problem; None as negative class means all other classes.
    ``counts`` (k,) has the number of rows of each class. All groups but the last have about the same number of
    coefficients. This number is the larger of COEFFICIENTS and the number of coefficients of MIN_PROBLEMS average
    problems. A problem has a coefficient for each of its rows. If ``whole`` is true, all problems are in one group."""
    rows = np.array([counts.sum() if j is None else counts[i] + counts[j] for i, j in class_pairs])
    size = max(COEFFICIENTS, MIN_PROBLEMS * int(rows.mean()))
    group = np.zeros(len(class_pairs), np.intp) if whole else (np.cumsum(rows) - rows) // size
    for some in np.split(np.arange(len(class_pairs)), np.flatnonzero(np.diff(group)) + 1):
        yield class_pairs[some[0] : some[-1] + 1]


def _dual_coef_index(pair: Pair, rows: checks.Indices, index: checks.Indices) -> tuple[checks.Indices, checks.Indices]:
    """Return the positions (row, column) of a binary problem's coefficients in the array of all coefficients.

    The array has the rows of dual_coef_, and a column for each of n samples. A sample of class a has its coefficient
    against class b in row b if b < a, and in row b - 1 if b > a. A problem of class a against all others has row a.

    pair: two classes, or a class and None. rows: numbers of the problem's samples. index: class of each sample, (n,).
    """
    i, j = pair
    against = np.full(len(rows), i) if j is None else np.where(index[rows] == i, j - 1, i)
    return against[None], rows[None]


class _Regressor(RegressorMixin, Machine):
    """Fit a support vector regression. The subclasses SVR and NuSVR define its dual problem."""

    def _problem(self, y: Vector, weights: Vector) -> Problem:
        """Return the dual problem for targets y (n,) and sample weights (n,)."""
        raise NotImplementedError

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        X, y = self._rows(X, y, reset=True, y_numeric=True)
        self._fit_whole(X, y, sample_weight, started)

    def _formulate(self, y: Any, sample_weight: Any) -> list[Subproblem]:
        weights = checks.weights_of(sample_weight, y)
        problem = self._problem(checks.check_size(column_or_1d(y, dtype=np.float64, warn=True)), weights)
        return [Subproblem(np.arange(problem.n), problem)]


@documented
class SVR(_Regressor):
    """Predict numbers by epsilon-support vector regression (epsilon-SVR) on an OpenCL device.

    Attributes
    ----------
    support_ : ndarray of shape (n_SV,), int32
        Row numbers of the support vectors.
    support_vectors_ : ndarray or CSR matrix of shape (n_SV, d)
        Support vectors.
    n_support_ : ndarray of shape (1,), int32
        Number of support vectors.
    dual_coef_ : ndarray of shape (1, n_SV), float64
        Signed coefficients of the support vectors.
    intercept_ : ndarray of shape (1,), float64
        Offset of the decision function.
    coef_ : ndarray of shape (1, d)
        Weights of the features, for the linear kernel only.
    n_iter_ : int
        SMO iterations.
    fit_status_ : int
        0, or 1 if the fit did not converge.
    shape_fit_ : tuple of int
        Shape of the training rows.
    n_features_in_ : int
        Number of features.
    fit_report_ : :class:`clsvm.report.FitReport`
        Report of the fit: its result, how close it came to the optimum, and its cost.
    model_ : :class:`clsvm.models.model.KernelModel`
        Kernel expansion that predicts.
    """

    _task = "epsilon_svr"

    def __init__(
        self,
        *,
        kernel: KernelLike = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        tol: float = 1e-3,
        C: float = 1.0,
        epsilon: float = 0.1,
        shrinking: bool = True,
        cache_size: float | str = "auto",
        verbose: bool = False,
        max_iter: int = -1,
        device: Any = None,
        working_set_size: int | str = "auto",
        gap_tol: float | None = None,
        dtype: str = "float32",
        precision: str = "float32",
        memory_limit: int | str | None = None,
        layout: str = "auto",
        bias: bool = True,
        max_time: float | None = None,
        warm_start: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        set_parameters(self, locals())

    def _problem(self, y: Vector, weights: Vector) -> Problem:
        return epsilon_svr(y, checks.bounds_of(self._bound, weights), self.epsilon, bool(self.bias))


@documented
class NuSVR(_Regressor):
    """Predict numbers by nu-support vector regression (nu-SVR) on an OpenCL device.

    The parameter nu replaces epsilon, which the fit determines. NuSVR solves a dual problem with two coefficients for
    each row, and SVR one with a single coefficient. So the kernel matrix of NuSVR has 2 n rows and columns for n rows
    of X, and takes four times the memory of SVR's. The attributes are those of :class:`SVR`.

    References
    ----------
    B. Schoelkopf, A. Smola, R. Williamson, P. Bartlett, "New support vector algorithms", Neural Computation 2000.
    """

    _task = "nu_svr"

    def __init__(
        self,
        *,
        nu: float = 0.5,
        C: float = 1.0,
        kernel: KernelLike = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        shrinking: bool = True,
        tol: float = 1e-3,
        cache_size: float | str = "auto",
        verbose: bool = False,
        max_iter: int = -1,
        device: Any = None,
        working_set_size: int | str = "auto",
        gap_tol: float | None = None,
        dtype: str = "float32",
        precision: str = "float32",
        memory_limit: int | str | None = None,
        layout: str = "auto",
        max_time: float | None = None,
        warm_start: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        set_parameters(self, locals())

    def _problem(self, y: Vector, weights: Vector) -> Problem:
        return nu_svr(y, checks.bounds_of(self._bound, weights), float(self.nu))

    def _check_numbers(self) -> None:
        super()._check_numbers()
        Number(above=0).check("C", self.C)


@documented
class OneClassSVM(OutlierMixin, Machine):
    """Detect novelties by a one-class support vector machine on an OpenCL device: a boundary around most of the rows.

    Attributes
    ----------
    support_ : ndarray of shape (n_SV,), int32
        Row numbers of the support vectors.
    support_vectors_ : ndarray or CSR matrix of shape (n_SV, d)
        Support vectors.
    n_support_ : ndarray of shape (1,), int32
        Number of support vectors.
    dual_coef_ : ndarray of shape (1, n_SV), float64
        Signed coefficients of the support vectors.
    intercept_ : ndarray of shape (1,), float64
        Offset of the decision function.
    offset_ : float
        decision_function(X) = score_samples(X) - offset_, as in scikit-learn.
    coef_ : ndarray of shape (1, d)
        Weights of the features, for the linear kernel only.
    n_iter_ : int
        SMO iterations.
    fit_status_ : int
        0, or 1 if the fit did not converge.
    shape_fit_ : tuple of int
        Shape of the training rows.
    n_features_in_ : int
        Number of features.
    fit_report_ : :class:`clsvm.report.FitReport`
        Report of the fit: its result, how close it came to the optimum, and its cost.
    model_ : :class:`clsvm.models.model.KernelModel`
        Kernel expansion that predicts.

    References
    ----------
    B. Schoelkopf et al., "Estimating the support of a high-dimensional distribution", Neural Computation 2001.
    """

    _task = "one_class"

    def __init__(
        self,
        *,
        kernel: KernelLike = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        tol: float = 1e-3,
        nu: float = 0.5,
        shrinking: bool = True,
        cache_size: float | str = "auto",
        verbose: bool = False,
        max_iter: int = -1,
        device: Any = None,
        working_set_size: int | str = "auto",
        gap_tol: float | None = None,
        dtype: str = "float32",
        precision: str = "float32",
        memory_limit: int | str | None = None,
        layout: str = "auto",
        max_time: float | None = None,
        warm_start: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        set_parameters(self, locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the estimator to training rows. Errors and warnings are those of :meth:`SVC.fit`.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d), or (n, n) for a precomputed kernel
            Training rows.
        y : object
            Ignored.
        sample_weight : array of shape (n,) or None
            Upper bound of each row's coefficient. None means 1.

        Returns
        -------
        self : object
            Fitted estimator.
        """
        return super().fit(X, y, sample_weight)

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        X = self._rows(X, reset=True)
        self._fit_whole(X, None, checks.weights_of(sample_weight, X), started)
        self.offset_ = -self.intercept_

    def _formulate(self, y: Any, sample_weight: Any) -> list[Subproblem]:
        weights = checks.bounds_of(1.0, checks.weights_of(sample_weight, sample_weight))
        return [Subproblem(np.arange(len(weights)), one_class(float(self.nu), weights))]

    def decision_function(self, X: Any) -> Vector:
        """Return the decision values of the rows of X: positive inside the boundary, negative outside.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Rows. The decision value of a row does not depend on the other rows of the call.

        Returns
        -------
        ndarray of shape (n,), float64
        """
        return self._decision_values(X)

    def score_samples(self, X: Any) -> Vector:
        """Return the scores of the rows of X: decision values plus ``offset_``, as in scikit-learn.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Rows.

        Returns
        -------
        ndarray of shape (n,), float64
        """
        return np.asarray(self.decision_function(X) + self.offset_)
