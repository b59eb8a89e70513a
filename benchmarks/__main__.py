"""The benchmarks' command line."""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu import command as gpu
from benchmarks.gpu import summary

if __name__ == "__main__" and sys.argv[1:2] == ["gpu"]:  # its machines may have nothing of what the others import
    sys.exit(gpu.main(sys.argv[2:]))

from rich.console import Console

from benchmarks import environment, gtsvm, ladder, ladder_plot, layouts, pairs, search, table, tasks, tasks_table
from benchmarks.fit import Options, fit_set
from benchmarks.sets import BUNDLED, BUNDLED_TASKS, SETS, TASK_SETS, MissingSetError
from clsvm import files
from clsvm.opencl import devices

PEERS = ("libsvm", "onedal")


def main(argv: list[str] | None = None) -> int:
    """Runs one of the commands; 0 when every row of ours counts and every rung is right, 1 otherwise; 1, and
    what it is, where a data set, a file or a package is missing."""
    options = _parser().parse_args(argv)
    try:
        return COMMANDS[options.command](options)
    except (FileNotFoundError, ModuleNotFoundError, MissingSetError) as error:
        hint = " (pip install scikit-learn-intelex)" if getattr(error, "name", "") == "sklearnex" else ""
        print(f"python -m benchmarks: error: {error}{hint}", file=sys.stderr)
        return 1


def _table(options: argparse.Namespace) -> int:
    result = json.loads(options.file.read_text())
    shown = SHOWN[result.get("kind", "fit")](result)
    print(shown) if isinstance(shown, str) else _console().print(shown)
    return 0


def _fit(options: argparse.Namespace) -> int:
    asked = Options(
        peers=tuple(options.peers),
        data=options.data,
        repeats=options.repeats,
        repeats_libsvm=options.repeats_libsvm,
        tol=options.tol,
        cache_mb=options.cache,
        device=options.device,
    )
    results = [_in_own_process(fit_set, name, asked) for name in options.sets]
    reports = [row["report"] for one in results for row in one.get("rows", []) if "report" in row]
    result = _head() | {"device": str(reports[0]["device"]) if reports else "none", "sets": results}
    console = _console()
    console.print(table.terminal(result))
    _write(result, options.out, console)
    ours = [row for one in results for row in one.get("rows", []) if row["solver"] == "clsvm"]
    return 0 if len(ours) == len(results) and not any(row["error"] or row["misses"] for row in ours) else 1


def _ladder(options: argparse.Namespace) -> int:
    if options.plot:
        ladder_plot.library()  # better missed now than after minutes of measuring
    result = _head() | ladder.run(options.device, ladder.SIZES[options.sizes])
    console = _console()
    console.print(ladder.terminal(result))
    _write(result, options.out, console)
    if options.plot:
        ladder_plot.draw(result, options.plot)
        console.print(f"drawn to {options.plot}", soft_wrap=True)
    return 0 if ladder.all_right(result) else 1


def _gtsvm(options: argparse.Namespace) -> int:
    measure, _ = gtsvm.FIGURES[options.figure] if options.figure else gtsvm.TABLES[options.table]
    what = {"kind": "gtsvm", "figure" if options.figure else "table": options.figure or options.table}
    found = measure(options.sets, options.data, options.device)
    result = _head() | {"device": str(devices.find(options.device))} | what | found
    console = _console()
    console.print(gtsvm.show(result))
    _write(result, options.out, console)
    return 0


def _search(options: argparse.Namespace) -> int:
    found = search.run(options.grid, options.rows, options.peers, options.data, options.device, options.repeats)
    result = _head() | {"device": str(devices.find(options.device)), "kind": "search"} | found
    console = _console()
    console.print(search.show(result))
    _write(result, options.out, console)
    return 0 if all(row["apart"] <= 0.002 for row in result["rows"]) else 1


def _layouts(options: argparse.Namespace) -> int:
    found = layouts.run(options.sets, options.data, options.device, options.repeats)
    result = _head() | {"device": str(devices.find(options.device)), "kind": "layouts"} | found
    console = _console()
    console.print(layouts.show(result))
    _write(result, options.out, console)
    return 0 if all(row["agrees"] for one in result["sets"] for row in one["rows"]) else 1


