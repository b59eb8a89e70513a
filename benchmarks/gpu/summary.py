"""What the records of a run say: a few lines for each step as it ends, and the whole as tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.gpu.tables import TABLES, TRAIN, Record, first, percent, tera, trained

LEGEND = (
    "Shares are of the peaks that took turns with what they are shares of. TFLOP/s of 2 n W d, a multiply and an add "
    "for each feature and pair; GB/s of X read once and what is written; rows: K(X, U) stored, update: c += K D; * is "
    "the profile's own tile, ! a wrong result. Seconds of whole fits, data checks and transfers included: the first "
    "(programs are built), then the best of the later ones."
)


def said(record: Record) -> list[str]:
    """What a step comes to, in a few lines for the terminal."""
    head = f"{record['status']} in {record['seconds']:.1f} s"
    lines = [f"{head}: {first(record['error'])}" if record.get("error") else head]
    with_words = _WORDS.get(record["run"].partition(":")[2])
    return lines + (_tolerant(with_words, record) if with_words else [])


def markdown(result: Record) -> str:
    """The whole run; parts that are not there yet, or never came, are left out."""
    steps = result["steps"]
    device = next((one["device"] for one in steps if one.get("device")), result["device"])
    machine = result["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    parts = [f"# {device}", f"{result['date']}, {result['minutes']:g} minutes; {where}; {versions}"]
    if headlines := [line for one in steps for line in _headlines(one)]:
        parts.append("\n".join(f"- {line}" for line in headlines))
    rows = [(one["step"], one["status"], f"{one['seconds']:.1f}", first(one.get("error", ""))) for one in steps]
    parts += ["## Steps", table(("step", "status", "s", "words"), rows)]
    for title, *_ in TABLES:
        if shown := section(result, title):
            parts += [f"## {title}", shown]
    if failures := [line for one in steps for line in _failures(one)]:
        parts += ["## Tests that failed", "\n".join(failures)]
    return "\n\n".join([*parts, LEGEND]) + "\n"


def section(result: Record, title: str) -> str:
    """One of the tables; "" where nothing of it is there. Raises StopIteration for another title."""
    _, name, head, row = next(one for one in TABLES if one[0] == title)
    ours = (one for one in result["steps"] if one["run"].endswith(f":{name}"))
    rows = [cells for one in ours for cells in _tolerant_rows(row, one)]
    return table(head, rows) if rows else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; what would end a cell is escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _tolerant(words: Callable[[Record], list[str]], record: Record) -> list[str]:
    """The lines of a record, or none where it was cut off before what they are of."""
    try:
        return words(record)
    except (KeyError, IndexError, TypeError, ValueError):
        return []


_tolerant_rows: Callable[[Any, Record], list[Any]] = _tolerant


# Lines.


def _limits(record: Record) -> list[str]:
    got = record["properties"]
    return [
        f"{record['device']}",
        f"{got['max_compute_units']} compute units at {got['max_clock_frequency']} MHz, "
        f"{got['global_mem_size'] / 2**30:.1f} GiB, largest buffer {got['max_mem_alloc_size'] / 2**30:.1f} GiB, local "
        f"memory {got['local_mem_size'] // 1024} KiB, work-groups of {got['max_work_group_size']}",
        f"double precision: {'yes' if 'cl_khr_fp64' in got['extensions'] else 'no'}; "
        f"profile {record['profile']['name']}; "
        f"found by {', '.join(record['discovery']['icd'].values()) or 'the loader alone'}",
    ]


def _smoke(record: Record) -> list[str]:
    wrong = [
        f"wrong: {one['fit']}: {one.get('error') or one.get('status')}" for one in record["fits"] if not one["right"]
    ]
    return [f"{sum(one['right'] for one in record['fits'])} of {len(record['fits'])} fits as LIBSVM's", *wrong]


def _suite(record: Record) -> list[str]:
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(record["tests"].items()))
    return [f"{counts} of {record['collected']}; {record['earlier']} ran before"]


def _failures(record: Record) -> list[str]:
    return [
        f"- `{name}` {one['outcome']}: {first(one['message'][0]) if one['message'] else ''}"
        for name, one in record.get("failures", {}).items()
    ]


def _train(record: Record) -> list[str]:
    return [" | ".join(f"{name} {cell}" for name, cell in zip(TRAIN, cells, strict=True)) for cells in trained(record)]


def _kernels(record: Record) -> list[str]:
    most = ", ".join(f"{one['kernel']} {percent(one['seconds'] / record['busy'])}" for one in record["kernels"][:4])
    return [
        f"{record['what']}: {record['launches']} launches, kernels run for {record['busy']:.3g} s of "
        f"{record['span']:.3g}: {most}"
    ]


def _peaks(record: Record) -> list[str]:
    got = record["peaks"]
    lines = [f"peaks {tera(got['fma_gflops'])} TFLOP/s of float32 multiply-adds, {got['read_gbs']:.0f} GB/s read"]
    if "local" in record:
        lines.append(f"local memory {record['local']['gbs']:.0f} GB/s over all compute units")
    if "microseconds" in record:
        lines.append(", ".join(f"{name} {spent:.1f} us" for name, spent in record["microseconds"].items()))
    return lines


def _trials(record: Record) -> list[str]:
    return [
        ", ".join(
            f"{one['trial']} {'right' if one['right'] else 'WRONG'}" for one in record["trials"] if "right" in one
        )
    ]


def _products(record: Record) -> list[str]:
    """The best of the profile's own tiles: of two rows against the bandwidth, of many against the arithmetic."""
    usual = [one for one in record["products"] if one["usual"] and one.get("right")]
    lines = []
    for few, share, what in ((True, "of_bandwidth", "read bandwidth"), (False, "of_arithmetic", "multiply-add peak")):
        some = [one for one in usual if (one["W"] == 2 if few else one["W"] > 16)]
        if some:
            best = max(some, key=lambda one: one[share])
            rate = f"{best['gbs']:.0f} GB/s" if few else f"{tera(best['gflops'])} TFLOP/s"
            lines.append(f"W = {best['W']}, d = {best['d']}: {rate}, {100 * best[share]:.0f} % of the {what}")
    return lines


