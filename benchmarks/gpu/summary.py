"""Tables in Markdown of a result of the GPU command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.table import Column, Row, cell, shown

LEGEND = (
    "Shares are of the peaks that were interleaved with the products. TFLOP/s count 2 n W d. GB/s count X read once "
    'and the results written once. The product "rows" stores K(X, U), and "update" computes c += K D. The profile\'s '
    "tile has *, and a wrong result has !. Seconds are those of whole fits, data checks and transfers included: the "
    "first fit, which builds the programs, and the best of the later ones."
)


def _first(text: str) -> str:
    return text.strip().partition("\n")[0][:200]


def _wrong(row: Row) -> str:
    return "!" * (row.get("right") is False)


def _tera(row: Row) -> str:
    return f"{row['gflops'] / 1000:.3g}{_wrong(row)}"


def _peak_rows(record: Row) -> list[Row]:
    got, local = record["peaks"], record.get("local")
    found = {
        "float32 multiply-adds": f"{got['fma_gflops'] / 1000:.3g} TFLOP/s, {got['fma_shape']}",
        "reads": f"{got['read_gbs']:.1f} GB/s, {got['read_shape']}",
    }
    if local:
        found["reads of local memory"] = f"{local['gbs']:.0f} GB/s, {local['shape']}"
    found |= {name: f"{spent:.2f} us" for name, spent in record.get("microseconds", {}).items()}
    for name, rate in record.get("copies_gbs", {}).items():
        found[f"copies {name}"] = rate if isinstance(rate, str) else f"{rate:.2f} GB/s"
    return [{"what": what, "figure": figure} for what, figure in found.items()]


def _trained(record: Row) -> list[Row]:
    size = f"{record['n']} x {record['d']}" + (f" of {record['of']}" if record["n"] < record["of"] else "")
    what = record["what"] + "!" * (False in record.get("checked", {}).values())
    return [{**record, "size": size, "set": what, "later": min(record["warm"]) if record.get("warm") else None}]


def _share(total: str, title: str, part: str) -> Column:
    return title, lambda row: f"{row[total][part]:.3g} ({row[total][part] / sum(row[total].values()):.0%})"


_PRODUCTS: tuple[Column, ...] = (
    ("d", "{d}"), ("W", "{W}"), ("n", "{n}"), ("product", lambda row: "rows" if row["stored"] else "update"),
    ("tile", lambda row: " ".join(f"{name} {value}" for name, value in row["tile"].items()) + " *" * row["usual"]),
    ("TFLOP/s", lambda row: _first(row["refused"]) if "refused" in row else _tera(row)),
    ("of multiply-adds", "{of_arithmetic:.0%}"), ("GB/s", "{gbs:.1f}"), ("of bandwidth", "{of_bandwidth:.0%}"),
)  # fmt: skip
TABLES: tuple[tuple[str, str, str | Callable[[Row], list[Row]], Sequence[Column]], ...] = (
    ("Training", "train", _trained, (
        ("set", "{set}"), ("n x d", "{size}"), ("first s", "{cold:.3g}"), ("later s", "{later:.3g}"),
        ("status", lambda row: "converged" if row["report"]["converged"] else "not converged"),
        ("gap", "{report[gap]:.1e}"), ("violation", "{report[violation]:.1e}"), ("bound", "{report[error_bound]:.1e}"),
        ("exact rows", "{report[exact_rows]}"), ("SVs", "{n_support}"),
        ("test %", lambda row: f"{100 * row['accuracy']:.2f}"), ("W", "{report[working_set_size]}"),
    )),
    ("Peers", "by_hand", "peers", (
        ("set", "{set}"), ("solver", "{solver}"), ("first s", "{first:.3g}"), ("later s", "{seconds:.3g}"),
        ("stops at", "{stop}"), ("dual", "{dual:g}"),
    )),
    ("Seconds by part", "train", lambda record: [record], (
        ("set", "{what}"), ("s", lambda row: f"{sum(row['parts'].values()):.3g}"),
        *(_share("parts", p, p) for p in ("clustering", "selection", "gram", "subproblem", "update", "other")),
    )),
    ("Kernels of a fit", "kernels", "kernels", (
        ("set", "{set}"), ("kernel", "{kernel}"), ("launches", "{launches}"), ("s", "{seconds:.3g}"),
        ("of all", lambda row: f"{row['seconds'] / row['busy']:.0%}"),
        ("longest us", lambda row: f"{1e6 * row['longest']:.0f}"), ("private bytes", "{private}"),
        ("local bytes", "{local}"), ("largest group", "{largest_group}"),
    )),
    ("Peaks", "peaks", _peak_rows, (("what", "{what}"), ("figure", "{figure}"))),
    ("Products", "products", "products", _PRODUCTS),
    ("Passes over rows", "nystrom", "passes", (
        ("n", "{n}"), ("m", "{m}"), ("d", "{d}"), ("k", "{k}"), ("ms", lambda row: f"{1e3 * row['seconds']:.2f}"),
        ("TFLOP/s", _tera), ("of multiply-adds", "{of_arithmetic:.0%}"),
    )),
)  # fmt: skip


def section(result: Row, title: str) -> str:
    """Return one of the tables, or "" if it has no rows."""
    _, name, key, columns = next(one for one in TABLES if one[0] == title)
    rows: list[Any] = []
    for record in (one for one in result["steps"] if one["run"].endswith(f":{name}")):
        if isinstance(key, str):
            rows += [{"set": record.get("set"), "busy": record.get("busy"), **row} for row in record.get(key, [])]
        elif all(part in record for part in _NEEDED.get(title, ())):
            rows += key(record)
    return shown("", columns, rows).markdown() if rows else ""


_NEEDED = {"Training": ("cold", "report"), "Seconds by part": ("parts",), "Peaks": ("peaks",)}


def markdown(result: Row) -> str:
    """Return all tables of a run that have rows."""
    steps, machine = result["steps"], result["machine"]
    device = next((one["device"] for one in steps if one.get("device")), result["device"])
    where = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    parts = [f"# {device}", f"{result['date']}, {result['minutes']:g} minutes; {where}; {versions}"]
    columns = (
        ("step", "{step}"), ("status", "{status}"), ("s", "{seconds:.1f}"), ("words", lambda row: _first(row["error"]))
    )  # fmt: skip
    parts += ["## Steps", shown("", columns, steps).markdown()]
    for title, *_ in TABLES:
        if found := section(result, title):
            parts += [f"## {title}", found]
    return "\n\n".join([*parts, LEGEND]) + "\n"


def said(record: Row) -> str:
    """Return the status of a step and its tables."""
    words = f"{record['status']} in {record['seconds']:.1f} s: {cell(record, lambda row: _first(row['error']))}"
    tables = (section({"steps": [record]}, title) for title, *_ in TABLES)
    return "\n".join([words.removesuffix(": "), *(found for found in tables if found)])
