"""The benchmarks as records: a command's arguments, what it measures, how a result is shown, and whether it holds."""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import (
    falkon,
    falkon_product,
    gtsvm,
    ladder,
    ladder_plot,
    layouts,
    outofcore,
    pairs,
    search,
    sharded,
    small,
    table,
    tasks,
    tasks_table,
)
from benchmarks.boostsvm import cases, parts
from benchmarks.boostsvm.shapes import COMMON_COLUMNS
from benchmarks.falkon_studies import shared, studies
from benchmarks.fit import Options, fit_set
from benchmarks.sets import BUNDLED, BUNDLED_TASKS, HARD, SETS, TASK_SETS, TEXT, add_data
from clsvm.opencl import devices

PEERS = ("libsvm", "onedal")
FALKON_PEERS = ("nystroem", "keops", "numpy")
STUDY_PEERS = ("keops", "libsvm")
Asked = argparse.Namespace
Parser = argparse.ArgumentParser
Result = dict[str, Any]


@dataclass(frozen=True)
class Command:
    """One benchmark. help: a line. arguments: what it adds to its parser, beside --device and --out. measure: the
    figures, and the device that they are of. show: what the terminal draws. page: the same in a page; None: as there.
    holds: whether all of ours is as it should be. after: what is left to do with a result, and words about it."""

    name: str
    help: str
    arguments: Callable[[Parser], object]
    measure: Callable[[Asked], Result]
    show: Callable[[Result], Any]
    holds: Callable[[Result], bool]
    page: Callable[[Result], Any] | None = None
    after: Callable[[Asked, Result], str | None] = lambda asked, result: None


def in_own_process(measure: Callable[[str, Any], dict[str, Any]], name: str, options: Any) -> dict[str, Any]:
    """One set in a fresh process: its first fit is cold, and its memory goes back. A set that fails says why."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure, name, options).result()
        except Exception as error:
            return {"set": name, "n": 0, "d": 0, "error": f"{type(error).__name__}: {error}"}


def _names(known: tuple[str, ...]) -> Any:
    """An argparse type: a comma-separated list of known names."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown name {name!r}; there are {', '.join(known)}")
        return names

    return parse


def _add_sets(parser: Parser, known: tuple[str, ...], default: list[str] | None, words: str = "") -> None:
    parser.add_argument("--sets", type=_names(known), default=default, help=f"of {', '.join(known)}{words}")


def _add_peers(parser: Parser) -> None:
    parser.add_argument("--peers", type=_names(PEERS), default=[], help=f"of {', '.join(PEERS)}")


def _add_repeats(parser: Parser, default: int, words: str) -> None:
    parser.add_argument("--repeats", type=int, default=default, help=f"{words}, the cold one included ({default})")


def _on_device(asked: Asked, found: Result) -> Result:
    return {"device": str(devices.find(asked.device))} | found


def _rows(result: Result) -> list[dict[str, Any]]:
    return [row for one in result["sets"] for row in one.get("rows", [])]


def _fit_arguments(parser: Parser, sets: tuple[str, ...] = BUNDLED[1:], repeats: int = 3) -> None:
    _add_sets(parser, tuple(SETS), list(sets), f"; {', '.join(sets)}")
    _add_peers(parser)
    add_data(parser, f"none needed for {', '.join(BUNDLED)}")
    _add_repeats(parser, repeats, "fits of each solver")
    parser.add_argument("--repeats-libsvm", type=int, default=1, help="fits of LIBSVM (1)")
    parser.add_argument("--tol", type=float, default=1e-3, help="KKT tolerance (1e-3)")
    parser.add_argument("--cache", type=float, default=2000, metavar="MB", help="kernel cache of every solver (2000)")


def _fit(asked: Asked) -> Result:
    options = Options(
        peers=tuple(asked.peers),
        data=asked.data,
        repeats=asked.repeats,
        repeats_libsvm=asked.repeats_libsvm,
        tol=asked.tol,
        cache_mb=asked.cache,
        device=asked.device,
    )
    results = [in_own_process(fit_set, name, options) for name in asked.sets]
    reports = [row["report"] for row in _rows({"sets": results}) if "report" in row]
    return {"device": str(reports[0]["device"]) if reports else "none", "sets": results}