def _pairs(options: argparse.Namespace) -> int:
    found = pairs.run(options.sets, options.peers, options.data, options.device, options.repeats)
    result = _head() | {"device": str(devices.find(options.device)), "kind": "pairs"} | found
    console = _console()
    console.print(pairs.show(result))
    _write(result, options.out, console)
    return 1 if any(one["rows"][0]["misses"] for one in result["sets"]) else 0


def _tasks(options: argparse.Namespace) -> int:
    names = options.sets or [name for name in TASK_SETS if options.data or name in BUNDLED_TASKS]
    asked = tasks.Options(tuple(options.tasks), options.data, options.tol, options.device)
    results = [_in_own_process(tasks.run, name, asked) for name in names]
    rows = [row for one in results for row in one.get("rows", [])]
    devices_used = [row["device"] for row in rows if "device" in row]
    result = _head() | {"kind": "tasks", "device": next(iter(devices_used), "none"), "sets": results}
    console = _console()
    console.print(table.terminal(result, tasks_table.LAYOUT))
    _write(result, options.out, console)
    good = not any("error" in one for one in results) and not any(row["error"] or row["misses"] for row in rows)
    return 0 if good else 1


def _head() -> dict[str, Any]:
    """What every result file begins with."""
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "device": "none",
        "devices": _devices(),
        "machine": environment.machine(),
        "versions": environment.versions(),
    }


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 200)


def _write(result: dict[str, Any], out: Path | None, console: Console) -> None:
    """The result as JSON, where a file is named."""
    if out is None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(out) as stream:
        stream.write(f"{json.dumps(result, indent=1)}\n".encode())
    console.print(f"written to {out}", soft_wrap=True)


def _in_own_process(measure: Callable[[str, Any], dict[str, Any]], name: str, options: Any) -> dict[str, Any]:
    """One set in a fresh process: its first fit is cold, and its memory goes back. A set that fails says why."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure, name, options).result()
        except Exception as error:
            return {"set": name, "n": 0, "d": 0, "error": f"{type(error).__name__}: {error}"}


def _devices() -> list[dict[str, Any]]:
    """Every OpenCL device as clsvm sees it, with driver and limits."""
    import dataclasses

    import clsvm

    return [dataclasses.asdict(device) for device in clsvm.devices()]


def _names(known: tuple[str, ...]) -> Any:
    """An argparse type: a comma-separated list of known names."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown name {name!r}; there are {', '.join(known)}")
        return names

    return parse


