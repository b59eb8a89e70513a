"""A callback for scikit-learn 1.9 and later that notes every call it gets, for tests of several packages."""

from typing import Any, NamedTuple


class Call(NamedTuple):
    """A call of a hook: its name, the task's, the estimator, and predictions of the fitted one."""

    hook: str
    task: str
    estimator: Any
    predicted: Any


class Noted:
    """A callback, whose ``calls`` are what it heard."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.metadata: Any = None

    def setup(self, estimator: Any, context: Any) -> None:
        self._note("setup", estimator, context)

    def teardown(self, estimator: Any, context: Any) -> None:
        self._note("teardown", estimator, context)

    def on_fit_task_begin(self, estimator: Any, context: Any, *, X: Any = None) -> None:
        self._note("begin", estimator, context)

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, X: Any = None, metadata: Any = None, fitted_estimator: Any = None
    ) -> None:
        self.metadata = metadata
        self._note("end", estimator, context, X, fitted_estimator)

    def _note(self, hook: str, estimator: Any, context: Any, X: Any = None, fitted: Any = None) -> None:
        predicted = None if fitted is None else fitted.predict(X)
        self.calls.append(Call(hook, context.task_name, estimator, predicted))

    @property
    def names(self) -> list[tuple[str, str]]:
        """The hooks and the tasks of the calls, in their order."""
        return [(call.hook, call.task) for call in self.calls]
