"""The benchmarks as records: a command's arguments, what it measures, how a result is shown, and whether it holds."""

from __future__ import annotations

from functools import partial

from benchmarks import (
    command,
    falkon,
    falkon_product,
    gallery,
    gtsvm,
    host,
    ladder,
    ladder_plot,
    larger,
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
from benchmarks.boostsvm import parts
from benchmarks.command import (
    Asked,
    Command,
    Parser,
    Result,
    add_peers,
    add_plot,
    add_repeats,
    add_sets,
    can_draw,
    drawn,
    names,
    on_device,
    rows_of,
)
from benchmarks.falkon_studies import studies
from benchmarks.fit import Options, fit_set
from benchmarks.sets import BUNDLED, BUNDLED_TASKS, HARD, SETS, TASK_SETS, TEXT, add_data
from benchmarks.speed import busy, growth, limit, predict

FALKON_PEERS = ("nystroem", "keops", "numpy")


def _fit_arguments(parser: Parser, sets: tuple[str, ...] = BUNDLED[1:], repeats: int = 3) -> None:
    add_sets(parser, tuple(SETS), list(sets), f"; {', '.join(sets)}")
    add_peers(parser)
    add_data(parser, f"none needed for {', '.join(BUNDLED)}")
    add_repeats(parser, repeats, "fits of each solver")
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
    results = [command.in_own_process(fit_set, name, options) for name in asked.sets]
    reports = [row["report"] for row in rows_of({"sets": results}) if "report" in row]
    return {"device": str(reports[0]["device"]) if reports else "none", "sets": results}


def _fit_holds(result: Result) -> bool:
    ours = [row for row in rows_of(result) if row["solver"] == "clsvm"]
    return len(ours) == len(result["sets"]) and not any(row["error"] or row["misses"] for row in ours)


def _ladder_arguments(parser: Parser) -> None:
    parser.add_argument("--sizes", choices=tuple(ladder.SIZES), default="full", help="full takes some minutes")
    add_plot(parser)


def _ladder(asked: Asked) -> Result:
    can_draw(asked)
    return ladder.run(asked.device, ladder.SIZES[asked.sizes])


def _gtsvm_arguments(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    words = "2: clustering, 3: two classes, 4: more classes"
    which.add_argument("--table", type=int, choices=tuple(gtsvm.TABLES), help=words)
    which.add_argument("--figure", type=int, choices=tuple(gtsvm.FIGURES), help="2: where the time goes")
    add_sets(parser, tuple(SETS), list(gtsvm.SETS))
    add_data(parser, f"none needed for {', '.join(BUNDLED)}")


def _gtsvm(asked: Asked) -> Result:
    measure, _ = gtsvm.FIGURES[asked.figure] if asked.figure else gtsvm.TABLES[asked.table]
    what = {"figure" if asked.figure else "table": asked.figure or asked.table}
    return on_device(asked, what | measure(asked.sets, asked.data, asked.device))


def _tasks_arguments(parser: Parser) -> None:
    add_sets(parser, tuple(TASK_SETS), None, "; all that are there")
    known = tuple(tasks.TASKS)
    parser.add_argument("--tasks", type=names(known), default=list(known), help=f"of {', '.join(known)}")
    add_data(parser, f"none needed for {', '.join(BUNDLED_TASKS)}")
    parser.add_argument("--tol", type=float, default=1e-3, help="KKT tolerance of both (1e-3)")


def _tasks(asked: Asked) -> Result:
    chosen = asked.sets or [name for name in TASK_SETS if asked.data or name in BUNDLED_TASKS]
    options = tasks.Options(tuple(asked.tasks), asked.data, asked.tol, asked.device)
    results = [command.in_own_process(tasks.run, name, options) for name in chosen]
    used = [row["device"] for row in rows_of({"sets": results}) if "device" in row]
    return {"device": next(iter(used), "none"), "sets": results}


def _tasks_hold(result: Result) -> bool:
    failed = any("error" in one for one in result["sets"])
    return not failed and not any(row["error"] or row["misses"] for row in rows_of(result))


def _search_arguments(parser: Parser) -> None:
    parser.add_argument("--grid", choices=tuple(search.GRIDS), default="moderate", help="values of C and gamma")
    parser.add_argument("--rows", type=int, default=8000, help="rows of a9a (8000)")
    add_peers(parser)
    add_repeats(parser, 3, "searches of ours")
    add_data(parser)


def _search(asked: Asked) -> Result:
    found = search.run(asked.grid, asked.rows, asked.peers, asked.data, asked.device, asked.repeats)
    return on_device(asked, found)


def _pairs_arguments(parser: Parser) -> None:
    known = tuple(name for name, one in TASK_SETS.items() if one.target == "classes" and not one.most_dense)
    add_sets(parser, known, ["letter", "pendigits", "mnist7k"])
    add_peers(parser)
    add_repeats(parser, 4, "fits of each solver")
    add_data(parser, "none needed for iris and digits")


def _pairs(asked: Asked) -> Result:
    return on_device(asked, pairs.run(asked.sets, asked.peers, asked.data, asked.device, asked.repeats))


def _layouts_arguments(parser: Parser) -> None:
    add_sets(parser, tuple(SETS), ["synthetic20k"])
    add_repeats(parser, 6, "fits in each layout")
    add_data(parser, f"none needed for {', '.join(BUNDLED)}")


def _layouts(asked: Asked) -> Result:
    return on_device(asked, layouts.run(asked.sets, asked.data, asked.device, asked.repeats))


def _falkon_arguments(parser: Parser) -> None:
    add_sets(parser, tuple(falkon.FALKON_SETS), ["synthetic"])
    add_peers(parser, FALKON_PEERS)
    parser.add_argument("--centers", type=int, default=2000, help="m (2000)")
    parser.add_argument("--rows", type=int, help="rows of a set at most (all)")
    parser.add_argument("--product", action="store_true", help="the product alone, for features 3 to 784")
    add_repeats(parser, 3, "fits of each solver")
    add_data(parser, "none needed for synthetic")


def _falkon(asked: Asked) -> Result:
    if asked.product:
        return on_device(asked, falkon_product.run(asked.peers, asked.device, asked.repeats))
    given = asked.sets, asked.peers, asked.data, asked.device, asked.repeats, asked.centers, asked.rows
    return on_device(asked, falkon.run(*given))


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
        partial(drawn, ladder_plot.draw),
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
        search.holds,
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
        lambda result: all(row["agrees"] for row in rows_of(result)),
    ),
    Command(
        "falkon",
        "machines on centres against the direct solution, or their product against KeOps and NumPy",
        _falkon_arguments,
        _falkon,
        lambda result: falkon.show(result) if "sets" in result else falkon_product.show(result),
        lambda result: "sets" not in result or falkon.holds(result),
    ),
    studies.COMMAND,
    parts.COMMAND,
    busy.COMMAND,
    growth.COMMAND,
    limit.COMMAND,
    predict.COMMAND,
    *(
        Command(name, words, one.add_arguments, one.measure, one.show, one.holds)
        for name, one, words in (
            (
                "outofcore",
                outofcore,
                "Cholesky and LAUUM in tiles by one worker and by two, beside LAPACK in core",
            ),
            ("small", small, "fits of some hundred rows, and answers for one, beside scikit-learn's"),
            ("gallery", gallery, "scikit-learn's example scripts as they are and under clsvm.accel"),
            ("larger", larger, "SVMs of rows that the device may not hold, beside the same in core"),
            ("host", host, "launches and waiting copies of fits on a GPU's profile, counted on a CPU"),
            ("sharded", sharded, "exact SVMs with the rows on Dask's workers, beside one process"),
        )
    ),
)
COMMANDS: dict[str, Command] = {one.name: one for one in _LISTED}