def _add_data(parser: argparse.ArgumentParser, words: str = "") -> None:
    named = os.environ.get("CLSVM_DATA")
    words = "; ".join(part for part in ("folder of the data sets (else that of CLSVM_DATA)", words) if part)
    parser.add_argument("--data", type=Path, default=Path(named) if named else None, help=words)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="FILE", help="the JSON file of all figures; default: none")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fit = commands.add_parser("fit", help="fit data sets with clsvm and its peers, check and time every fit")
    fit.add_argument("--sets", type=_names(tuple(SETS)), default=list(BUNDLED[1:]), help=f"of {', '.join(SETS)}")
    fit.add_argument("--peers", type=_names(PEERS), default=[], help=f"of {', '.join(PEERS)}")
    _add_data(fit, f"none needed for {', '.join(BUNDLED)}")
    fit.add_argument("--repeats", type=int, default=3, help="fits of each solver, the cold one included (3)")
    fit.add_argument("--repeats-libsvm", type=int, default=1, help="fits of LIBSVM (1)")
    fit.add_argument("--tol", type=float, default=1e-3, help="KKT tolerance (1e-3)")
    fit.add_argument("--cache", type=float, default=2000, metavar="MB", help="kernel cache of every solver (2000)")
    fit.add_argument("--device", help="as clsvm.SVC takes it")
    _add_out(fit)
    rungs = commands.add_parser(
        "ladder", help="kernel rows in ever better ways, and reductions, against the device's peaks"
    )
    rungs.add_argument("--device", help="as clsvm.SVC takes it")
    rungs.add_argument("--sizes", choices=tuple(ladder.SIZES), default="full", help="full takes some minutes")
    _add_out(rungs)
    rungs.add_argument("--plot", type=Path, help="a picture to draw, .png; needs matplotlib")
    paper = commands.add_parser("gtsvm", help="the tables of GTSVM's paper, ours beside the paper's figures")
    which = paper.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--table", type=int, choices=tuple(gtsvm.TABLES), help="2: clustering, 3: two classes, 4: more classes"
    )
    which.add_argument("--figure", type=int, choices=tuple(gtsvm.FIGURES), help="2: where the time goes")
    paper.add_argument("--sets", type=_names(tuple(SETS)), default=list(gtsvm.SETS), help=f"of {', '.join(SETS)}")
    _add_data(paper, f"none needed for {', '.join(BUNDLED)}")
    paper.add_argument("--device", help="as clsvm.SVC takes it")
    _add_out(paper)
    every = commands.add_parser("tasks", help="SVC, NuSVC, SVR, NuSVR and OneClassSVM against scikit-learn's")
    every.add_argument("--sets", type=_names(tuple(TASK_SETS)), help=f"of {', '.join(TASK_SETS)}; all that are there")
    every.add_argument(
        "--tasks", type=_names(tuple(tasks.TASKS)), default=list(tasks.TASKS), help=f"of {', '.join(tasks.TASKS)}"
    )
    _add_data(every, f"none needed for {', '.join(BUNDLED_TASKS)}")
    every.add_argument("--tol", type=float, default=1e-3, help="KKT tolerance of both (1e-3)")
    every.add_argument("--device", help="as clsvm.SVC takes it")
    _add_out(every)
    folds = commands.add_parser("search", help="a grid search on a9a by SVCSearchCV and by GridSearchCV over the peers")
    folds.add_argument("--grid", choices=tuple(search.GRIDS), default="moderate", help="values of C and gamma")
    folds.add_argument("--rows", type=int, default=8000, help="rows of a9a (8000)")
    folds.add_argument("--peers", type=_names(PEERS), default=[], help=f"of {', '.join(PEERS)}")
    folds.add_argument("--repeats", type=int, default=3, help="searches of ours, the cold one included (3)")
    _add_data(folds)
    folds.add_argument("--device", help="as clsvm.SVC takes it")
    _add_out(folds)
    classes = commands.add_parser("pairs", help="a machine for each pair of classes, by clsvm and its peers in turns")
    known = tuple(name for name, one in TASK_SETS.items() if one.target == "classes" and not one.most_dense)
    classes.add_argument("--sets", type=_names(known), default=["letter", "pendigits"], help=f"of {', '.join(known)}")
    classes.add_argument("--peers", type=_names(PEERS), default=[], help=f"of {', '.join(PEERS)}")
    classes.add_argument("--repeats", type=int, default=4, help="fits of each solver, the cold one included (4)")
    _add_data(classes, "none needed for iris and digits")
    classes.add_argument("--device", help="as clsvm.SVC takes it")
    _add_out(classes)
    forms = commands.add_parser("layouts", help="the same fits with rows dense, clustered and as CSR, in turns")
    forms.add_argument("--sets", type=_names(tuple(SETS)), default=["synthetic20k"], help=f"of {', '.join(SETS)}")
    forms.add_argument("--repeats", type=int, default=6, help="fits in each layout, the cold one included (6)")
    _add_data(forms, f"none needed for {', '.join(BUNDLED)}")
    forms.add_argument("--device", help="as clsvm.SVC takes it")
    _add_out(forms)
    gpu.add_arguments(commands.add_parser("gpu", help=gpu.HELP))
    show = commands.add_parser("table", help="print a result file as a markdown table")
    show.add_argument("file", type=Path)
    return parser


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "fit": _fit,
    "ladder": _ladder,
    "gtsvm": _gtsvm,
    "tasks": _tasks,
    "search": _search,
    "pairs": _pairs,
    "layouts": _layouts,
    "gpu": gpu.run,
    "table": _table,
}
SHOWN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "fit": table.markdown,
    "ladder": ladder.markdown,
    "gtsvm": gtsvm.show,
    "search": search.show,
    "pairs": pairs.show,
    "layouts": layouts.show,
    "tasks": lambda result: table.markdown(result, tasks_table.LAYOUT),
    "gpu": summary.markdown,
}
"""By the kind of a result: text for a page, or what the console draws."""

if __name__ == "__main__":
    sys.exit(main())
