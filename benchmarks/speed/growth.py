"""How the seconds of a fit grow with the rows: ours beside the peers, on the first rows of a set, twice as many each
time, until a fit takes longer than the limit.

Each solver has a process of its own, in which a first fit of few rows builds the programs and is not timed; the fits
take turns. A fit that is not done at the limit is ended, and so is its solver's series. The exponent is the slope of a
straight line through log seconds over log rows, by least squares, on the UPPER largest numbers of rows: of the solver's
own, and of those that all solvers have, since a solver that is slower ends earlier, where exponents are smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import check, command, sets, sharded, solvers, table
from benchmarks.boostsvm.limited import Answer
from benchmarks.boostsvm.machines import Contestant, at_work
from benchmarks.command import (
    PEERS,
    Asked,
    Command,
    Parser,
    Result,
    add_peers,
    add_plot,
    add_sets,
    can_draw,
    drawn,
)
from benchmarks.falkon_studies.pictures import picture

FIRST = 1000  # rows of the first fits
UPPER = 4  # points of an exponent
ONCE, TWICE = 1 / 2, 1 / 6  # of the limit: a first fit that takes longer is the only one; more than two only below this
ALL = 1.5  # times the last number of rows: a set that has more is fitted whole as well
EVERY_ROW = 1 << 62


@dataclass(frozen=True)
class Options:
    """What the command line asks. rows: at most so many. limit: seconds of a fit; 0: none, and all in this process.
    C: of the series that is measured."""

    peers: tuple[str, ...] = ()
    data: Path | None = None
    device: Any = None
    repeats: int = 3
    rows: int = EVERY_ROW
    limit: float = 60.0
    C: float = 1.0


def problem_of(name: str, folder: Path | None) -> tuple[Any, Any, float]:
    """X (n, d), y of -1 and +1, gamma: all of covertype, columns scaled to [0, 1], or a set of benchmarks.sets."""
    if name == "covtype":
        X, y = sharded.covertype(EVERY_ROW, folder)
        return X.astype(np.float64), y.astype(np.float64), 1.0
    one = sets.load(name, folder)
    return one.X, one.y, one.gamma


def sizes(n: int) -> Iterator[int]:
    """FIRST, twice as many, and so on, and all n where there are by far more than the last of these."""
    size = FIRST
    while size <= n:
        yield size
        size *= 2
    if n >= ALL * size / 2 or size == FIRST:
        yield n


def solver(name: str, options: Options, which: str, form: str) -> Answer:
    """What answers a number of rows with the seconds of a fit, and "solution" with what the last one found."""
    X, y, gamma = problem_of(name, options.data)
    X = solvers.formed(X, form)
    given, model = solvers.parameters(options.C, gamma), None

    def answer(question: Any) -> Any:
        nonlocal model
        if question == "solution":
            return solvers.solution(model)
        model = solvers.made(which, "SVC", given, device=options.device)
        return solvers.fitted(which, model, X[:question], y[:question])

    answer(min(FIRST, len(y)))
    return answer


def series(name: str, options: Options) -> dict[str, Any]:
    """points: for each number of rows a row for each solver and form of its input that had not ended before.
    exponents: of each solver; common: the same on the numbers of rows that all have."""
    problem = problem_of(name, options.data)
    X, y, gamma = problem
    which: tuple[str, ...] = ("clsvm", *options.peers)
    points: list[dict[str, Any]] = []
    forms = [(one, form) for one in which for form in solvers.forms(one, X)]
    asked = [(one, options.repeats, (name, options, one, form)) for one, form in forms]
    with at_work(options.limit, solver, asked) as made:
        for one, (_, form) in zip(made, forms, strict=True):
            one.form = form
        for n in sizes(min(options.rows, len(y))):
            if going := [one for one in made if not one.failed]:
                points.append({"n": n, "rows": _rows(going, n, problem, options)})
    seconds = {name: seconds_of(points, name) for name in which}
    shared = set.intersection(*(set(found) for found in seconds.values()))
    head = {"set": name, "n": len(y), "d": X.shape[1], "C": options.C, "gamma": gamma, "tol": solvers.TOL}
    return head | {
        "points": points,
        "exponents": {name: exponent(found) for name, found in seconds.items()},
        "common": {name: exponent({n: found[n] for n in shared}) for name, found in seconds.items()},
    }


def _rows(going: list[Contestant], n: int, problem: tuple[Any, Any, float], options: Options) -> list[dict[str, Any]]:
    """A row for each solver: the median of its seconds after the first, which may build programs for so many rows, or
    those of the only one, and what its last solution amounts to."""
    for one in going:
        one.seconds = []
    for _ in range(options.repeats):
        for one in going:
            most = options.limit * (TWICE if len(one.seconds) > 1 else ONCE) or np.inf
            if min(one.seconds, default=0.0) <= most and (took := one.ask(n)) is not None:
                one.seconds.append(took)
    X, y, gamma = problem
    kernel, rows, checks = check.kernel("rbf", gamma=gamma), [], []
    for one in going:
        found = one.ask("solution")
        head: dict[str, Any] = {"solver": one.name, "form": one.form, "failed": one.failed, "too_long": one.too_long}
        rows.append(head | {"misses": []})
        if found is not None:
            given = check.full_coef(found, n), float(found.intercept_[0])
            checks.append(check.recompute(X[:n], y[:n], options.C, *given, kernel))
            rows[-1] |= one.row() | asdict(checks[-1])
    solved = [row for row in rows if not row["failed"]]
    for row, misses in zip(solved, check.judged(checks, options.C, solvers.TOL), strict=True):
        row["misses"] = misses
    return rows


def seconds_of(points: Sequence[Mapping[str, Any]], solver: str) -> dict[int, float]:
    """Return the seconds of a solver's fits that ended, by the number of rows, with one form of its input.

    The form is that of the most fits that count, and among these the fastest for the most rows.
    """
    by_form: dict[str, dict[int, Mapping[str, Any]]] = {}
    for point in points:
        for row in point["rows"]:
            if row["solver"] == solver and not row["failed"]:
                by_form.setdefault(row.get("form", ""), {})[point["n"]] = row

    def rank(fits: Mapping[int, Mapping[str, Any]]) -> tuple[int, float]:
        return -sum(not row.get("misses") for row in fits.values()), float(fits[max(fits)]["seconds"])

    return {n: row["seconds"] for n, row in min(by_form.values(), key=rank, default={}).items()}


def exponent(seconds: Mapping[int, float]) -> dict[str, Any] | None:
    """The slope of log seconds over log rows on the UPPER largest numbers of rows, and the first and last of them; None
    where there are not two."""
    upper = sorted(seconds)[-UPPER:]
    if len(upper) < 2:
        return None
    slope = np.polyfit(np.log(upper), np.log([seconds[n] for n in upper]), 1)[0]
    return {"exponent": float(slope), "from": upper[0], "to": upper[-1]}


HEADER = ("set", "C", "rows", "clsvm s", *(cell for peer in PEERS for cell in (f"{peer} s", "times ours")))
LEGEND = (
    "medians of the fits after the first, where there are several; exponent: least squares of log seconds over log "
    f"rows, on the {UPPER} largest numbers of rows (which, in brackets), of each solver's and of those that all have, "
    "with one form of its input; dual and KKT violation recomputed in float64; * does not count; notes below"
)


def cells(result: Result) -> tuple[list[tuple[str, ...]], list[str]]:
    """The table's rows in the order of HEADER, and the notes on figures marked with *."""
    rows: list[tuple[str, ...]] = []
    measured, notes = table.measured(result)
    for one in measured:
        head = one["set"], f"{one['C']:g}"
        for point in one["points"]:
            found = {row["solver"]: row for row in table.best_forms(point["rows"])}
            ours = found.get("clsvm", {}).get("seconds")
            beside = [cell for peer in PEERS for cell in (_seconds(found.get(peer)), _times(found.get(peer), ours))]
            rows.append((*head, str(point["n"]), _seconds(found.get("clsvm")), *beside))
            head = "", ""
            where = f"{one['set']}, C = {one['C']:g}, {point['n']} rows"
            for row in found.values():
                failed = [row["failed"]] if row["failed"] and not row["too_long"] else []
                notes += [f"{where}, {table.named(row)}: {words}" for words in (*failed, *row["misses"])]
            notes += table.passed_over(where, point["rows"])
        for words, which in (("exponent", one["exponents"]), ("the same rows", one["common"])):
            beside = [cell for peer in PEERS for cell in (_slope(which.get(peer)), "")]
            rows.append(("", "", words, _slope(which["clsvm"]), *beside))
    return rows, notes


