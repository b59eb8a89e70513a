"""What the records of a run say: a few lines for each step as it ends, and the whole as tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Record = dict[str, Any]
Cells = list[tuple[str, ...]]

LEGEND = (
    "Shares are of the peaks that took turns with what they are shares of. TFLOP/s of 2 n W d, a multiply and an add "
    "for each feature and pair; GB/s of X read once and what is written; rows: K(X, U) stored, update: c += K D; * is "
    "the profile's own tile, ! a wrong result. Seconds of whole fits, data checks and transfers included: the first "
    "(programs are built), then the best of the later ones."
)


def said(record: Record) -> list[str]:
    """What a step comes to, in a few lines for the terminal."""
    head = f"{record['status']} in {record['seconds']:.1f} s"
    lines = [f"{head}: {_first(record['error'])}" if record.get("error") else head]
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
    rows = [(one["step"], one["status"], f"{one['seconds']:.1f}", _first(one.get("error", ""))) for one in steps]
    parts += ["## Steps", table(("step", "status", "s", "words"), rows)]
    for title, name, head, row in _TABLES:
        rows = [cells for one in steps for cells in _tolerant_rows(row, one) if one["run"].endswith(f":{name}")]
        if rows:
            parts += [f"## {title}", table(head, rows)]
    if failures := [line for one in steps for line in _failures(one)]:
        parts += ["## Tests that failed", "\n".join(failures)]
    return "\n\n".join([*parts, LEGEND]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; what would end a cell is escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _first(text: str) -> str:
    return text.strip().partition("\n")[0][:200]


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
        f"- `{name}` {one['outcome']}: {_first(one['message'][0]) if one['message'] else ''}"
        for name, one in record.get("failures", {}).items()
    ]


def _train(record: Record) -> list[str]:
    return [
        " | ".join(f"{name} {cell}" for name, cell in zip(_TRAIN, cells, strict=True)) for cells in _trained(record)
    ]


def _kernels(record: Record) -> list[str]:
    most = ", ".join(f"{one['kernel']} {_percent(one['seconds'] / record['busy'])}" for one in record["kernels"][:4])
    return [
        f"{record['what']}: {record['launches']} launches, kernels run for {record['busy']:.3g} s of "
        f"{record['span']:.3g}: {most}"
    ]


def _peaks(record: Record) -> list[str]:
    got = record["peaks"]
    lines = [f"peaks {_tera(got['fma_gflops'])} TFLOP/s of float32 multiply-adds, {got['read_gbs']:.0f} GB/s read"]
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
            rate = f"{best['gbs']:.0f} GB/s" if few else f"{_tera(best['gflops'])} TFLOP/s"
            lines.append(f"W = {best['W']}, d = {best['d']}: {rate}, {100 * best[share]:.0f} % of the {what}")
    return lines


def _tiles(record: Record) -> list[str]:
    """The best tile of stored products, and the profile's own."""
    right = [one for one in record["products"] if one.get("right") and one["stored"]]
    best, own = (max(some, key=lambda one: one["gflops"]) for some in (right, [one for one in right if one["usual"]]))
    words = " ".join(f"{name} {value}" for name, value in best["tile"].items())
    return [f"d = {best['d']}: best {words}, {_tera(best['gflops'])} TFLOP/s, the profile's {_tera(own['gflops'])}"]


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


# Tables.


def _tera(gflops: float) -> str:
    return f"{gflops / 1000:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


