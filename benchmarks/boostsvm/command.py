"""The command of the comparison with BoostSVM's paper, and its tables of fits.

Table 2 has the seconds of fits by clsvm and the peers, with every solution recomputed in float64. Table 5 has two-fold
cross-validation by clsvm and LIBSVM on the same folds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from sklearn.model_selection import KFold, StratifiedKFold

from benchmarks import command, solvers, table
from benchmarks.boostsvm import cases, products
from benchmarks.command import DATA, Asked, Command, Part, chosen, number, option, peers, several
from benchmarks.fits import raced
from benchmarks.table import Row, Shown, shown

FOLDS = 2
ACCURACY = 0.002  # by which clsvm's accuracy may differ from LIBSVM's
ERROR = 0.01  # by which clsvm's mean squared error may differ, relative to LIBSVM's

# The paper's computer has an i9-10900K and an RTX 3090. The seconds are of LIBSVM, ThunderSVM, TensorSVM and BoostSVM,
# and None means not run, or out of memory. In the paper MNIST has ten classes, and ijcnn1, rcv1 and url have more rows.
PAPER_2: dict[str, tuple[float | None, ...]] = {
    "url": (8.91e4, 4.16e4, None, 6.92e3),
    "rcv1": (1.23e4, 348.58, None, 93.76),
    "real-sim": (97.97, 3.80, 21.71, 1.97),
    "e2006": (451.96, 13.86, None, 3.10),
    "mnist8": (1.49e3, 53.69, None, 25.40),
    "ijcnn1": (3.98, 1.17, 2.72, 0.84),
    "gisette": (80.67, 2.75, 1.02, 0.58),
}
# Accuracy of two-fold cross-validation in % in the paper, the same for LIBSVM, ThunderSVM and BoostSVM.
PAPER_5 = {"gisette": 50.0, "real-sim": 86.0, "ijcnn1": 99.1, "epsilon": 81.7, "rcv1": 97.8, "url": 98.6}


def _fits(name: str, asked: Asked) -> Row:
    """Return the rows of table 2 for one data set."""
    return raced(cases.loaded(name, asked), asked)


def _show_fits(result: Row) -> Shown:
    rows, notes = table.compared(result["sets"])
    columns: tuple[table.Column, ...] = (
        *table.SOLVED, *table.CERTIFIED, ("SVs", "{n_support}"),
        ("paper's s", lambda row: " / ".join("-" if s is None else f"{s:g}" for s in PAPER_2[row["one"]["set"]])),
    )  # fmt: skip
    words = (
        f"{table.CHECKED}\npaper's s: LIBSVM / ThunderSVM / TensorSVM / BoostSVM, on an i9-10900K and an RTX 3090, on "
        "the sets themselves"
    )
    return shown(result, columns, rows, words, *notes, left=2)


def _folds(name: str, asked: Asked) -> Row:
    """Return the rows of table 5 for one data set, with the mean accuracy or mean squared error over the folds."""
    load, rows = cases.loaded(name, asked), []
    problem, asked.peers = load(), tuple(dict.fromkeys(("libsvm", *asked.peers)))
    splitter = (KFold if problem.numbers else StratifiedKFold)(FOLDS, shuffle=True, random_state=0)
    with solvers.entrants(load, solvers.parameters(problem), asked) as made:
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


def _show_folds(result: Row) -> Shown:
    rows, notes = table.compared(result["sets"])

    def value(row: Row) -> str:
        return f"{row['value']:.2%}" if row["one"]["score"] == "accuracy" else f"{row['value']:.5f}"

    paper = ("paper's", lambda row: f"{PAPER_5[row['one']['set']]:g} %")
    columns = (*table.SOLVED[:2], ("s", table.SOLVED[3][1]), ("score", value), paper)
    words = (
        "s: both fits; accuracy or mean squared error, mean of two folds; the paper's accuracy is of the sets "
        "themselves, synthetic ones have 5 % of noise"
    )
    return shown(result, columns, rows, words, *notes, left=2)


SPARSE = tuple(name for name in cases.SETS if name not in ("letter", "gisette"))  # letter and gisette have few zeros


def which(given: Row) -> str:
    """Return the name of the part that options select, or of the part that made a result."""
    for kind in ("table", "figure"):
        if given.get(kind):
            return f"{kind} {given[kind]}"
    return str(given.get("part", "products"))


def over_sets(
    measure: Callable[[str, Asked], Row], known: tuple[str, ...] = cases.SETS, repeats: int = 5
) -> Callable[[Asked], Row]:
    """Return a function that measures each data set with each number of common columns.

    A data set that is not known raises MissingSetError. repeats: the default of --repeats.
    """

    def every(asked: Asked) -> Row:
        name, found = which(vars(asked)), []
        asked.repeats = asked.repeats or repeats
        random = [f"{cases.RANDOM}{asked.seed + i}" for i in range(asked.random)]
        usual = [] if random else [one for one in known if asked.data or one not in cases.REAL]
        for one in [*chosen(name, asked.sets or usual, known), *random]:
            for h in asked.h if one in cases.SHAPES else [0]:
                head = {"set": one, "h": h}
                if why := cases.refused(one, h):
                    found.append(head | {"refused": why})
                else:
                    found.append(command.in_own_process(measure, one, asked, h=h) | head)
        given = {"scale": asked.scale, "repeats": asked.repeats, "limit": asked.limit}
        return {"part": name, **given, "sets": found}

    return every


COMMAND = Command(
    "boostsvm",
    "the tables and figures of BoostSVM's paper, and the choice of a layout",
    (
        option("--table", type=int, choices=(2, 3, 4, 5), help="2: fits, 3: order and partition, 4: rates, 5: folds"),
        option("--figure", type=int, choices=(3, 4), help="3: square matrices, 4: density over the columns"),
        option("--products", action="store_true", help="products in every layout, and the choice"),
        several("--sets", (*cases.SETS, *products.SIZES), None, "; all that the part has"),
        option("--h", type=int, nargs="+", default=[0, 100, 1000], help="columns of density 0.74 in synthetic sets"),
        number("--random", 0, "sets besides, or alone, of shapes that are drawn by seeds"),
        number("--seed", 0, "the first of these seeds"), peers(),
        number("--repeats", None, "runs of each product after the first; fits of each solver"),
        number("--scale", 1, "divide the rows of every set"),
        number("--limit", 120.0, "seconds after which a fit is ended; 0: never"), DATA,
    ),
    {
        "products": Part(over_sets(products.measure), products.show, products.holds),
        "table 2": Part(over_sets(_fits, repeats=3), _show_fits, table.ours_hold),
        "table 3": Part(
            over_sets(products.measure_variants, SPARSE, 3), products.show_variants, products.variants_hold
        ),
        "table 4": Part(over_sets(products.measure), products.show_rates, products.right),
        "table 5": Part(over_sets(_folds), _show_folds, table.ours_hold),
        "figure 3": Part(
            over_sets(products.measure_squares, products.SIZES), products.show_squares, products.right
        ),
        "figure 4": Part(over_sets(products.measure_columns), products.show_columns),
    },
    which,
)  # fmt: skip