def _fit_holds(result: Result) -> bool:
    ours = [row for row in _rows(result) if row["solver"] == "clsvm"]
    return len(ours) == len(result["sets"]) and not any(row["error"] or row["misses"] for row in ours)


def _ladder_arguments(parser: Parser) -> None:
    parser.add_argument("--sizes", choices=tuple(ladder.SIZES), default="full", help="full takes some minutes")
    parser.add_argument("--plot", type=Path, help="a picture to draw, .png; needs matplotlib")


def _ladder(asked: Asked) -> Result:
    if asked.plot:
        ladder_plot.library()  # better missed now than after minutes of measuring
    return ladder.run(asked.device, ladder.SIZES[asked.sizes])


def _draw(asked: Asked, result: Result) -> str | None:
    if not asked.plot:
        return None
    ladder_plot.draw(result, asked.plot)
    return f"drawn to {asked.plot}"


def _gtsvm_arguments(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    words = "2: clustering, 3: two classes, 4: more classes"
    which.add_argument("--table", type=int, choices=tuple(gtsvm.TABLES), help=words)
    which.add_argument("--figure", type=int, choices=tuple(gtsvm.FIGURES), help="2: where the time goes")
    _add_sets(parser, tuple(SETS), list(gtsvm.SETS))
    add_data(parser, f"none needed for {', '.join(BUNDLED)}")


def _gtsvm(asked: Asked) -> Result:
    measure, _ = gtsvm.FIGURES[asked.figure] if asked.figure else gtsvm.TABLES[asked.table]
    what = {"figure" if asked.figure else "table": asked.figure or asked.table}
    return _on_device(asked, what | measure(asked.sets, asked.data, asked.device))


def _tasks_arguments(parser: Parser) -> None:
    _add_sets(parser, tuple(TASK_SETS), None, "; all that are there")
    known = tuple(tasks.TASKS)
    parser.add_argument("--tasks", type=_names(known), default=list(known), help=f"of {', '.join(known)}")
    add_data(parser, f"none needed for {', '.join(BUNDLED_TASKS)}")
    parser.add_argument("--tol", type=float, default=1e-3, help="KKT tolerance of both (1e-3)")


def _tasks(asked: Asked) -> Result:
    names = asked.sets or [name for name in TASK_SETS if asked.data or name in BUNDLED_TASKS]
    options = tasks.Options(tuple(asked.tasks), asked.data, asked.tol, asked.device)
    results = [in_own_process(tasks.run, name, options) for name in names]
    used = [row["device"] for row in _rows({"sets": results}) if "device" in row]
    return {"device": next(iter(used), "none"), "sets": results}


def _tasks_hold(result: Result) -> bool:
    failed = any("error" in one for one in result["sets"])
    return not failed and not any(row["error"] or row["misses"] for row in _rows(result))


def _search_arguments(parser: Parser) -> None:
    parser.add_argument("--grid", choices=tuple(search.GRIDS), default="moderate", help="values of C and gamma")
    parser.add_argument("--rows", type=int, default=8000, help="rows of a9a (8000)")
    _add_peers(parser)
    _add_repeats(parser, 3, "searches of ours")
    add_data(parser)


def _search(asked: Asked) -> Result:
    found = search.run(asked.grid, asked.rows, asked.peers, asked.data, asked.device, asked.repeats)
    return _on_device(asked, found)


def _pairs_arguments(parser: Parser) -> None:
    known = tuple(name for name, one in TASK_SETS.items() if one.target == "classes" and not one.most_dense)
    _add_sets(parser, known, ["letter", "pendigits", "mnist7k"])
    _add_peers(parser)
    _add_repeats(parser, 4, "fits of each solver")
    add_data(parser, "none needed for iris and digits")


def _pairs(asked: Asked) -> Result:
    return _on_device(asked, pairs.run(asked.sets, asked.peers, asked.data, asked.device, asked.repeats))


def _layouts_arguments(parser: Parser) -> None:
    _add_sets(parser, tuple(SETS), ["synthetic20k"])
    _add_repeats(parser, 6, "fits in each layout")
    add_data(parser, f"none needed for {', '.join(BUNDLED)}")


def _layouts(asked: Asked) -> Result:
    return _on_device(asked, layouts.run(asked.sets, asked.data, asked.device, asked.repeats))


def _falkon_arguments(parser: Parser) -> None:
    _add_sets(parser, tuple(falkon.FALKON_SETS), ["synthetic"])
    parser.add_argument("--peers", type=_names(FALKON_PEERS), default=[], help=f"of {', '.join(FALKON_PEERS)}")
    parser.add_argument("--centers", type=int, default=2000, help="m (2000)")
    parser.add_argument("--rows", type=int, help="rows of a set at most (all)")
    parser.add_argument("--product", action="store_true", help="the product alone, for features 3 to 784")
    _add_repeats(parser, 3, "fits of each solver")
    add_data(parser, "none needed for synthetic")


def _falkon(asked: Asked) -> Result:
    if asked.product:
        return _on_device(asked, falkon_product.run(asked.peers, asked.device, asked.repeats))
    given = asked.sets, asked.peers, asked.data, asked.device, asked.repeats, asked.centers, asked.rows
    return _on_device(asked, falkon.run(*given))


def _study_arguments(parser: Parser) -> None:
    words = "; ".join(f"{name}: {one.words}" for name, one in studies.STUDIES.items())
    parser.add_argument("study", choices=tuple(studies.STUDIES), help=words)
    _add_sets(parser, studies.SETS, None, "; the study's own")
    names = ", ".join(STUDY_PEERS)
    parser.add_argument("--peers", type=_names(STUDY_PEERS), default=list(STUDY_PEERS), help=f"of {names} (all)")
    parser.add_argument("--centers", type=int, help="m, the largest of them in curves (the study's own, mostly 2000)")
    parser.add_argument("--rows", type=int, help="n at most, the largest of them in growth (the study's own)")
    parser.add_argument("--libsvm-rows", type=int, default=5000, help="that LIBSVM is fitted on, table5 (5000)")
    parser.add_argument(
        "--limit", type=float, default=60, metavar="S", help="of a fit or a pass, curves, features (60)"
    )
    parser.add_argument("--memory-limit", default="400MB", help="of the device in growth (400MB)")
    parser.add_argument("--repeats", type=int, default=3, help="of a product in features, after the cold one (3)")
    parser.add_argument("--plot", type=Path, help="a picture to draw, .png; needs matplotlib")
    add_data(parser, "none needed for synthetic, features and growth")


def _study(asked: Asked) -> Result:
    if asked.plot:
        ladder_plot.library()  # better missed now than after minutes of measuring
    given = {field.name: getattr(asked, field.name) for field in dataclasses.fields(shared.Options)}
    measured = studies.STUDIES[asked.study].measure(shared.Options(**given))
    return _on_device(asked, {"study": asked.study} | measured)


def _draw_study(asked: Asked, result: Result) -> str | None:
    draw = studies.STUDIES[asked.study].draw
    if not asked.plot or draw is None:
        return None
    draw(result, asked.plot)
    return f"drawn to {asked.plot}"


def _boostsvm_arguments(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--table", type=int, choices=parts.numbers("table"), help=parts.words("table"))
    which.add_argument("--figure", type=int, choices=parts.numbers("figure"), help=parts.words("figure"))
    which.add_argument("--products", action="store_true", help=parts.PARTS["products"].words)
    _add_sets(parser, cases.SETS, None, "; all that the part has")
    words = f"columns of density 0.74 in a synthetic set ({','.join(map(str, COMMON_COLUMNS))})"
    parser.add_argument("--h", type=parts.whole_numbers, default=list(COMMON_COLUMNS), help=words)
    _add_peers(parser)
    words = "runs of each product after the first (5); fits of each solver, the cold one included (3)"
    parser.add_argument("--repeats", type=int, help=words)
    parser.add_argument("--scale", type=int, default=1, metavar="N", help="divide the rows of every set by N (1)")
    words = "seconds after which a fit is ended; 0: never (120)"
    parser.add_argument("--limit", type=float, default=120, metavar="S", help=words)
    parser.add_argument("--plot", type=Path, help="a picture of a figure, .png; needs matplotlib")
    add_data(parser, "none needed for synthetic sets")


_FITS = _fit, table.terminal, _fit_holds, table.markdown
_LISTED = (
    Command("fit", "fit data sets with clsvm and its peers, check and time every fit", _fit_arguments, *_FITS),
    *(
        Command(name, words, partial(_fit_arguments, sets=sets, repeats=6), *_FITS)
        for name, sets, words in (
            ("hard", HARD, "fit sets that take many pair steps, as fit does"),
            ("text", TEXT, "fit groups of 20 Newsgroups, as fit does"),
        )
    ),
    Command(
        "ladder",
        "kernel rows in ever better ways, and reductions, against the device's peaks",
        _ladder_arguments,
        _ladder,
        ladder.terminal,
        ladder.all_right,
        ladder.markdown,
        _draw,
    ),
    Command(
        "gtsvm",
        "the tables of GTSVM's paper, ours beside the paper's figures",
        _gtsvm_arguments,
        _gtsvm,
        gtsvm.show,
        lambda result: True,
    ),
    Command(
        "tasks",
        "SVC, NuSVC, SVR, NuSVR and OneClassSVM against scikit-learn's",
        _tasks_arguments,
        _tasks,
        lambda result: table.terminal(result, tasks_table.LAYOUT),
        _tasks_hold,
        lambda result: table.markdown(result, tasks_table.LAYOUT),
    ),
    Command(
        "search",
        "a grid search on a9a by SVCSearchCV and by GridSearchCV over the peers",
        _search_arguments,
        _search,
        search.show,
        lambda result: all(row["apart"] <= 0.002 for row in result["rows"]),
    ),
    Command(
        "pairs",
        "a machine for each pair of classes, by clsvm and its peers in turns",
        _pairs_arguments,
        _pairs,
        pairs.show,
        lambda result: not any(one["rows"][0]["misses"] for one in result["sets"]),
    ),
    Command(
        "layouts",
        "the same fits with rows in each layout, in turns",
        _layouts_arguments,
        _layouts,
        layouts.show,
        lambda result: all(row["agrees"] for row in _rows(result)),
    ),
    Command(
        "falkon",
        "machines on centres against the direct solution, or their product against KeOps and NumPy",
        _falkon_arguments,
        _falkon,
        lambda result: falkon.show(result) if "sets" in result else falkon_product.show(result),
        lambda result: "sets" not in result or falkon.holds(result),
    ),
    Command(
        "study",
        "studies of machines on centres: beside SVMs and KeOps, what each part gains, growth with the rows",
        _study_arguments,
        _study,
        lambda result: studies.STUDIES[result["study"]].show(result),
        lambda result: studies.STUDIES[result["study"]].holds(result),
        after=_draw_study,
    ),
    Command(
        "boostsvm",
        "the tables and figures of BoostSVM's paper, and the choice of a layout",
        _boostsvm_arguments,
        lambda asked: parts.run(asked, in_own_process),
        lambda result: parts.PARTS[result["part"]].show(result),
        lambda result: parts.PARTS[result["part"]].holds(result),
        after=parts.draw,
    ),
    *(
        Command(name, words, one.add_arguments, one.measure, one.show, one.holds)
        for name, one, words in (
            (
                "outofcore",
                outofcore,
                "Cholesky and LAUUM in tiles by one worker and by two, beside LAPACK in core",
            ),
            ("small", small, "fits of some hundred rows, and answers for one, beside scikit-learn's"),
            ("sharded", sharded, "exact SVMs with the rows on Dask's workers, beside one process"),
        )
    ),
)
COMMANDS: dict[str, Command] = {one.name: one for one in _LISTED}
