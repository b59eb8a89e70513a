"""Table 2: seconds to train, ours and the peers', with every solution recomputed in float64; table 5: two-fold
cross-validation by ours and LIBSVM's machines on the same folds.

What cannot run here has an estimate: the multiply-adds that a fit is expected to take, over the rate of multiply-adds
of the measured one. A fit computes kernel rows in proportion to its rows, and each takes as many multiply-adds as the
set has entries. C and gamma are those of the measured fit, for epsilon too. An estimate from few rows is rough: what a
fit does besides products is then a large part of its time.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold

from benchmarks import check, solvers, table
from benchmarks.boostsvm.cases import EPSILON, SHAPES, Case, asked_for
from benchmarks.solvers import TOL, Answer, Contestant, at_work, turns
from benchmarks.table import Row, Shown, shown

FOLDS = 2
ACCURACY = 0.002  # that ours may differ by from LIBSVM's
ERROR = 0.01  # the same for a mean squared error, of its size
STANDS_FOR = {"gisette": "epsilon", "news20_bydate": "news20.binary"}  # whose rate an estimate takes

# The paper's machine: an i9-10900K and an RTX 3090. Seconds of training of LIBSVM, ThunderSVM, TensorSVM and BoostSVM;
# None: not run, or out of memory. MNIST has ten classes there, ijcnn1 91701 rows.
PAPER_2: dict[str, tuple[float | None, ...]] = {
    "url": (8.91e4, 4.16e4, None, 6.92e3),
    "news20.binary": (117.89, 6.50, None, 3.09),
    "rcv1": (1.23e4, 348.58, None, 93.76),
    "real-sim": (97.97, 3.80, 21.71, 1.97),
    "e2006": (451.96, 13.86, None, 3.10),
    "mnist8": (1.49e3, 53.69, None, 25.40),
    "ijcnn1": (3.98, 1.17, 2.72, 0.84),
    "gisette": (80.67, 2.75, 1.02, 0.58),
    "epsilon": (1.72e5, 2.28e3, 66.98, 43.67),
}
# Accuracy of two-fold cross-validation in %, the same for LIBSVM, ThunderSVM and BoostSVM.
PAPER_5 = {"gisette": 50.0, "real-sim": 86.0, "ijcnn1": 99.1, "epsilon": 81.7, "rcv1": 97.8, "url": 98.6}
# Rows, columns and density of the paper's sets that table 2 only estimates here.
ELSEWHERE = {"news20.binary": (19996, 1355191, 0.00034), "epsilon": (400000, 2000, 1.0)}


def measured(result: Row) -> list[Row]:
    """Return the sets of a result that were measured."""
    return [one for one in result["sets"] if "error" not in one and "refused" not in one]


def failed(result: Row) -> bool:
    """Return whether a set could not be measured though it is possible."""
    return any("error" in one for one in result["sets"])


def missing(result: Row) -> list[str]:
    """Return notes on the sets that are not in a table."""
    return [
        f"{one['set']}, h = {one['h']}: {'' if 'error' in one else 'not possible, '}{why}"
        for one in result["sets"]
        if (why := one.get("error") or one.get("refused"))
    ]


@contextmanager
def contestants(
    case: Case, asked: Namespace, peers: tuple[str, ...], variants: Mapping[str, Any] | None = None
) -> Iterator[list[Contestant]]:
    """Yield ours, in each of the variants where these are given, and each peer with every form of its input.

    LIBSVM, which has nothing to warm up, fits once.
    """
    ours, *others = solvers.entered(peers, case.X, asked.repeats, 1)
    entered = [(own, *ours[1:], ("clsvm", variant, ours[1])) for own, variant in (variants or {"clsvm": None}).items()]
    entered += [(who, form, count, (who, None, form)) for who, form, count in others]
    given = [(own, form, count, (case.name, asked, *how)) for own, form, count, how in entered]
    with at_work(asked.limit, solver, given) as made:
        yield made


def solver(name: str, asked: Namespace, which: str, variant: Any, form: str) -> Answer:
    """Return what answers "fit" and "solution" as of solvers.fitting, a fold's number with seconds and a score."""
    case = asked_for(name, asked)
    X, kind = solvers.formed(case.X, form), "SVC" if case.classes else "SVR"
    given = solvers.parameters(case.C, case.gamma) | ({} if case.classes else {"epsilon": EPSILON})
    ours = {"device": asked.device, "layout": variant.layout if variant else "auto"}
    usual = solvers.fitting(which, kind, given, X, case.y, **ours)

    def answer(question: Any) -> Any:
        with variant.applied() if variant else nullcontext():
            if isinstance(question, str):
                return usual(question)
            train, test = folds(case)[question]
            model = solvers.made(which, kind, given, **ours)
            seconds = solvers.fitted(which, model, X[train], case.y[train])
            found = model.predict(X[test])
            right = found == case.y[test] if case.classes else (found - case.y[test]) ** 2
            return seconds, float(np.mean(right))

    return answer


