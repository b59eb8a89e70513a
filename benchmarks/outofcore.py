"""Figure 7 of Falkon's paper (Meanti et al. 2020): Cholesky and LAUUM in tiles by one worker and by two, by the size of
the matrix, beside LAPACK in core.

Two workers are two queues and two halves of one device, or two devices where they are named.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray
from rich.table import Table

from clsvm import linalg
from clsvm.linalg.factors import usual_tile
from clsvm.opencl import devices

SIZES = (2000, 4000, 6000, 8000, 12000)
ROUTINES: dict[str, Callable[..., Any]] = {
    "cholesky": lambda A, **where: linalg.cholesky(A, overwrite_a=True, clean=False, **where),
    "lauum": lambda A, **where: linalg.lauum(A, overwrite=True, clean=False, **where),
}


LIMITS = {"float32": 1e-5, "float64": 1e-13}  # of what a factor is off by


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    words = f"rows of the matrices ({' '.join(map(str, SIZES))})"
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="M", help=words)
    parser.add_argument("--dtypes", nargs="+", choices=tuple(LIMITS), default=list(LIMITS), help="of them (all)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each after the first (3)")


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """The command; --device may name several, with commas."""
    return run(asked.device, asked.sizes, asked.dtypes, asked.repeats)


def run(named: str | None, sizes: Sequence[int], dtypes: Sequence[str], repeats: int) -> dict[str, Any]:
    """Seconds of each routine, size and dtype: the median of ``repeats`` runs in turns, after a first."""
    given: list[Any] = named.split(",") if named else [None]
    teams = dict(_teams(given))
    rows = []
    for dtype in dtypes:
        for m in sizes:
            A = matrix(m, dtype)
            for name, routine in ROUTINES.items():
                rows.append({"routine": name, "dtype": dtype, "m": m} | _timed(routine, A, teams, repeats))
    return {"device": str(devices.find(given[0])), "workers": list(teams), "named": given, "rows": rows}


def matrix(m: int, dtype: str) -> NDArray[Any]:
    """Symmetric and well conditioned, without a factorisation to make it."""
    A = np.random.default_rng(m).random((m, m), np.float32).astype(dtype)
    A += A.T
    np.fill_diagonal(A, m)
    return A


def _teams(given: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The contestants: what they are told."""
    yield "LAPACK", {"device": "cpu"}
    yield "one", {"device": given[:1]}
    if len(given) > 1:
        yield "all devices", {"device": given}
        return
    yield "two queues", {"device": 2 * given}
    info = devices.find(given[0])
    whole = devices.handle(given[0], info)
    if whole.partition_properties and whole.max_compute_units > 1:
        yield "two halves", {"device": halves(whole)}


def halves(whole: cl.Device) -> list[cl.Device]:
    """Two parts of a device."""
    shares: Any = [cl.device_partition_property.EQUALLY, whole.max_compute_units // 2]
    return whole.create_sub_devices(shares)[:2]


def _timed(routine: Callable[..., Any], A: NDArray[Any], teams: dict[str, Any], repeats: int) -> dict[str, Any]:
    """seconds of each team; same: whether all that work in tiles had the same bits; apart: from LAPACK's result."""
    spent: dict[str, list[float]] = {name: [] for name in teams}
    found: dict[str, NDArray[Any]] = {}
    tile = min(len(A), usual_tile(len(A)))
    for turn in range(repeats + 1):
        for name, where in teams.items():
            own = A.copy()
            began = perf_counter()
            routine(own, tile=None if name == "LAPACK" else tile, **where)
            spent[name].append(perf_counter() - began)
            if not turn:
                found[name] = np.triu(own)
    one, reference = found["one"], found["LAPACK"]
    return {
        "tile": tile,
        "seconds": {name: statistics.median(seconds[1:]) for name, seconds in spent.items()},
        "cold": {name: seconds[0] for name, seconds in spent.items()},
        "same": all(np.array_equal(one, other) for name, other in found.items() if name != "LAPACK"),
        "apart": float(np.linalg.norm(one - reference) / np.linalg.norm(reference)),
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether all that work in tiles have the same bits, which are LAPACK's result up to rounding."""
    return all(row["same"] and row["apart"] <= LIMITS[row["dtype"]] for row in result["rows"])


def show(result: dict[str, Any]) -> Table:
    """A row for each routine, dtype and size; a speedup over one worker for each team of two."""
    teams = result["workers"]
    words = "one device by itself: two workers share its cores, no speedup is to be had"
    if len(result["named"]) == 1:
        words += "\nof two devices: python -m benchmarks outofcore --device gpu:0,gpu:1"
    table = Table(title="U'U = A and U U', m x m, in tiles: seconds", caption=words)
    titles = "routine", "dtype", "m", "tile", *teams, "of LAPACK's rate", *(f"{name}, speedup" for name in teams[2:])
    for title in titles:
        table.add_column(title, justify="right")
    for row in result["rows"]:
        s = row["seconds"]
        gains = (f"{s['one'] / s[name]:.2f}" for name in teams[2:])
        cells = *(f"{s[name]:.3g}" for name in teams), f"{s['LAPACK'] / s['one']:.2f}", *gains
        table.add_row(row["routine"], row["dtype"], str(row["m"]), str(row["tile"]), *cells)
    return table