def _seconds(row: Mapping[str, Any] | None) -> str:
    if row is None or row["failed"]:
        return "" if row is None else row["failed"] if row["too_long"] else "*"
    return f"{row['seconds']:.3g}" + "*" * bool(row["misses"])


def _times(row: Mapping[str, Any] | None, ours: float | None) -> str:
    return f"{row['seconds'] / ours:.2f}" if row and ours and not row["failed"] else ""


def _slope(found: Mapping[str, Any] | None) -> str:
    return f"{found['exponent']:.2f} ({found['from']}-{found['to']})" if found else ""


LAYOUT = table.Layout(HEADER, 1, LEGEND, cells)


def holds(result: Result) -> bool:
    """Whether every fit of ours counts, or took too long, and some did not."""
    for one in result["sets"]:
        ours = [row for point in one.get("points", ()) for row in point["rows"] if row["solver"] == "clsvm"]
        within = [row for row in ours if not row["too_long"]]
        if not within or any(row["failed"] or row["misses"] for row in within):
            return False
    return True


def panel(axes: Any, one: Mapping[str, Any]) -> Any:
    """Seconds over rows of each solver of a series, both axes logarithmic, into matplotlib's ``axes``, which it
    returns."""
    for name, slope in one["exponents"].items():
        found = seconds_of(one["points"], name)
        if found:
            words = f"{name}, exponent {slope['exponent']:.2f}" if slope else name
            axes.loglog([*found], [*found.values()], marker="o", markersize=4, label=words)
    axes.set(title=f"{one['set']}, d = {one['d']}, C = {one['C']:g}", xlabel="rows n", ylabel="seconds of a fit")
    return axes


