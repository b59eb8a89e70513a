"""Table 2: seconds to train, ours and the peers', with every solution recomputed in float64; table 5: two-fold
cross-validation by ours and LIBSVM's machines on the same folds."""

from __future__ import annotations

import statistics
from functools import partial

from sklearn.model_selection import KFold, StratifiedKFold

from benchmarks import solvers, table
from benchmarks.boostsvm import cases
from benchmarks.command import Asked
from benchmarks.fits import raced
from benchmarks.sets import EPSILON, Problem
from benchmarks.table import Row, Shown, shown

FOLDS = 2
ACCURACY = 0.002  # that ours may differ by from LIBSVM's
ERROR = 0.01  # the same for a mean squared error, of its size

# The paper's machine: an i9-10900K and an RTX 3090. Seconds of training of LIBSVM, ThunderSVM, TensorSVM and BoostSVM;
# None: not run, or out of memory. MNIST has ten classes there, ijcnn1 91701 rows, and rcv1 and url have more rows.
PAPER_2: dict[str, tuple[float | None, ...]] = {
    "url": (8.91e4, 4.16e4, None, 6.92e3),
    "rcv1": (1.23e4, 348.58, None, 93.76),
    "real-sim": (97.97, 3.80, 21.71, 1.97),
    "e2006": (451.96, 13.86, None, 3.10),
    "mnist8": (1.49e3, 53.69, None, 25.40),
    "ijcnn1": (3.98, 1.17, 2.72, 0.84),
    "gisette": (80.67, 2.75, 1.02, 0.58),
}
# Accuracy of two-fold cross-validation in %, the same for LIBSVM, ThunderSVM and BoostSVM.
PAPER_5 = {"gisette": 50.0, "real-sim": 86.0, "ijcnn1": 99.1, "epsilon": 81.7, "rcv1": 97.8, "url": 98.6}


def loaded(name: str, asked: Asked) -> partial[Problem]:
    """Return a call that loads the set of that name as the command line asks for it."""
    return partial(cases.load, name, asked.h, asked.scale, asked.data)


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


def measure(name: str, asked: Asked) -> Row:
    """Return table 2's rows of one set."""
    return raced(loaded(name, asked), asked)


def holds(result: Row) -> bool:
    """Return whether each fit of ours ended within the limit with a solution that counts."""
    return not failed(result) and table.ours_hold({"sets": measured(result)})


def show(result: Row) -> Shown:
    """Return table 2."""
    rows, notes = table.compared(measured(result))
    columns: tuple[table.Column, ...] = (
        *table.SOLVED, *table.CERTIFIED, ("SVs", "{n_support}"),
        ("paper's s", lambda row: " / ".join("-" if s is None else f"{s:g}" for s in PAPER_2[row["one"]["set"]])),
    )  # fmt: skip
    words = (
        f"{table.CHECKED}\npaper's s: LIBSVM / ThunderSVM / TensorSVM / BoostSVM, on an i9-10900K and an RTX 3090, on "
        "the sets themselves"
    )
    return shown(result, columns, rows, words, *notes, *missing(result), left=2)


def measure_folds(name: str, asked: Asked) -> Row:
    """Return table 5's rows of one set: the mean score over the folds, accuracy or mean squared error."""
    load, rows = loaded(name, asked), []
    problem, asked.peers = load(), tuple(dict.fromkeys(("libsvm", *asked.peers)))
    splitter = (KFold if problem.numbers else StratifiedKFold)(FOLDS, shuffle=True, random_state=0)
    given = solvers.parameters(problem.C, problem.gamma) | ({"epsilon": EPSILON} if problem.numbers else {})
    with solvers.entrants(load, given, asked) as made:
        for one in made:
            answers = [one.ask(fold) for fold in splitter.split(problem.X, problem.y)]
            one.seconds = [answer[0] for answer in answers if answer is not None]
            row = one.row()
            if not one.failed:
                scores = [score for _, score in answers]
                row |= {"seconds": sum(one.seconds), "value": statistics.mean(scores), "all": scores}
            rows.append(row)
    theirs = next((row["value"] for row in rows if row["solver"] == "libsvm" and "value" in row), None)
    allowed = ERROR * (theirs or 0.0) if problem.numbers else ACCURACY
    for row in rows:
        off = theirs is not None and "value" in row and abs(row["value"] - theirs) > allowed
        row["misses"] = [f"score {row['value']:.5f}, LIBSVM's {theirs:.5f}"] if off else []
    return problem.head() | {"rows": rows, "score": "mean squared error" if problem.numbers else "accuracy"}


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