def folds(case: Case) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return rows to train on and rows that are left out, the same in every call."""
    splitter = StratifiedKFold if case.classes else KFold
    return list(splitter(FOLDS, shuffle=True, random_state=0).split(case.X, case.y))


def fitted(
    case: Case, asked: Namespace, peers: tuple[str, ...], variants: Mapping[str, Any] | None = None
) -> list[Row]:
    """Return a row for each contestant: seconds, what the solution amounts to, and what it misses."""
    rows, X = [], case.X.astype(np.float64)
    with contestants(case, asked, peers, variants) as made:
        for one in turns(made):
            one.time()
        for one in made:
            solution = one.ask("solution")
            row = one.row()
            if solution is not None:
                row |= {"n_support": len(solution.support_), "report": solution.report}
                if variants is None:
                    row |= check.solved(solution, X, case.y, case.C, case.gamma, not case.classes)
            rows.append(row)
    check.judge(rows, TOL)
    return rows


def measure(name: str, asked: Namespace) -> Row:
    """Return table 2's rows of one set, and estimates."""
    case = asked_for(name, asked)
    rows = fitted(case, asked, tuple(asked.peers))
    return case.head() | {"tol": TOL, "rows": rows, "estimates": estimates(case, rows[0])}


def estimates(case: Case, ours: Row) -> list[Row]:
    """Return our seconds on the paper's set of the same name, and on the one that this set stands for."""
    if not ours.get("report") or "seconds" not in ours:
        return []
    n, d = case.X.shape
    computed, nnz = ours["report"]["rows_computed"], case.nnz
    rate, wanted = computed * nnz / ours["seconds"], []
    if case.name in SHAPES and SHAPES[case.name].paper_n > n:
        wanted.append((case.name, SHAPES[case.name].paper_n, d, nnz / (n * d)))
    if case.name in STANDS_FOR:
        wanted.append((STANDS_FOR[case.name], *ELSEWHERE[STANDS_FOR[case.name]]))
    work = [computed * rows / n * rows * columns * density for _, rows, columns, density in wanted]
    return [
        {"set": other, "n": rows, "d": columns, "multiply_adds": done, "rate": rate, "seconds": done / rate}
        for (other, rows, columns, _), done in zip(wanted, work, strict=True)
    ]


def holds(result: Row) -> bool:
    """Return whether each fit of ours ended within the limit with a solution that counts."""
    return not failed(result) and table.ours_hold({"sets": measured(result)})


def show(result: Row) -> Shown:
    """Return table 2."""
    rows, notes = [], []
    for one in measured(result):
        found, said = table.compared([one])
        notes += said
        rows += [row | {"paper": PAPER_2.get(one["set"], ())} for row in found]
        for other in one["estimates"]:
            told = {"label": table.label(other), "named": "estimate", "took": other["seconds"]}
            rows.append(told | {"paper": PAPER_2.get(other["set"], ())})
    columns: tuple[table.Column, ...] = (
        *table.SOLVED, *table.CERTIFIED, ("SVs", "{n_support}"),
        ("paper's s", lambda row: " / ".join("-" if one is None else f"{one:g}" for one in row["paper"])),
    )  # fmt: skip
    words = (
        f"{table.CHECKED}\nestimate: not measured; the multiply-adds expected over the rate of those of a fit\n"
        "paper's s: LIBSVM / ThunderSVM / TensorSVM / BoostSVM, on an i9-10900K and an RTX 3090, on the sets "
        "themselves"
    )
    return shown(result, columns, rows, words, *notes, *missing(result), left=2)


def measure_folds(name: str, asked: Namespace) -> Row:
    """Return table 5's rows of one set: the mean score over the folds, accuracy or mean squared error."""
    case = asked_for(name, asked)
    peers = tuple(dict.fromkeys(("libsvm", *asked.peers)))
    rows = []
    with contestants(case, asked, peers) as made:
        for one in made:
            scores = []
            for i in range(FOLDS):
                if (answer := one.ask(i)) is not None:
                    one.seconds.append(answer[0])
                    scores.append(answer[1])
            row = one.row()
            if not one.failed:
                row |= {"seconds": sum(one.seconds), "value": statistics.mean(scores), "all": scores}
            rows.append(row)
    kind = "accuracy" if case.classes else "mean squared error"
    theirs = next((row["value"] for row in rows if row["solver"] == "libsvm" and "value" in row), None)
    for row in rows:
        off = 0.0 if theirs is None or "value" not in row else _off(kind, row["value"], theirs)
        row["misses"] = [f"score {row['value']:.5f}, LIBSVM's {theirs:.5f}"] * (off > 1)
    return case.head() | {"rows": rows, "score": kind}


def _off(kind: str, value: float, theirs: float) -> float:
    """Return how far a score is from LIBSVM's, relative to the allowed difference."""
    return abs(value - theirs) / (ACCURACY if kind == "accuracy" else ERROR * theirs)


def show_folds(result: Row) -> Shown:
    """Return table 5."""
    rows, notes = table.compared(measured(result))

    def value(row: Row) -> str:
        return f"{row['value']:.2%}" if row["one"]["score"] == "accuracy" else f"{row['value']:.5f}"

    paper = ("paper's", lambda row: f"{PAPER_5[row['one']['set']]:g} %")
    columns = (*table.SOLVED[:2], ("s", table.SOLVED[3][1]), ("score", value), paper)
    words = (
        "s: both fits; accuracy or mean squared error, mean of two folds; the paper's accuracy is of the sets "
        "themselves, synthetic ones have 5 % of noise"
    )
    return shown(result, columns, rows, words, *notes, *missing(result), left=2)
