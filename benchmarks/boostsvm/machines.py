"""Fits of our machines and of the peers', each in a process of its own that can be ended; see limited.Worker."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold

from benchmarks import check, pairs, solvers, tasks_check
from benchmarks.boostsvm.cases import EPSILON, Case
from benchmarks.boostsvm.limited import Answer, TooLongError, Worker
from benchmarks.boostsvm.shared import Options
from benchmarks.boostsvm.variants import AS_THEY_ARE, Variant

TOL = solvers.TOL
FOLDS = 2


@dataclass
class Contestant:
    """A solver, or ours in a variant, and what became of its fits. failed: in words, where one failed or took too
    long. too_long: which of the two. form: of its rows."""

    name: str
    repeats: int
    worker: Worker
    seconds: list[float] = field(default_factory=list)
    failed: str = ""
    too_long: bool = False
    form: str = ""

    def ask(self, question: Any) -> Any:
        """The worker's answer; None where there is none, and then ``failed`` says why."""
        if self.failed:
            return None
        try:
            return self.worker.ask(question)
        except (TooLongError, RuntimeError) as error:
            self.failed, self.too_long = str(error), isinstance(error, TooLongError)
            return None

    def row(self) -> dict[str, Any]:
        """What a result says about its times: of the first fit, and the median of the later ones."""
        found: dict[str, Any] = {"solver": self.name, "form": self.form}
        found |= {"failed": self.failed, "too_long": self.too_long}
        if not self.seconds:
            return found
        seconds = statistics.median(self.seconds[1:] or self.seconds)
        return found | {"cold": self.seconds[0], "seconds": seconds, "all_seconds": self.seconds}


@contextmanager
def contestants(
    case: Case, options: Options, peers: tuple[str, ...], variants: dict[str, Variant] | None = None
) -> Iterator[list[Contestant]]:
    """Yield ours, in each of the variants where these are given, and each peer with every form of its input.

    LIBSVM, which has nothing to warm up, fits once.
    """
    mine = {"clsvm": AS_THEY_ARE} if variants is None else variants
    which = [("clsvm", own, variant) for own, variant in mine.items()] + [(peer, peer, AS_THEY_ARE) for peer in peers]
    given = [(*one, form) for one in which for form in solvers.forms(one[0], case.X)]
    asked = [
        (own, 1 if solver_ == "libsvm" else options.repeats, (case.name, options, solver_, variant, form))
        for solver_, own, variant, form in given
    ]
    with at_work(options.limit, solver, asked) as made:
        for one, (*_, form) in zip(made, given, strict=True):
            one.form = form
        yield made


@contextmanager
def at_work(
    limit: float, make: Callable[..., Answer], asked: Sequence[tuple[str, int, tuple[Any, ...]]]
) -> Iterator[list[Contestant]]:
    """A contestant for each name, number of fits and what ``make`` is given; their processes end with the block."""
    made: list[Contestant] = []
    try:
        for own, repeats, given in asked:
            made.append(Contestant(own, repeats, Worker(limit, make, *given)))
        yield made
    finally:
        for one in made:
            one.worker.__exit__()


def in_turns(made: list[Contestant]) -> None:
    """The fits of all, so that whatever else the machine does falls on all alike."""
    for turn in range(max(one.repeats for one in made)):
        for one in made:
            if turn < one.repeats and (seconds := one.ask("fit")) is not None:
                one.seconds.append(seconds)


def solver(name: str, options: Options, which: str, variant: Variant, form: str) -> Callable[[Any], Any]:
    """What answers "fit" with seconds, "model" with the last fit's solution, and a number of a fold with seconds and
    the score on the rows that were left out."""
    case = options.load(name)
    X, model = solvers.formed(case.X, form), None

    def answer(question: Any) -> Any:
        nonlocal model
        with variant.applied():
            if question == "model":
                return solvers.solution(model)
            made = _make(which, case, options, variant)
            if question == "fit":
                seconds, model = solvers.fitted(which, made, X, case.y), made
                return seconds
            train, test = folds(case)[question]
            seconds = solvers.fitted(which, made, X[train], case.y[train])
            return seconds, score(case, made.predict(X[test]), case.y[test])

    return answer


def folds(case: Case) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows to train on and rows that are left out, the same in every call."""
    splitter = StratifiedKFold if case.classes else KFold
    return list(splitter(FOLDS, shuffle=True, random_state=0).split(case.X, case.y))


def score(case: Case, found: Any, y: Any) -> float:
    """Accuracy, or the mean squared error of a regression."""
    return float(np.mean(found == y) if case.classes else np.mean((found - y) ** 2))


def _make(which: str, case: Case, options: Options, variant: Variant) -> Any:
    given = solvers.parameters(case.C, case.gamma) | ({} if case.classes else {"epsilon": EPSILON})
    kind = "SVC" if case.classes else "SVR"
    return solvers.made(which, kind, given, device=options.device, layout=variant.layout)


def standing(case: Case, solution: SimpleNamespace) -> dict[str, float]:
    """Dual objective, KKT violation and constraints of a solution, recomputed in float64."""
    duals = tasks_check.c_svc if case.classes else tasks_check.epsilon_svr
    bounds, kernel = np.full(len(case.y), case.C), check.kernel("rbf", gamma=case.gamma)
    X = case.X.astype(np.float64)
    return tasks_check.merged([tasks_check.standing(X, one, kernel) for one in duals(solution, case.y, bounds)])


def judge(rows: list[dict[str, Any]]) -> None:
    """Add what each row with a solution misses, beside the best dual objective among them (pairs.misses)."""
    solved = [row for row in rows if "dual" in row]
    best = max((row["dual"] for row in solved), default=0.0)
    for row in solved:
        row["misses"] = pairs.misses(row, best, TOL)