def _tiles(record: Record) -> list[str]:
    """The best tile of stored products, and the profile's own."""
    right = [one for one in record["products"] if one.get("right") and one["stored"]]
    best, own = (max(some, key=lambda one: one["gflops"]) for some in (right, [one for one in right if one["usual"]]))
    words = " ".join(f"{name} {value}" for name, value in best["tile"].items())
    return [f"d = {best['d']}: best {words}, {tera(best['gflops'])} TFLOP/s, the profile's {tera(own['gflops'])}"]


def _layouts(record: Record) -> list[str]:
    """The fastest layout of each set and number of working rows, and how many times as long the chosen one takes."""
    groups: dict[tuple[str, int, bool], list[Record]] = {}
    for one in record["layouts"]:
        if one.get("right"):
            groups.setdefault((one["set"], one["W"], one["stored"]), []).append(one)
    lines = []
    for (name, W, stored), some in groups.items():
        best = min(some, key=lambda one: one["seconds"])
        chosen = [f"{one['seconds'] / best['seconds']:.2f} times as long" for one in some if one["chosen"]]
        words = f"chosen: {chosen[0]}" if chosen else "the chosen one has no figure"
        lines.append(f"{name}, W = {W}, {'rows' if stored else 'update'}: {best['layout']} is fastest; {words}")
    return lines


def _subproblem(record: Record) -> list[str]:
    return [
        "inner steps: " + ", ".join(f"{one['microseconds']:.2f} us (W = {one['W']})" for one in record["subproblems"])
    ]


def _reductions(record: Record) -> list[str]:
    most = max(one["n"] for one in record["reductions"])
    some = [one for one in record["reductions"] if one["n"] == most]
    return [
        ", ".join(f"{one['name']} {100 * one['of_bandwidth']:.0f} %" for one in some) + f" of the bandwidth, n = {most}"
    ]


_WORDS: dict[str, Callable[[Record], list[str]]] = {
    "limits": _limits, "smoke": _smoke, "suite": _suite, "train": _train, "kernels": _kernels, "peaks": _peaks,
    "trials": _trials, "products": _products, "subproblem": _subproblem, "reductions": _reductions,
    "tiles": _tiles, "layouts": _layouts,
}  # fmt: skip


def _headlines(record: Record) -> list[str]:
    """The figures that a reader looks for first."""
    name = record["run"].partition(":")[2]
    return _tolerant(_WORDS[name], record) if name in ("limits", "kernels", "peaks", "products", "subproblem") else []
