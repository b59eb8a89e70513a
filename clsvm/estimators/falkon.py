"""Define the estimators that fit Nyström kernel machines by the Falkon method.

The estimators are FalkonRegressor, FalkonClassifier (by least squares) and LogisticFalkonClassifier. Their base class
:class:`Falkon` chooses inducing points and calls the solver in clsvm.nystrom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.random import RandomState
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import _get_feature_names, check_array, check_random_state

from clsvm import arrays
from clsvm.errors import naming
from clsvm.estimators import checks
from clsvm.estimators.base import DTYPES, KernelEstimator, documented, set_parameters
from clsvm.estimators.callbacks import FitTask
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel
from clsvm.losses import LOSSES
from clsvm.models.decoder import Decoder, logistic
from clsvm.nystrom import fit as nystrom
from clsvm.nystrom.parameters import TABLE
from clsvm.nystrom.rows import Task, deviation
from clsvm.opencl import devices
from clsvm.report import Status
from clsvm.tasks import CLASSES, NUMBERS, TASKS

Vector = NDArray[np.float64]
_Callback = Callable[[int, Vector, float], Any] | None


class Targets(NamedTuple):
    """Hold the data of a Falkon fit besides its rows: targets ``y`` (k, n) of k outputs, row ``weights`` (n,), classes.

    ``classes`` has the class labels, and is empty for a regression.
    """

    classes: NDArray[Any]
    y: Vector
    weights: Vector


class Falkon(KernelEstimator):
    """Fit f(x) = sum_j alpha_j K(x, c_j) + intercept with m inducing points c_j.

    Falkon is the base class of the Nyström estimators. K is the kernel function. For rows x_i with targets y_i and
    weights w_i, a fit minimises over the coefficients alpha_j

        (1 / sum_i w_i) * sum_i w_i loss(f(x_i), y_i) + (penalty / 2) * |f|^2

    where |f| is the norm of f, without the intercept, in the kernel's function space.
    """

    _table, _other_kernels = TABLE, "or a Kernel"

    def _loss(self, outputs: int) -> str:
        """Return the name of the loss function for this number of outputs: a key of clsvm.losses.LOSSES."""
        return "squared"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the estimator to training data; X may be memory-mapped and larger than the device's memory.

        Ctrl-C during the solver's steps keeps the result so far and raises KeyboardInterrupt. Any other error leaves
        the estimator as it was. Warns with ConvergenceWarning if the tolerance was not reached.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Training rows.
        y : array of shape (n,), or (n, k) for k outputs of a regression
            Targets or class labels.
        sample_weight : array of shape (n,) or None
            Factor of the loss of each row. None means 1.

        Returns
        -------
        self : object
            Fitted estimator.

        Raises
        ------
        ValueError, TypeError
            If an input or parameter is invalid; the message names the given value and the valid ones.
        DeviceError, BuildError
            If the device fails or cannot build a program.
        """
        super().fit(X, y, sample_weight)
        if self.fit_report_.status == Status.INTERRUPTED.value:
            raise KeyboardInterrupt
        return self

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        numbers = TASKS[self._task].kind == NUMBERS
        X, y = self._rows(X, y, reset=True, y_numeric=numbers, multi_output=numbers)
        self._flat = y.ndim == 1
        targets = self._formulate(y, sample_weight)
        self._train(X, self._problem(targets), targets.classes, started)

    def _formulate(self, y: Any, sample_weight: Any) -> Targets:
        """Return the numeric targets, weights and classes for y (n,) or (n, k).

        Raises ValueError or TypeError for invalid targets or weights.
        """
        raise NotImplementedError

    def _problem(self, targets: Targets) -> Task:
        loss = LOSSES[self._loss(len(targets.y))]
        offset = loss.constant(targets.y, targets.weights) if self.fit_intercept else np.zeros(len(targets.y))
        largest = deviation(np.where(targets.weights > 0, targets.y, offset[:, None]), offset)
        return Task(loss, targets.y, targets.weights, offset, float(self.penalty), largest)

    def _options(self) -> nystrom.Options:
        given = {name: getattr(self, name) for name in ("dtype", "memory_limit", "layout", "verbose", "callback")}
        device = devices.split_names(self.device)
        return nystrom.Options(tol=float(self.tol), max_iter=int(self.max_iter), device=device, **given)

    def _train(self, X: Any, task: Task, classes: NDArray[Any], started: float) -> None:
        """Solve the optimization problem ``task`` over the rows X, and set the learnt attributes."""
        random, kernel, options = check_random_state(self.random_state), self._kernel(X), self._options()
        centers, start = self._centers(X, kernel, task, random)
        self.centers_, self.center_indices_, self.intercept_ = centers.rows, centers.indices, task.offset
        if len(classes):
            self.classes_ = classes
        if self._callback_task:
            options = replace(options, callback=self._solver_callback(self._callback_task, kernel))
        alpha, report, plan = nystrom.train(X, task, kernel, centers, options, start, random, started)
        self.fit_report_ = report
        self._set_model(kernel, alpha, report.steps, plan, report.dtype)

    def _solver_callback(self, callback_task: FitTask, kernel: Kernel) -> Callable[[int, Vector, float], None]:
        """Return a function for the solver to call after each step.

        The function calls the user's callback, then scikit-learn's callbacks.
        """
        callback_task.step()

        def stepped(step: int, coefficients: Vector, seconds: float) -> None:
            if self.callback:
                self.callback(step, coefficients, seconds)
            callback_task.step(partial(self._attributes_after, kernel, step, coefficients))

        return stepped

    def _attributes_after(self, kernel: Kernel, step: int, coefficients: Vector) -> dict[str, Any]:
        """Return the attributes that the estimator would have if the fit ended now, for scikit-learn's callbacks.

        ``step`` is the number of steps done so far, and ``coefficients`` (m, k) are those of the m inducing points.
        """
        fitted = object.__new__(type(self))
        fitted.__dict__ = self.__dict__.copy()
        fitted._set_model(kernel, np.ascontiguousarray(coefficients.T), step, None, self.dtype)
        return {name: value for name, value in vars(fitted).items() if name != "_callback_task"}

    def _set_model(self, kernel: Kernel, alpha: Vector, steps: int, plan: Plan | None, dtype: str) -> None:
        """Set dual_coef_, n_iter_ and model_.

        alpha: coefficients (k, m), for k outputs and m inducing points.
        steps: number of solver steps.
        plan: storage format of the inducing points on a device; None lets the model choose one.
        dtype: dtype of the kernel values for predictions.
        """
        self.dual_coef_, self.n_iter_ = alpha, steps
        count = np.zeros(max(1, len(self._labels)), np.int32)
        count[0] = self.centers_.shape[0]  # inducing points have no class, so the first entry counts all of them
        others: dict[str, Any] = {"n_support": count, "plan": plan, "dtype": dtype}
        if self._loss(len(alpha)) == "logistic":  # a decision value f means P = 1 / (1 + exp(probA * f + probB))
            others |= {"probA": np.array([-1.0]), "probB": np.zeros(1)}
        self.model_ = self._kernel_model(kernel, self.centers_, **others)

    def _centers(
        self, X: Any, kernel: Kernel, task: Task, random: RandomState
    ) -> tuple[nystrom.Centers, Vector | None]:
        """Return the m inducing points, and the solver's starting coefficients, (k, m) for k outputs.

        With ``warm_start`` and an earlier fit, the inducing points and the coefficients are those of the earlier fit.
        Otherwise the inducing points are chosen anew, and None is returned in place of the coefficients. Raises
        ValueError if the earlier fit had another number of features or outputs.
        """
        checks.check_values(kernel, X)
        if not (self.warm_start and hasattr(self, "centers_")):
            return self._choose_centers(X, kernel, task.weights, random), None
        before, index, k = self.centers_, self.center_indices_, len(task.y)
        if before.shape[1] != X.shape[1] or len(self.dual_coef_) != k:
            was = f"{len(self.dual_coef_)} outputs and {before.shape[1]} features"
            raise ValueError(f"warm_start: the last fit had {was}, got {k} outputs and {X.shape[1]} features")
        same = index is not None and index.max() < X.shape[0] and sp.issparse(X) == sp.issparse(before)
        same = same and not (X[index] != before).sum()
        return nystrom.Centers(before, index if same else None, f"{before.shape[0]} of the fit before"), self.dual_coef_

    def _choose_centers(self, X: Any, kernel: Kernel, weights: Vector, random: RandomState) -> nystrom.Centers:
        """Return the user's inducing points, or draw them from the rows X (n, d) with positive ``weights`` (n,)."""
        selection = self.center_selection
        if not isinstance(selection, str):
            given = self._given_centers(selection, X, kernel)
            return nystrom.Centers(given, None, f"{given.shape[0]} that were given")
        eligible = np.flatnonzero(weights > 0)
        m, words = nystrom.count_centers(len(eligible), self.n_centers)
        if m == len(eligible):
            return nystrom.Centers(X[eligible], eligible, f"{words}: every row")
        if selection == "uniform":
            index = np.sort(random.choice(eligible, m, replace=False))
            return nystrom.Centers(X[index], index, words)
        if selection == "k-means++":
            drawn = nystrom.spread_rows(X, eligible, m, random)
        else:
            where = {"device": devices.first_device(self.device), "memory_limit": self.memory_limit}
            scores = nystrom.leverage(X, kernel, eligible, float(self.penalty), random, where)
            drawn = random.choice(eligible, m, replace=False, p=scores / scores.sum())
        index = np.sort(drawn)
        return nystrom.Centers(X[index], index, f"{words}, drawn by {selection}")

    def _given_centers(self, given: Any, X: Any, kernel: Kernel) -> Any:
        """Check the inducing points that the user gave as center_selection. Return them in CSR if X is CSR, else dense.

        Raises ValueError or TypeError if the inducing points are invalid. Raises ValueError if the inducing points and
        X differ in the number of features or in the column names. Raises ValueError also if the kernel function is not
        defined for the inducing points.
        """
        asked = {"accept_sparse": "csr", "dtype": DTYPES, "order": "C", "input_name": "center_selection"}
        with naming("center_selection"):
            names, expected = _get_feature_names(given), getattr(self, "feature_names_in_", None)
            if names is not None and expected is not None and not np.array_equal(names, expected):
                raise ValueError(
                    f"the inducing points must have the column names of X in the same order, {[*expected]}, "
                    f"got {[*names]}"
                )
            rows = arrays.canonical(check_array(arrays.checked(given, "center_selection"), **asked))
            if rows.shape[1] != X.shape[1]:
                raise ValueError(f"the inducing points have {rows.shape[1]} features, X has {X.shape[1]}")
            kernel.check_domain(rows)
        if sp.issparse(rows) == sp.issparse(X):
            return rows
        return sp.csr_matrix(rows) if sp.issparse(X) else rows.toarray()

    @property
    def _max_steps(self) -> int:
        return int(self.max_iter)

    def _check_numbers(self) -> None:
        if self._precomputed or self._user_kernel:
            raise ValueError(f"kernel must be a name or a Kernel, not precomputed or a function, got {self.kernel!r}")
        super()._check_numbers()

    @property
    def support_vectors_(self) -> Any:
        """Return the inducing points (m, d)."""
        return self.centers_


