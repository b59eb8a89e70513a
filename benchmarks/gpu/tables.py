"""The tables of a run of the command: the cells of each, from the records of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Record = dict[str, Any]
Cells = list[tuple[str, ...]]


def first(text: str) -> str:
    """The first line of a text."""
    return text.strip().partition("\n")[0][:200]


def tera(gflops: float) -> str:
    """GFLOP/s as TFLOP/s."""
    return f"{gflops / 1000:.3g}"


def percent(share: float) -> str:
    """A share as percent."""
    return f"{100 * share:.0f} %"


TRAIN = (
    "set",
    "n x d",
    "first s",
    "later s",
    "status",
    "gap",
    "violation",
    "bound",
    "exact rows",
    "SVs",
    "test %",
    "W",
)


def trained(record: Record) -> Cells:
    """A fit of a set, under TRAIN."""
    got, n = record["report"], record["n"]
    size = f"{n} x {record['d']}" + (f" of {record['of']}" if n < record["of"] else "")
    gap, violation, bound = (f"{got[name]:.1e}" if got[name] is not None else "-" for name in _CERTIFICATE)
    mark = "!" if False in record.get("checked", {}).values() else ""
    later = f"{min(record['warm']):.3g}" if record.get("warm") else "-"
    return [(
        record["what"] + mark, size, f"{record['cold']:.3g}", later,
        "converged" if got["converged"] else "not converged", gap, violation, bound, str(got["exact_rows"]),
        str(record["n_support"]), f"{100 * record['accuracy']:.2f}" if "accuracy" in record else "-",
        str(got["working_set_size"]),
    )]  # fmt: skip


_CERTIFICATE = "gap", "violation", "error_bound"
_PARTS = ("clustering", "selection", "gram", "subproblem", "update", "other")


def _parts(record: Record) -> Cells:
    got, total = record["parts"], sum(record["parts"].values())
    return [(record["what"], f"{total:.3g}", *(f"{got[part]:.3g} ({percent(got[part] / total)})" for part in _PARTS))]


_KERNELS = "set", "kernel", "launches", "s", "of all", "longest us", "private bytes", "local bytes", "largest group"


def _kernel_rows(record: Record) -> Cells:
    return [
        (
            record["set"], one["kernel"], str(one["launches"]), f"{one['seconds']:.3g}",
            percent(one["seconds"] / record["busy"]), f"{1e6 * one['longest']:.0f}",
            *(str(one[name]) for name in ("private", "local", "largest_group")),
        )
        for one in record["kernels"]
    ]  # fmt: skip


def _peak_rows(record: Record) -> Cells:
    got = record["peaks"]
    rows: Cells = [
        ("float32 multiply-adds", f"{tera(got['fma_gflops'])} TFLOP/s, {got['fma_shape']}"),
        ("reads", f"{got['read_gbs']:.1f} GB/s, {got['read_shape']}"),
    ]
    if "local" in record:
        rows.append(("reads of local memory", f"{record['local']['gbs']:.0f} GB/s, {record['local']['shape']}"))
    rows += [(name, f"{spent:.2f} us") for name, spent in record.get("microseconds", {}).items()]
    copies = record.get("copies_gbs", {})
    return rows + [
        (f"copies {name}", rate if isinstance(rate, str) else f"{rate:.2f} GB/s") for name, rate in copies.items()
    ]


def _trial_rows(record: Record) -> Cells:
    rows: Cells = []
    for one in record["trials"]:
        if "right" not in one:
            rows.append(
                (one["trial"], "lacking" if "lacking" in one else "NOT BUILT", "", "", first(one.get("log", "")))
            )
            continue
        rate = f"{one['tflops']:.3g}" if "tflops" in one else ""
        words = "right" if one["right"] else "WRONG"
        rows.append((one["trial"], words, f"{one['nanoseconds']:.1f}", rate, first(one["log"])))
    return rows


def _product_rows(record: Record) -> Cells:
    rows: Cells = []
    for one in record["products"]:
        tile = " ".join(f"{name} {value}" for name, value in one["tile"].items()) + " *" * one["usual"]
        head = str(one["d"]), str(one["W"]), str(one["n"]), "rows" if one["stored"] else "update", tile
        if "refused" in one:
            rows.append((*head, first(one["refused"]), "", "", ""))
            continue
        rates = f"{tera(one['gflops'])}{'' if one['right'] else '!'}", percent(one["of_arithmetic"])
        rows.append((*head, *rates, f"{one['gbs']:.1f}", percent(one["of_bandwidth"])))
    return rows


def _layout_rows(record: Record) -> Cells:
    rows: Cells = []
    for one in record["layouts"]:
        size = f"{one['n']} x {one['d']}, {one['entries']:.0f} a row"
        head = one["set"], size, str(one["W"]), one["layout"] + " *" * one["chosen"]
        if "refused" in one:
            rows.append((*head, "", first(one["refused"]), "", ""))
            continue
        product = ("rows" if one["stored"] else "update") + "!" * (not one["right"])
        rows.append((*head, product, f"{1e6 * one['seconds']:.1f}", f"{one['gflops']:.4g}", f"{one['estimate']:.3g}"))
    return rows


def _pass_rows(record: Record) -> Cells:
    return [
        (
            str(one["n"]), str(one["m"]), str(one["d"]), str(one["k"]), f"{1e3 * one['seconds']:.2f}",
            tera(one["gflops"]) + "!" * (not one["right"]), percent(one["of_arithmetic"]),
        )
        for one in record["passes"]
    ]  # fmt: skip


def _machine_rows(record: Record) -> Cells:
    return [
        (
            one["set"], f"{one['n']} x {one['d']}", str(one["m"]), f"{one['cold']:.3g}", f"{one['warm']:.3g}",
            *(f"{one['parts'].get(part, 0.0):.3g}" for part in _OF_CENTRES), str(one["passes"]),
            one["status"].partition(":")[0], f"{100 * one['accuracy']:.2f}",
        )
        for one in record["machines"]
    ]  # fmt: skip


def _peer_rows(record: Record) -> Cells:
    def shown(value: float | None, words: str) -> str:
        return "-" if value is None else format(value, words)

    return [
        (
            one["set"], one["solver"], shown(one["first"], ".3g"), shown(one["seconds"], ".3g"), one["stop"],
            shown(one["dual"], "g"),
        )
        for one in record["peers"]
    ]  # fmt: skip


_OF_CENTRES = ("layout", "preconditioner", "solve")


def _reduction_rows(record: Record) -> Cells:
    return [
        (
            str(one["n"]), one["name"] + "!" * (not one["right"]), f"{1e6 * one['seconds']:.1f}", f"{one['gbs']:.1f}",
            percent(one["of_bandwidth"]),
        )
        for one in record["reductions"]
    ]  # fmt: skip


def _choice_rows(record: Record) -> Cells:
    return [(str(one["n"]), str(one["W"]), f"{one['look']:.1f}", f"{one['choose']:.1f}") for one in record["choices"]]


_OF_A_SET = ("select", "tile", "subproblem", "update", "rows")


def _step_rows(record: Record) -> Cells:
    return [
        (
            str(one["W"]), str(one["steps"]), str(one["working_sets"]), f"{one['microseconds']:.3f}",
            *(f"{one['of_a_set'][part]:.0f}" for part in _OF_A_SET),
        )
        for one in record["subproblems"]
    ]  # fmt: skip


def _smoke_rows(record: Record) -> Cells:
    return [
        (
            one["fit"], "as LIBSVM's" if one["right"] else "WRONG", f"{one.get('difference') or float('nan'):.1e}",
            f"{one['seconds']:.2f}", first(one.get("error", "")),
        )
        for one in record["fits"]
    ]  # fmt: skip


def _suite_rows(record: Record) -> Cells:
    counts = record["tests"]
    return [(record["step"], str(record["collected"]), *(str(counts.get(name, 0)) for name in OUTCOMES))]


OUTCOMES = ("passed", "skipped", "lacking", "failed", "error", "crashed", "hung")
_PRODUCTS = ("d", "W", "n", "product", "tile", "TFLOP/s", "of multiply-adds", "GB/s", "of bandwidth")
TABLES: tuple[tuple[str, str, tuple[str, ...], Callable[[Record], Cells]], ...] = (
    ("Training", "train", TRAIN, trained),
    ("Peers", "by_hand", ("set", "solver", "first s", "later s", "stops at", "dual"), _peer_rows),
    ("Seconds by part", "train", ("set", "s", *_PARTS), _parts),
    ("Kernels of a fit", "kernels", _KERNELS, _kernel_rows),
    ("Peaks", "peaks", ("what", "figure"), _peak_rows),
    ("Trials", "trials", ("what", "result", "ns a step", "TFLOP/s", "build log"), _trial_rows),
    ("Products", "products", _PRODUCTS, _product_rows),
    ("Tiles of many vectors", "tiles", _PRODUCTS, _product_rows),
    ("Passes over rows", "nystrom", ("n", "m", "d", "k", "ms", "TFLOP/s", "of multiply-adds"), _pass_rows),
    (
        "Machines on centres",
        "nystrom",
        ("set", "n x d", "m", "first s", "later s", *_OF_CENTRES, "passes", "status", "test %"),
        _machine_rows,
    ),
    (
        "Layouts of sparse rows",
        "layouts",
        ("set", "rows", "W", "layout", "product", "us", "GFLOP/s of entries", "estimate"),
        _layout_rows,
    ),
    (
        "Inner steps, microseconds",
        "subproblem",
        ("W", "steps", "working sets", "a step", *(f"{part} of a set" for part in _OF_A_SET)),
        _step_rows,
    ),
    ("Reductions", "reductions", ("numbers", "what", "us", "GB/s", "of bandwidth"), _reduction_rows),
    ("Choice of a working set, microseconds", "reductions", ("n", "W", "look", "look and choice"), _choice_rows),
    ("Smoke", "smoke", ("fit", "decisions", "difference", "s", "error"), _smoke_rows),
    ("Tests", "suite", ("step", "collected", *OUTCOMES), _suite_rows),
)