def draw(result: Result, path: Path) -> None:
    """A panel for each series, into the file ``path``."""
    measured = [one for one in result["sets"] if one.get("points")]
    with picture(result, path, max(1, len(measured))) as every:
        for axes, one in zip(every, measured, strict=False):
            panel(axes, one)


def _arguments(parser: Parser) -> None:
    add_sets(parser, ("covtype", *sets.SETS), ["covtype", "mnist8"], "; covtype,mnist8")
    parser.add_argument("--C", type=float, nargs="+", default=[1.0, 100.0], help="a series for each (1 100)")
    parser.add_argument("--rows", type=int, default=EVERY_ROW, help="of a fit at most (all)")
    words = "of a fit, which ends a solver's series; 0: none, in one process (60)"
    parser.add_argument("--limit", type=float, default=60, metavar="S", help=words)
    add_peers(parser)
    sets.add_data(parser, f"none needed for {', '.join(sets.BUNDLED)}")
    parser.add_argument("--repeats", type=int, default=3, help="fits of each solver, one or two where it is slow (3)")
    add_plot(parser)


def _measure(asked: Asked) -> Result:
    can_draw(asked)
    options = Options(tuple(asked.peers), asked.data, asked.device, asked.repeats, asked.rows, asked.limit)
    found = []
    for name in asked.sets:
        for C in asked.C:
            found.append(command.in_own_process(series, name, replace(options, C=C)) | {"C": C})
    return command.on_device(asked, {"limit": asked.limit, "sets": found})


COMMAND = Command(
    "growth",
    "seconds of a fit over the rows, ours and the peers', with exponents",
    _arguments,
    _measure,
    partial(table.terminal, layout=LAYOUT),
    holds,
    partial(table.markdown, layout=LAYOUT),
    partial(drawn, draw),
)
