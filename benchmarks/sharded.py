"""Exact SVMs with the rows on Dask's workers beside one process: seconds and objectives.

The data are covertype's, columns scaled to [0, 1], class 2 against the others, with C = 1 and gamma = 1. The workers of
one computer share its cores, so they are not faster than one process. An outer iteration costs its arithmetic and a
request to all workers, which is measured separately.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import clsvm
from benchmarks import check, solvers, table
from benchmarks.command import DATA, Asked, Command, Part, number, option, repeats
from benchmarks.sets import Problem, covertype
from benchmarks.solvers import fields_of, interleaved, later
from benchmarks.table import Row, Shown, shown

SMALL = 400  # rows of a fit whose time is the start of the workers
EMPTY = 50  # empty requests
WIRE = 1.4e8  # bytes a second to and from the workers, with Dask's serialisation
STEP_BYTES = 700_000  # bytes to and from a worker in an outer iteration of an SVM


def measure(asked: Asked) -> Row:
    """Compare one process and shards for each number of rows."""
    return {"rows": [_compared(n, asked) for n in asked.rows]}


@contextmanager
def workers(count: int) -> Iterator[None]:
    """Start ``count`` Dask workers, spread over the cores, for the context."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        cores = sorted(os.sched_getaffinity(0))
        for k, process in enumerate(sorted(client.run(os.getpid).values())):
            for thread in os.listdir(f"/proc/{process}/task"):
                os.sched_setaffinity(int(thread), {cores[k % len(cores)]})
        yield


