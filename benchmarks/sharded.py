"""Exact SVMs whose rows are on Dask's workers, beside one process: seconds, objectives, what travels, and a worker that
is killed. Covertype, columns scaled to [0, 1], class 2 against the rest, C = 1, gamma = 1.

On one machine nothing is to be gained: the workers share its cores, one each, with which the process alone works. What
a step costs beside its arithmetic is what a question to all workers takes, which is measured by itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

import clsvm
from benchmarks import check, sets

SLOWER, APART = 1.5, 1e-5  # how much longer shards may take on one machine; how far objectives may be apart
VIOLATION = 1.2  # times tol
SMALL = 400  # rows of a fit that does next to nothing
EMPTY = 50  # questions with nothing in them
WIRE = 1.4e8  # bytes a second to and from the workers, packed and unpacked by Dask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    sets.add_data(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=[20000, 100000], help="of covertype (20000 100000)")
    parser.add_argument("--workers", type=int, nargs="+", default=[2], help="Dask workers of one core each (2)")
    parser.add_argument("--repeats", type=int, default=3, help="fits of each, the cold one included (3)")
    parser.add_argument("--centers", type=int, default=0, help="of a machine on centres over the same rows (0: none)")
    parser.add_argument("--kill", type=int, default=20000, help="a worker is killed in a fit of this many rows (20000)")


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """The command."""
    rows = [_compared(n, asked) for n in asked.rows]
    return {"rows": rows, "killed": _killed(asked.kill, asked) if asked.kill else None}


def covertype(n: int, folder: Path | None) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """X (n, 54) and signs (n,), rows drawn by seed 0; all where n is as many or more."""
    file = (folder or Path()) / "covtype_full.npz"
    if folder is None or not file.exists():
        raise sets.MissingSetError("covtype_full.npz is not there: --data names its folder")
    with np.load(file) as found:
        X, y = found["X"].astype(np.float32), found["y"]
    low, high = X.min(axis=0), X.max(axis=0)
    some = np.random.default_rng(0).permutation(len(X))[:n]
    return ((X - low) / np.where(high > low, high - low, 1))[some], np.where(y[some] == 2, 1, -1).astype(np.int8)


def machine(module: Any, device: Any) -> Any:
    """An SVC of the package or of its Dask part."""
    return module.SVC(C=1.0, gamma=1.0, device=device)


@contextmanager
def workers(count: int) -> Iterator[Any]:
    """A Dask client of so many workers, each on a core of its own as long as there are some."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        cores = sorted(os.sched_getaffinity(0))
        for k, process in enumerate(sorted(client.run(os.getpid).values())):
            for thread in os.listdir(f"/proc/{process}/task"):
                os.sched_setaffinity(int(thread), {cores[k % len(cores)]})
        yield client


