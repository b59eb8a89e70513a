"""The tasks that there are, as records: estimators, command line, model files and conversion read them.

A further task is a record here, its dual problem (problem.py), and an estimator of its name that poses it.
"""

from __future__ import annotations

from dataclasses import dataclass

CLASSES, ONE_CLASS, NUMBERS = "classes", "one class", "numbers"  # what is predicted


@dataclass(frozen=True)
class Task:
    """name: LIBSVM's svm_type, which model files hold, or ours. number: of svm-train's flag -s, None of a machine that
    LIBSVM does not have. words: for a help text. estimator: the name of its class, here and in scikit-learn. kind:
    CLASSES, ONE_CLASS or NUMBERS. parameters: what its problem asks for, of C, nu, epsilon and bias. copies: how many
    coefficients its problem has for each row; more than one means that the problem is over the rows several times."""

    name: str
    number: int | None
    words: str
    estimator: str
    kind: str
    parameters: tuple[str, ...]
    copies: int = 1

    @property
    def scaled(self) -> bool:
        """Return whether the coefficients are scaled, so that their bounds are not known."""
        return "nu" in self.parameters and self.kind != ONE_CLASS


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("c_svc", 0, "C-SVC", "SVC", CLASSES, ("C", "bias")),
        Task("nu_svc", 1, "nu-SVC", "NuSVC", CLASSES, ("nu",)),
        Task("one_class", 2, "one-class", "OneClassSVM", ONE_CLASS, ("nu",)),
        Task("epsilon_svr", 3, "epsilon-SVR", "SVR", NUMBERS, ("C", "epsilon", "bias")),
        Task("nu_svr", 4, "nu-SVR", "NuSVR", NUMBERS, ("C", "nu"), copies=2),
        Task("nystrom_classes", None, "classes by centres", "FalkonClassifier", CLASSES, ()),
        Task("nystrom_numbers", None, "numbers by centres", "FalkonRegressor", NUMBERS, ()),
    )
}


def of_libsvm() -> tuple[str, ...]:
    """Return the names of the tasks that LIBSVM has."""
    return tuple(task.name for task in TASKS.values() if task.number is not None)


def of_number(number: int) -> Task | None:
    """Return the task of svm-train's flag -s, if there is one."""
    return next((task for task in TASKS.values() if task.number == number), None)


def listed(joint: str = "or", *parameters: str) -> str:
    """Return numbers and words of the tasks that have all of the parameters: "0 C-SVC, 1 nu-SVC ... or 4 nu-SVR"."""
    theirs = (TASKS[name] for name in of_libsvm())
    *most, last = [f"{t.number} {t.words}" for t in theirs if set(parameters) <= set(t.parameters)]
    return f"{', '.join(most)} {joint} {last}"