def _scaled(weights: Vector) -> Vector:
    """Return the weights divided by a power of 2, so that their sum neither overflows nor underflows.

    A fit does not depend on a common factor of all weights.
    """
    return np.ldexp(weights, -np.frexp(weights.max())[1])


@documented
class FalkonRegressor(RegressorMixin, Falkon):
    """Predict numbers by Nyström kernel ridge regression, for many rows and any number of outputs (Falkon method).

    The regression function is a kernel expansion over m inducing points. Falkon fits it by conjugate gradients with a
    Nyström preconditioner. A few thousand inducing points usually reach the error of exact kernel ridge regression.
    With all n rows as inducing points and ``fit_intercept=False`` the result is that of scikit-learn's KernelRidge with
    alpha = penalty * n.

    Attributes
    ----------
    centers_ : ndarray or CSR matrix of shape (m, d)
        Inducing points.
    center_indices_ : ndarray of shape (m,) or None
        Row numbers of the inducing points among the training rows; None if the user gave the inducing points.
    dual_coef_ : ndarray of shape (k, m), float64
        Coefficients of the inducing points for each output.
    intercept_ : ndarray of shape (k,), float64
        Offset of each output.
    n_iter_ : int
        Number of conjugate gradient steps.
    n_features_in_ : int
        Number of features.
    fit_report_ : :class:`clsvm.report.NystromReport`
        Report of the fit: its result, how close it came to the optimum, and its cost.
    model_ : :class:`clsvm.models.model.KernelModel`
        Kernel expansion that predicts.

    References
    ----------
    A. Rudi, L. Carratino, L. Rosasco, "FALKON: an optimal large scale kernel method", NeurIPS 2017.
    """

    _task = "nystrom_numbers"

    def __init__(
        self,
        *,
        n_centers: int | str = "auto",
        penalty: float = 1e-6,
        loss: str = "squared",
        kernel: str | Kernel = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        fit_intercept: bool = True,
        center_selection: Any = "uniform",
        max_iter: int = 500,
        tol: float = 1e-5,
        dtype: str = "float32",
        device: Any = None,
        memory_limit: int | str | None = None,
        layout: str = "auto",
        random_state: Any = None,
        warm_start: bool = False,
        callback: _Callback = None,
        verbose: bool = False,
    ) -> None:
        set_parameters(self, locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _loss(self, outputs: int) -> str:
        return str(self.loss)

    def _formulate(self, y: Any, sample_weight: Any) -> Targets:
        y = checks.check_size(np.asarray(y, np.float64))
        if not np.isfinite(y).all():
            raise ValueError("Input y contains NaN or infinity.")
        weights = _scaled(checks.weights_of(sample_weight, y))
        return Targets(np.zeros(0), np.ascontiguousarray(y.reshape(len(y), -1).T), weights)

    def _decoder(self, y: Any, sample_weight: Any) -> Decoder:
        return Decoder(NUMBERS, np.zeros(0), columns=np.ndim(y) > 1)


@documented
class FalkonClassifier(ClassifierMixin, Falkon):
    """Classify rows by Nyström kernel least squares on labels -1 and 1 (see :class:`FalkonRegressor`).

    For more than two classes, an output for each class separates the class from all others. All outputs are fitted at
    once.

    Attributes
    ----------
    classes_ : ndarray of shape (k,)
        Class labels. The other attributes are those of :class:`FalkonRegressor`.
    """

    _task = "nystrom_classes"

    def __init__(
        self,
        *,
        n_centers: int | str = "auto",
        penalty: float = 1e-6,
        kernel: str | Kernel = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        fit_intercept: bool = True,
        center_selection: Any = "uniform",
        class_weight: Any = None,
        max_iter: int = 500,
        tol: float = 1e-5,
        dtype: str = "float32",
        device: Any = None,
        memory_limit: int | str | None = None,
        layout: str = "auto",
        random_state: Any = None,
        warm_start: bool = False,
        callback: _Callback = None,
        verbose: bool = False,
    ) -> None:
        set_parameters(self, locals())

    def _targets(self, index: checks.Indices, k: int) -> Vector:
        """Return the targets of each class's output, (k, n): 1 for rows of the class, -1 for the others.

        ``k`` is the number of classes, and ``index`` (n,) has the class number of each row. If k is 2, return only the
        targets for class 1, (1, n).
        """
        signs = np.where(np.arange(k)[:, None] == index, 1.0, -1.0)
        return signs[1:] if k == 2 else signs

    def _formulate(self, y: Any, sample_weight: Any) -> Targets:
        classes, index = checks.classes_of(y)
        by_class = checks.class_weights(self.class_weight, classes, classes[index])
        weights = _scaled(_scaled(checks.weights_of(sample_weight, index)) * _scaled(by_class)[index])
        left, index = checks.weighted_classes(index, weights, "Invalid input")
        return Targets(classes[left], self._targets(np.maximum(index, 0), len(left)), weights)

    def _decoder(self, y: Any, sample_weight: Any) -> Decoder:
        return Decoder(CLASSES, self._formulate(y, sample_weight).classes)

    def decision_function(self, X: Any) -> Vector:
        """Return the decision values of the rows of X.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Rows. The decision value of a row does not depend on the other rows of the call.

        Returns
        -------
        ndarray of float64
            Two classes: shape (n,), where a positive value is for ``classes_[1]``. More classes: shape (n, k), where
            the largest value of a row is for the predicted class.
        """
        return self._decision_values(X)


@documented
class LogisticFalkonClassifier(FalkonClassifier):
    """Classify rows by Nyström kernel logistic regression, with probabilities (Falkon method).

    The loss is logistic for two classes and softmax for more. The fit uses Newton's method, and preconditioned
    conjugate gradients for each Newton step.

    Attributes
    ----------
    classes_ : ndarray of shape (k,)
        Class labels. The other attributes are those of :class:`FalkonRegressor`.

    References
    ----------
    U. Marteau-Ferey, F. Bach, A. Rudi, "Globally convergent Newton methods for ill-conditioned generalized
    self-concordant losses", NeurIPS 2019.
    G. Meanti et al., "Kernel methods through the roof: handling billions of points efficiently", NeurIPS 2020.
    """

    def _loss(self, outputs: int) -> str:
        return "logistic" if outputs == 1 else "softmax"

    def _targets(self, index: checks.Indices, k: int) -> Vector:
        signs = super()._targets(index, k)
        return signs if k == 2 else (signs > 0).astype(np.float64)

    def predict_proba(self, X: Any) -> Vector:
        """Return the probability of each class for the rows of X.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Rows.

        Returns
        -------
        ndarray of shape (n, k), float64
        """
        return logistic(self.decision_function(X))

    def predict_log_proba(self, X: Any) -> Vector:
        """Return the logarithm of the probability of each class.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d)
            Rows.

        Returns
        -------
        ndarray of shape (n, k), float64
        """
        return np.log(self.predict_proba(X))