def _chunked(X: Any, y: Any, chunks: int) -> tuple[Any, Any]:
    import dask.array as da

    size = -(-len(X) // chunks)
    return da.from_array(X, chunks=(size, X.shape[1])), da.from_array(y, chunks=size)


def _fit(asked: Asked, module: Any, X: Any, y: Any) -> Any:
    """Fit an SVC of the module clsvm or clsvm.dask."""
    return module.SVC(C=1.0, gamma=1.0, device=asked.device).fit(X, y)


def _compared(n: int, asked: Asked) -> Row:
    """Return a row for one process and for each number of workers, from interleaved fits of n rows."""
    import clsvm.dask as over_dask

    X, y = covertype(n, asked.data)
    spent: dict[str, list[float]] = {}
    centers: dict[str, list[Row]] = {}
    models, more = dict[str, Any](), dict[str, Row]()
    for count in asked.workers:
        name = f"{count} workers"
        with workers(count):
            rows, targets = _chunked(X, y, 2 * count)
            rows = rows.persist()
            given = {"one process": (clsvm, X, y), name: (over_dask, rows, targets)}
            fits = interleaved({who: partial(_fit, asked, *some) for who, some in given.items()}, asked.repeats)
            for who, (seconds, models[who]) in fits.items():
                spent.setdefault(who, []).extend(seconds)
            for who, some in [*given.items()] * (asked.repeats if asked.centers else 0):
                centers.setdefault(who, []).append(_centers(asked, *some))
            small = partial(_fit, asked, over_dask, *_chunked(X[:SMALL], y[:SMALL], 8))
            more[name] = {
                "question": _request_seconds(rows),
                "start": min(interleaved({"small": small}, 2)["small"][0]),
            }
    contestants = [_row(who, spent[who], models[who], X, y) | {"centers": centers.get(who, [])} for who in spent]
    for row in contestants[1:]:
        _model(row, contestants[0], more[row["name"]], asked.centers)
    return {"n": len(X), "d": X.shape[1], "contestants": contestants}


def _model(row: Row, alone: Row, measured: Row, centers: int) -> None:
    """Add the seconds predicted by the formulas of docs/many_devices.md."""
    count = int(row["name"].split()[0])
    row |= measured
    own = later([other["seconds"] for other in alone["centers"]]) if row["centers"] else 0.0
    steps = [(row, alone["seconds"], row["steps"], STEP_BYTES)]
    steps += [(one, own, one["passes"], 16 * centers) for one in row["centers"]]
    for one, seconds, questions, nbytes in steps:
        travelled = questions * count * nbytes / WIRE
        one["modelled"] = seconds + measured["start"] + questions * measured["question"] + travelled


def _centers(asked: Asked, module: Any, X: Any, y: Any) -> Row:
    """Return the seconds of a Nyström kernel machine and of its parts, and its passes over the rows."""
    given = {"gamma": 1.0, "penalty": 1e-6, "tol": 1e-3, "random_state": 0, "device": asked.device}
    model = module.FalkonClassifier(n_centers=asked.centers, **given)
    seconds = solvers.fitted(module.__name__, model, X, y)
    report = model.fit_report_
    made = {"seconds": seconds, "parts": dict(report.seconds), "passes": report.passes, "steps": report.steps}
    return made | {"objective": report.objective}


def _request_seconds(rows: Any) -> float:
    """Return the seconds of an empty request to all workers."""
    from clsvm.dask.executor import OnWorkers
    from clsvm.dask.rows import checked_chunks
    from clsvm.dask.svm import ShardedRows, shard
    from clsvm.kernels import make
    from clsvm.parameters import Options

    there, kernel, options = ShardedRows(checked_chunks(rows[:100])), make("rbf", gamma=1.0), Options(layout="dense")
    build = partial(shard, kernel=kernel, plan=there.planned(kernel, options)[0], dtype="float32")
    with closing(OnWorkers(there.chunks, build, there.sizes, None, None)) as shards:
        nothing = [()] * len(there.sizes)
        shards.call("n", nothing)
        began = perf_counter()
        for _ in range(EMPTY):
            shards.call("n", nothing)
        return (perf_counter() - began) / EMPTY


def _row(name: str, seconds: list[float], model: Any, X: Any, y: Any) -> Row:
    report, checked = model.fit_report_, _violation(model, X, y) if len(X) <= 10**5 else None
    kept = fields_of(report, "dual", "violation", "rows_computed", "exact_rows") | {"steps": report.outer_steps}
    kept |= {"working_set": report.working_set_size, "parts": dict(report.seconds), "support": len(model.support_)}
    return {"name": name, "cold": seconds[0], "seconds": later(seconds), "recomputed": checked, **kept}


def _violation(model: Any, X: Any, y: Any) -> float:
    """Return the KKT violation, computed in float64 from the coefficients alone."""
    return check.solved(model, Problem("covertype", X, y, None, y, 1.0, 1.0))["violation"]


def holds(result: Row) -> bool:
    """Return whether objectives agree, and violations are within the tolerance."""
    tol, groups = check.VIOLATION * solvers.TOL, [one["contestants"] for one in result["rows"]]
    return all(
        max(other["dual"] for other in group) - row["dual"] <= check.DUAL * abs(row["dual"])
        and (row["recomputed"] or 0.0) <= tol
        for group in groups
        for row in group
    )


def _show(result: Row) -> Shown:
    rows = [row | {"n": str(one["n"]), "one": one} for one in result["rows"] for row in one["contestants"]]
    columns: tuple[table.Column, ...] = (
        ("rows", "{n}"), ("", "{name}"), ("cold s", "{cold:.2f}"), ("s", "{seconds:.2f}"),
        ("times", lambda row: f"{row['seconds'] / row['one']['contestants'][0]['seconds']:.2f}"),
        ("by docs/many_devices.md", "{modelled:.2f}"), ("dual", "{dual:.8g}"),
        ("violation", lambda row: f"{row['violation'] if row['recomputed'] is None else row['recomputed']:.1e}"),
        ("steps", "{steps}"),
        ("KB a step and worker", lambda row: f"{row['bytes_a_step_and_worker'] / 1e3:.0f}"),  # in older results
        ("question ms", lambda row: f"{1e3 * row['question']:.1f}"),
    )  # fmt: skip
    title = "covertype, C = 1, gamma = 1: rows in one process and on Dask's workers, which share the cores"
    return shown(title, columns, rows, left=2)


COMMAND = Command(
    "sharded",
    "exact SVMs with the rows on Dask's workers, beside one process",
    (
        DATA,
        option("--rows", type=int, nargs="+", default=[20000, 100000], help="of covertype"),
        option("--workers", type=int, nargs="+", default=[2], help="numbers of Dask workers of one core each"),
        repeats(3),
        number("--centers", 0, "inducing points of a Nyström kernel machine of the same rows; 0: none"),
    ),
    Part(measure, _show, holds),
)
