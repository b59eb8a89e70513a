"""Call scikit-learn's callbacks during a fit, if the installed release has callbacks (1.9 and later)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # releases of scikit-learn before 1.9 have no callbacks

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Replace scikit-learn's class of this name, which releases before 1.9 lack."""


__all__ = ["CallbackSupportMixin", "FitTask", "fit_task", "registered"]


def registered(*estimators: Any) -> bool:
    """Return whether a callback is registered on one of the estimators."""
    return any(getattr(one, "_skl_callbacks", None) for one in estimators)


class FitTask:
    """Call the hooks of an estimator's callbacks at the start of a fit, before and after each step, and at the end.

    Parameters
    ----------
    estimator : estimator instance
        The estimator whose ``fit`` runs; it is passed to every hook.
    X, y, sample_weight : array-like
        The training data as the user gave them, so that feature names are kept.
    most : int
        The largest number of solver steps; 0 for a fit that is not divided into steps.
    """

    def __init__(self, estimator: Any, X: Any, y: Any, sample_weight: Any, most: int) -> None:
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._arguments = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
        self._step: Any = None
        # A subtask begins at the solver's start and after each of the ``most`` steps: ``most`` + 1 subtasks at most.
        self._fit = estimator._init_callback_context(max_subtasks=most + 1 if most else 0)
        self._fit.call_on_fit_task_begin(**self._arguments)

    def step(self, learnt: Callable[[], dict[str, Any]] | None = None) -> None:
        """Tell the callbacks that the running step, if there is one, has ended, and that the next step begins.

        Parameters
        ----------
        learnt : function, optional
            Returns the attributes of an estimator fitted up to this step. The function is called only if a callback
            asks for a fitted estimator.
        """
        if self._step is not None:
            self._step.call_on_fit_task_end(**self._arguments, reconstruction_attributes=learnt)
        self._step = self._fit.subcontext(task_name="step")
        self._step.call_on_fit_task_begin(**self._arguments, reconstruction_attributes=learnt)

    def end(self) -> None:
        """Tell the callbacks that the last step and the whole fit have ended."""
        if self._step is not None:
            self._step.call_on_fit_task_end(estimator=self._arguments["estimator"])
        self._fit.call_on_fit_task_end(**self._arguments, reconstruction_attributes={})


@contextmanager
def fit_task(estimator: Any, X: Any, y: Any, sample_weight: Any, most: int) -> Iterator[FitTask | None]:
    """Yield a :class:`FitTask` for a fit, or None if no callback is registered on the estimator.

    After the fit, call the ``teardown`` hooks of the callbacks, even if the fit failed. Callbacks that come from a
    meta-estimator are left out. scikit-learn's decorator ``with_callbacks`` would do the same. The method ``fit`` does
    not have this decorator, because warnings would then point at a line of scikit-learn instead of a line of the user.

    most: largest number of solver steps; 0 for a fit that is not divided into steps.
    """
    if not registered(estimator):
        yield None
        return
    try:
        yield FitTask(estimator, X, y, sample_weight, most)
    finally:
        with_callbacks(lambda _: None)(estimator)