def _compared(n: int, asked: argparse.Namespace) -> dict[str, Any]:
    """One process and shards in turns."""
    import dask.array as da

    import clsvm.dask as over_dask

    X, y = covertype(n, asked.data)
    made: dict[str, Any] = {}
    for count in asked.workers:
        with workers(count) as client:
            chunks = -(-len(X) // (2 * count))
            rows, targets = da.from_array(X, chunks=(chunks, X.shape[1])).persist(), da.from_array(y, chunks=chunks)
            one, many = made.setdefault("one process", []), made.setdefault(f"{count} workers", [])
            for _ in range(asked.repeats):
                one.append(_fit(machine(clsvm, asked.device), X, y))
                many.append(_fit(machine(over_dask, asked.device), rows, targets))
                if asked.centers:
                    one[-1]["centers"] = _centers(clsvm, asked, X, y)
                    many[-1]["centers"] = _centers(over_dask, asked, rows, targets)
            many[-1] |= {"question": _question(client, rows), "start": _start(machine(over_dask, asked.device), X, y)}
    contestants = [_row(name, fits, X, y) for name, fits in made.items()]
    for row in contestants[1:]:
        each = row["question"], row["start"]
        row["modelled"] = _modelled(contestants[0]["seconds"], row["steps"], row["bytes"], *each)
        for one in row["centers"]:
            alone = statistics.median(other["seconds"] for other in contestants[0]["centers"][1:])
            one["modelled"] = _modelled(alone, one["passes"], one["bytes"], *each)
    return {"n": len(X), "d": X.shape[1], "contestants": contestants}


def _centers(module: Any, asked: argparse.Namespace, X: Any, y: Any) -> dict[str, Any]:
    """A machine on centres: seconds in all and of the steps, passes over the rows, what travelled."""
    given = {"gamma": 1.0, "penalty": 1e-6, "tol": 1e-3, "random_state": 0, "device": asked.device}
    found = _fit(module.FalkonClassifier(n_centers=asked.centers, **given), X, y)
    report, model = found["model"].fit_report_, found["model"]
    parts = dict(report.seconds)
    made = {"seconds": found["seconds"], "parts": parts, "passes": report.passes, "steps": report.steps}
    return made | {"bytes": getattr(model, "bytes_sent_", {}), "objective": report.objective}


def _modelled(alone: float, steps: int, travelled: dict[str, int], question: float, start: float) -> float:
    """Seconds over workers that share the cores which one process has alone: docs/cost.md."""
    return alone + start + steps * question + sum(travelled.values()) / WIRE


def _start(model: Any, X: Any, y: Any) -> float:
    """Seconds of a fit of next to nothing, over all workers."""
    import dask.array as da

    small = da.from_array(X[:SMALL], chunks=(SMALL // 8, X.shape[1])), da.from_array(y[:SMALL], chunks=SMALL // 8)
    return min(_fit(model, *small)["seconds"] for _ in range(2))


def _fit(model: Any, X: Any, y: Any) -> dict[str, Any]:
    began = perf_counter()
    model.fit(X, y)
    seconds = perf_counter() - began
    print(f"{type(model).__module__}.{type(model).__name__} {X.shape[0]}: {seconds:.2f} s", file=sys.stderr, flush=True)
    return {"seconds": seconds, "model": model}


def _question(client: Any, rows: Any) -> float:
    """Seconds of a question with nothing in it, to all workers."""
    from functools import partial

    from clsvm.dask import rows as chunked
    from clsvm.dask import worker
    from clsvm.dask.executor import on_workers
    from clsvm.dask.svm import ChunkedRows, shard
    from clsvm.kernels import make

    there = ChunkedRows(chunked.gathered(rows[:100], None, None))
    given = make("rbf", gamma=1.0), "dense", None, None
    plan = client.submit(worker.choose, there.chunks.X[0], *given).result()[0]
    build = partial(shard, kernel=given[0], plan=plan, dtype="float32")
    with on_workers(there.chunks, build, there.sizes, None, None) as shards:
        nothing = [()] * len(there.sizes)
        shards.ask("n", nothing)
        began = perf_counter()
        for _ in range(EMPTY):
            shards.ask("n", nothing)
        return (perf_counter() - began) / EMPTY


def _row(name: str, fits: list[dict[str, Any]], X: Any, y: Any) -> dict[str, Any]:
    """The figures of a contestant, its last solution recomputed in float64."""
    model, seconds = fits[-1]["model"], [one["seconds"] for one in fits]
    report = model.fit_report_
    row = {
        "name": name,
        "cold": seconds[0],
        "seconds": statistics.median(seconds[1:] or seconds),
        "dual": report.dual,
        "violation": report.violation,
        "recomputed": _recomputed(model, X, y) if len(X) <= 10**5 else None,
        "steps": report.outer_steps,
        "working_set": report.working_set_size,
        "parts": dict(report.seconds),
        "support": len(model.support_),
        "rows_computed": report.rows_computed,
        "exact_rows": report.exact_rows,
        "centers": [one["centers"] for one in fits if "centers" in one],
    }
    if hasattr(model, "bytes_sent_"):
        count = int(name.split()[0])
        bound = 2 * (row["working_set"] * X.shape[1] + 4 * row["working_set"]) * 4 + (1 << 16)
        sent = sum(model.bytes_sent_.values()) / max(1, row["steps"]) / count
        last = {name: fits[-1][name] for name in ("question", "start")}
        row |= {"bytes_a_step_and_worker": sent, "bound": bound} | last
        row["bytes"] = model.bytes_sent_
    return row


def _recomputed(model: Any, X: Any, y: Any) -> float:
    """The KKT violation in float64, of the coefficients alone."""
    kernel = check.kernel("rbf", gamma=1.0)
    coef, offset = check.full_coef(model, len(X)), float(np.ravel(model.intercept_)[0])
    return float(check.recompute(X.astype(np.float64), y, 1.0, coef, offset, kernel).violation)


def _killed(n: int, asked: argparse.Namespace) -> dict[str, Any]:
    """A worker of two is killed (-9) in the middle of a fit."""
    import dask.array as da

    import clsvm.dask as over_dask

    X, y = covertype(n, asked.data)
    undisturbed = machine(clsvm, asked.device).fit(X, y)
    with workers(2) as client:
        chunks = -(-len(X) // 4)
        rows, targets = da.from_array(X, chunks=(chunks, X.shape[1])), da.from_array(y, chunks=chunks)
        alone = _fit(machine(over_dask, asked.device), rows, targets)["seconds"]
        alone = min(alone, _fit(machine(over_dask, asked.device), rows, targets)["seconds"])
        victim = next(iter(client.run(os.getpid).values()))
        timer = threading.Timer(alone / 2, os.kill, (victim, signal.SIGKILL))
        timer.start()
        found = _fit(machine(over_dask, asked.device), rows, targets)
        timer.join()
    report = found["model"].fit_report_
    return {
        "n": n,
        "seconds": found["seconds"],
        "undisturbed": alone,
        "dual": report.dual,
        "of_one_process": undisturbed.fit_report_.dual,
        "violation": report.violation,
        "recomputed": _recomputed(found["model"], X, y),
        "status": report.status,
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether objectives agree, violations are within the tolerance, and no more travels than it may."""
    tol = 1e-3 * VIOLATION
    for one in result["rows"]:
        best = max(row["dual"] for row in one["contestants"])
        for row in one["contestants"]:
            apart = best - row["dual"] > APART * abs(best) or (row["recomputed"] or 0.0) > tol
            if apart or row.get("bytes_a_step_and_worker", 0) > row.get("bound", np.inf):
                return False
    killed = result["killed"]
    return not killed or (
        abs(killed["dual"] - killed["of_one_process"]) <= APART * killed["dual"] and killed["recomputed"] <= tol
    )


def show(result: dict[str, Any]) -> Table:
    """A row for each contestant."""
    killed = result["killed"]
    words = "shards on one machine share its cores: no gain is to be had"
    if killed:
        same = abs(killed["dual"] / killed["of_one_process"] - 1)
        words += (
            f"\nkilled at half time, {killed['n']} rows: {killed['seconds']:.2f} s for {killed['undisturbed']:.2f}, "
        )
        words += f"dual {same:.0e} apart, violation {killed['recomputed']:.1e}"
    table = Table(title="covertype, C = 1, gamma = 1: rows in one process and on Dask's workers", caption=words)
    titles = (
        "rows",
        "",
        "cold s",
        "s",
        "times",
        "by docs/cost.md",
        "dual",
        "violation",
        "steps",
        "KB a step and worker",
        "bound",
        "question ms",
    )
    for title in titles:
        table.add_column(title, justify="right")
    for one in result["rows"]:
        first = one["contestants"][0]["seconds"]
        for row in one["contestants"]:
            sent, bound, question = (row.get(key) for key in ("bytes_a_step_and_worker", "bound", "question"))
            found = row["violation"] if row["recomputed"] is None else row["recomputed"]
            table.add_row(
                str(one["n"]),
                row["name"],
                f"{row['cold']:.2f}",
                f"{row['seconds']:.2f}",
                f"{row['seconds'] / first:.2f}",
                f"{row['modelled']:.2f}" if "modelled" in row else "",
                f"{row['dual']:.8g}",
                f"{found:.1e}",
                str(row["steps"]),
                f"{sent / 1e3:.0f}" if sent else "",
                f"{bound / 1e3:.0f}" if bound else "",
                f"{1e3 * question:.1f}" if question else "",
            )
    return table