_TRAIN = (
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


def _trained(record: Record) -> Cells:
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
    return [(record["what"], f"{total:.3g}", *(f"{got[part]:.3g} ({_percent(got[part] / total)})" for part in _PARTS))]


_KERNELS = "set", "kernel", "launches", "s", "of all", "longest us", "private bytes", "local bytes", "largest group"


def _kernel_rows(record: Record) -> Cells:
    return [
        (
            record["set"], one["kernel"], str(one["launches"]), f"{one['seconds']:.3g}",
            _percent(one["seconds"] / record["busy"]), f"{1e6 * one['longest']:.0f}",
            *(str(one[name]) for name in ("private", "local", "largest_group")),
        )
        for one in record["kernels"]
    ]  # fmt: skip


def _peak_rows(record: Record) -> Cells:
    got = record["peaks"]
    rows: Cells = [
        ("float32 multiply-adds", f"{_tera(got['fma_gflops'])} TFLOP/s, {got['fma_shape']}"),
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
                (one["trial"], "lacking" if "lacking" in one else "NOT BUILT", "", "", _first(one.get("log", "")))
            )
            continue
        rate = f"{one['tflops']:.3g}" if "tflops" in one else ""
        words = "right" if one["right"] else "WRONG"
        rows.append((one["trial"], words, f"{one['nanoseconds']:.1f}", rate, _first(one["log"])))
    return rows


def _product_rows(record: Record) -> Cells:
    rows: Cells = []
    for one in record["products"]:
        tile = " ".join(f"{name} {value}" for name, value in one["tile"].items()) + " *" * one["usual"]
        head = str(one["d"]), str(one["W"]), str(one["n"]), "rows" if one["stored"] else "update", tile
        if "refused" in one:
            rows.append((*head, _first(one["refused"]), "", "", ""))
            continue
        rates = f"{_tera(one['gflops'])}{'' if one['right'] else '!'}", _percent(one["of_arithmetic"])
        rows.append((*head, *rates, f"{one['gbs']:.1f}", _percent(one["of_bandwidth"])))
    return rows


def _layout_rows(record: Record) -> Cells:
    rows: Cells = []
    for one in record["layouts"]:
        size = f"{one['n']} x {one['d']}, {one['entries']:.0f} a row"
        head = one["set"], size, str(one["W"]), one["layout"] + " *" * one["chosen"]
        if "refused" in one:
            rows.append((*head, "", _first(one["refused"]), "", ""))
            continue
        product = ("rows" if one["stored"] else "update") + "!" * (not one["right"])
        rows.append((*head, product, f"{1e6 * one['seconds']:.1f}", f"{one['gflops']:.4g}", f"{one['estimate']:.3g}"))
    return rows


def _reduction_rows(record: Record) -> Cells:
    return [
        (
            str(one["n"]), one["name"] + "!" * (not one["right"]), f"{1e6 * one['seconds']:.1f}", f"{one['gbs']:.1f}",
            _percent(one["of_bandwidth"]),
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
            f"{one['seconds']:.2f}", _first(one.get("error", "")),
        )
        for one in record["fits"]
    ]  # fmt: skip


def _suite_rows(record: Record) -> Cells:
    counts = record["tests"]
    return [(record["step"], str(record["collected"]), *(str(counts.get(name, 0)) for name in _OUTCOMES))]


_OUTCOMES = ("passed", "skipped", "lacking", "failed", "error", "crashed", "hung")
_PRODUCTS = ("d", "W", "n", "product", "tile", "TFLOP/s", "of multiply-adds", "GB/s", "of bandwidth")
_TABLES: tuple[tuple[str, str, tuple[str, ...], Callable[[Record], Cells]], ...] = (
    ("Training", "train", _TRAIN, _trained),
    ("Seconds by part", "train", ("set", "s", *_PARTS), _parts),
    ("Kernels of a fit", "kernels", _KERNELS, _kernel_rows),
    ("Peaks", "peaks", ("what", "figure"), _peak_rows),
    ("Trials", "trials", ("what", "result", "ns a step", "TFLOP/s", "build log"), _trial_rows),
    ("Products", "products", _PRODUCTS, _product_rows),
    ("Tiles of many vectors", "tiles", _PRODUCTS, _product_rows),
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
    ("Tests", "suite", ("step", "collected", *_OUTCOMES), _suite_rows),
)
