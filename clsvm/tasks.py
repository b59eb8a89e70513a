"""List the learning tasks, such as C-SVC and epsilon-SVR, as records of the class :class:`Task`.

Estimators, the command line and model files take the properties of tasks from these records. To add a task,
add a record here, its dual problem in problem.py, and an estimator class with the record's name.
"""

from dataclasses import dataclass

CLASSES, ONE_CLASS, NUMBERS = "classes", "one class", "numbers"  # types of prediction


@dataclass(frozen=True)
class Task:
    """Describe a learning task.

    Attributes
    ----------
    name
        name in model files. If LIBSVM has the task, this is its svm_type.
    number
        value of svm-train's flag -s; None for a task that LIBSVM lacks.
    words
        description for help texts.
    estimator
        name of the estimator class. If LIBSVM has the task, this is also scikit-learn's name.
    kind
        the type of prediction: CLASSES, ONE_CLASS or NUMBERS.
    parameters
        parameters of the dual problem, among C, nu, epsilon and bias.
    copies
        number of coefficients that each row has in the dual problem.
    """

    name: str
    number: int | None
    words: str
    estimator: str
    kind: str
    parameters: tuple[str, ...]
    copies: int = 1

    @property
    def scaled(self) -> bool:
        """Return whether the task is nu-SVC or nu-SVR: tasks with the parameter nu, except the one-class SVM."""
        return "nu" in self.parameters and self.kind != ONE_CLASS


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("c_svc", 0, "C-SVC", "SVC", CLASSES, ("C", "bias")),
        Task("nu_svc", 1, "nu-SVC", "NuSVC", CLASSES, ("nu",)),
        Task("one_class", 2, "one-class", "OneClassSVM", ONE_CLASS, ("nu",)),
        Task("epsilon_svr", 3, "epsilon-SVR", "SVR", NUMBERS, ("C", "epsilon", "bias")),
        Task("nu_svr", 4, "nu-SVR", "NuSVR", NUMBERS, ("C", "nu"), copies=2),
        Task("nystrom_classes", None, "classes by a Nyström kernel machine", "FalkonClassifier", CLASSES, ()),
        Task("nystrom_numbers", None, "numbers by a Nyström kernel machine", "FalkonRegressor", NUMBERS, ()),
    )
}


def of_libsvm() -> tuple[str, ...]:
    """Return the names of the tasks that LIBSVM has."""
    return tuple(task.name for task in TASKS.values() if task.number is not None)


def listed(joint: str = "or", *parameters: str) -> str:
    """List LIBSVM's tasks that have all of ``parameters``, as text: "0 C-SVC, 1 nu-SVC, ... or 4 nu-SVR".

    joint: the word before the last task.
    """
    theirs = (TASKS[name] for name in of_libsvm())
    *most, last = [f"{t.number} {t.words}" for t in theirs if set(parameters) <= set(t.parameters)]
    return f"{', '.join(most)} {joint} {last}"
