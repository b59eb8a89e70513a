"""``clsvm kernels``, and that what it emits runs by its own comment alone."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from clsvm import Kernel, kernels
from clsvm.gram import layouts
from clsvm.gram.layouts import LAYOUTS
from clsvm.opencl import devices, sources
from clsvm.opencl.profiles import PROFILES
from clsvm.tools import emit
from tests.conftest import Command

EXPRESSION = "exp(-gamma * sqdist) + c * dot"


@pytest.fixture
def run(command: Command) -> Command:
    """``clsvm kernels ...`` in this process and an empty folder."""
    return partial(command, "kernels")


# list, show


def test_list_names_every_kernel(run: Command) -> None:
    result = run("list")
    assert (result.code, result.err) == (0, "")
    for name, spec in kernels.BUILTIN.items():
        assert any(name in line and spec.formula in line for line in result.out.splitlines())
    assert "degree = 3 (whole number >= 0)" in result.out


def test_show(run: Command) -> None:
    result = run("show", "laplacian", "--param", "gamma=0.5")
    assert (result.code, result.err) == (0, "")
    head, text = result.out.split("\n\n", 1)
    assert head.splitlines() == [
        "kernel      Kernel('laplacian', gamma=0.5)",
        "formula     exp(-gamma * s), s = sum abs(x - y)",
        "that is     exp(-gamma sum |x-y|)",
        "parameter   gamma = 0.5 (number > 0)",
        "rows        any",
        "layouts     dense, csr, hybrid",
        "shift       depends on x - y alone",
        "number      real f0 = -0.5",
    ]
    assert "inline kv element(const kv x, const kv y KERNEL_PARAMETERS)" in text
    assert sources.cl()[:60] not in result.out, "what all programs share is not of interest"
    result = run("show", "tanh(gamma * dot + coef0)", "--param", "coef0=2")
    assert "parameter   gamma = 1.0 (number)\nparameter   coef0 = 2.0 (number)\n" in result.out
    assert "shift       does not depend on x - y alone" in result.out
    assert "rows        without negative values" in run("show", "chi2").out
    assert "s = sum abs(x - y)" in run("show", "--element", "abs(x - y)").out


# emit: a host that knows the comment and nothing else


class Header:
    """What the comment of an emitted text says."""

    def __init__(self, text: str) -> None:
        self.lines = [line.removeprefix("//")[1:] for line in text.split("\n\n#ifndef")[0].splitlines()]
        said = "\n".join(self.lines)
        self.V = int(re.search(r"lane groups of V = (\d+)", said)[1])  # type: ignore[index]
        self.UB = int(re.search(r"blocks of UB = (\d+)", said)[1])  # type: ignore[index]
        self.arguments = re.findall(r"^ +\d+  (\S+(?: \S+)*)  +(\w+)  +\S.*$", said, re.MULTILINE)
        self.numbers = dict(re.findall(r"^  ([ef]\d+) = (\S+)$", said, re.MULTILINE))
        self.options = " ".join(re.search(r"Its options.*\n((?:  -D.*\n)+)", said)[1].split())  # type: ignore[index]
        launch = re.search(r"^Launch: (.*)$", said, re.MULTILINE)[1]  # type: ignore[index]
        flat = re.fullmatch(r"one dimension, global size groups(?: / (\d+), rounded up)?; local size 1\.", launch)
        grouped = re.fullmatch(
            r"two dimensions, global size \(groups(?: / (\d+), rounded up,)? \* (\d+), blocks\), "
            r"local size \(\2, 1\)\.",
            launch,
        )
        assert flat or grouped, launch
        self.each = int((flat or grouped)[1] or 1)  # type: ignore[index]
        self.items = int(grouped[2]) if grouped else 0


DTYPES = {"float": np.float32, "double": np.float64, "int": np.int32, "long": np.int64, "ushort": np.uint16}


def padded(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def words_of(rows: np.ndarray, real: Any) -> np.ndarray:
    """Rows of 0 and 1 as words of bits, the first feature in the lowest bit, in the type of numbers of that size."""
    octets = np.packbits(rows.astype(bool), axis=1, bitorder="little")
    return np.pad(octets, ((0, 0), (0, -octets.shape[1] % np.dtype(real).itemsize))).view(real)


def data_of(head: Header, kernel: Kernel, layout_: str, X: np.ndarray, at: np.ndarray) -> dict[str, Any]:
    """Every argument by its name, as the comment describes it; working vectors are the rows ``at`` of X."""
    n, V, UB, m = len(X), head.V, head.UB, len(at)
    capacity, n_pad = padded(m, UB), padded(n, V)
    U, rows = np.pad(X[at], ((0, capacity - m), (0, 0))), np.pad(X, ((0, n_pad - n), (0, 0)))
    uu, xx = (U**2).sum(axis=1), (rows**2).sum(axis=1)
    if layout_ == "bits":
        real = DTYPES[next(type_ for type_, name in head.arguments if name == "panel").split()[-2]]
        U, rows = (words_of(one, real) for one in (U, rows))
    d = U.shape[1]
    u, j = np.meshgrid(np.arange(capacity), np.arange(d), indexing="ij")
    panel = np.zeros(capacity * d)
    panel[(u // UB * d + j) * UB + u % UB] = U
    h = d // 3 if layout_ == "hybrid" else 0  # columns that are stored whole
    if layout_ in ("csr", "hybrid") and kernel.spec.element:
        uu = np.array([kernel_sum(kernel, row[h:]) for row in U])
    line = 1 + h + np.random.default_rng(d).permutation(d - h)  # (every block has its own buffers)
    line[~U[:, h:].any(axis=0)] = 0
    line = np.r_[1 + np.arange(h), line]
    blocks = np.zeros((capacity // UB, d + 1, UB))
    for b, block in enumerate(blocks):
        block[line] = U[b * UB : (b + 1) * UB].T
        block[0] = 0
    made: dict[str, Any] = {
        "panel": panel,
        "blocks": blocks,
        "line_of": line[h:] + 40,
        "dense": rows[:, :h] if h else np.zeros(1),
        "dense_columns": h,
        "mark": 40,
        "first": 0,
        "uu": uu,
        "xx": xx,
        "d": d,
        "count": np.array([m]),
        "group0": 0,
        "base": 0,
    }
    made |= {"groups": n_pad // V, "slot": np.arange(m)[::-1], "slab_rows": m, "ld": n_pad + 4, "n": n_pad + 5}
    made |= {"columns": np.zeros(1), "columns_at": np.zeros(1), "rows": np.zeros(1), "capacity": capacity}
    if layout_ in ("dense", "bits"):
        i, j = np.meshgrid(np.arange(n_pad), np.arange(d), indexing="ij")
        starts = np.arange(n_pad // V) * V * d
        values = np.zeros(n_pad * d)
        values[starts[i // V] + j * V + i % V] = rows
        made |= {"values": values, "at": starts}
    elif layout_ == "clustered":
        values, starts, columns, ends = [], [], [], [0]
        for group in rows.reshape(-1, V, d):
            used = np.flatnonzero((group != 0).any(axis=0))
            starts.append(sum(map(len, values)))
            values.append(group[:, used].T.ravel())
            columns.append(used)
            ends.append(ends[-1] + len(used))
        made |= {"values": np.concatenate(values), "at": np.array(starts), "columns": np.concatenate(columns)}
        made["columns_at"] = np.array(ends)
    else:
        rest = rows[:, h:]
        i, j = np.nonzero(rest)
        made |= {"indptr": np.r_[0, np.cumsum((rest != 0).sum(axis=1))], "indices": j, "data": rest[i, j]}
    return made


def kernel_sum(kernel: Kernel, row: np.ndarray) -> float:
    """s of a zero row and ``row``."""
    assert kernel.spec.element
    return float(np.sum(kernel.spec.element.evaluate({"x": 0.0, "y": row, **kernel.params})))


def context_of(device: str) -> cl.Context:
    return cl.Context([[d for platform in cl.get_platforms() for d in platform.get_devices()][int(device)]])


def host(
    text: str, device: str, kernel: Kernel, layout_: str, X: np.ndarray, at: np.ndarray, D: np.ndarray, options: bool
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(K of working vectors and rows, c) of the emitted text, built with the options in its comment or without any."""
    head = Header(text)
    made = data_of(head, kernel, layout_, X, at)
    weights = np.zeros((2, made["capacity"]))
    weights[:, : len(at)] = D
    made |= {"problems": 2, "D": weights, **{name: float(value) for name, value in head.numbers.items()}}
    context = context_of(device)
    queue = cl.CommandQueue(context)
    told = [*head.options.split(), "-cl-kernel-arg-info"] if options else []
    program = cl.Program(context, text).build([*told, "-cl-opt-disable"], cache_dir=False if options else None)
    gram = cl.Kernel(program, "gram")
    names = [name for _, name in head.arguments]
    if options:
        assert [gram.get_arg_info(i, cl.kernel_arg_info.NAME) for i in range(gram.num_args)] == names
    outputs: dict[str, tuple[cl.Buffer, np.ndarray]] = {}
    arguments: list[Any] = []
    real = np.dtype(np.float32)
    for type_, name in head.arguments:
        dtype = np.dtype(DTYPES[type_.split()[-2 if "*" in type_ else -1]])
        if "*" not in type_:
            arguments.append(dtype.type(made[name]))
            continue
        shape = {"K0": (len(at), made["ld"]), "c": (2, made["n"])}.get(name)
        if name == "block":
            made[name], real = made["blocks"][0], dtype
        array = np.ones(shape, dtype) if shape else np.ascontiguousarray(made[name], dtype)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffer = cl.Buffer(context, flags, hostbuf=array if array.size else np.zeros(1, dtype))
        arguments.append(buffer)
        if shape:
            assert "const" not in type_
            outputs[name] = buffer, array
    groups = made["groups"]
    size = ((groups * head.items, 1), (head.items, 1)) if head.items else ((-(-groups // head.each),), None)
    for b, block in enumerate(made["blocks"]) if "block" in names else [(0, None)]:
        if block is not None:
            arguments[names.index("first")] = np.int32(b * head.UB)
            cl.enqueue_copy(queue, arguments[names.index("block")], block.astype(real))
        gram(queue, *size, *arguments)
    for buffer, array in outputs.values():
        cl.enqueue_copy(queue, array, buffer)
    queue.finish()
    K = outputs["K0"][1][made["slot"], : len(X)] if "K0" in outputs else np.zeros(0)
    if "K0" in outputs:
        assert (outputs["K0"][1][:, made["ld"] - 4 :] == 1).all(), "what is beyond the rows stays as it was"
    return K, outputs["c"][1][:, : len(X)] if "c" in outputs else np.zeros(0)


TILES = {"GROUPS": 2, "BLOCKS": 2, "DEPTH": 4}
KINDS = [
    pytest.param(kernel, layout_, profile, marks=pytest.mark.full)
    for profile in ("cpu", "gpu")
    for layout_ in LAYOUTS
    for kernel in (Kernel(EXPRESSION, gamma=0.4, c=0.3), Kernel("laplacian", gamma=0.2))
    if layout_ in layouts.names(kernel.spec) and not LAYOUTS[layout_].plain
]


@pytest.mark.parametrize("product", emit.PRODUCTS)
@pytest.mark.parametrize(("kernel", "layout_", "profile"), [*KINDS, (Kernel("rbf", gamma=0.2), "dense", "tiles")])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("float64", 1e-13)])
def test_an_emitted_text_runs_by_its_comment(
    device: str, kernel: Kernel, product: str, layout_: str, profile: str, dtype: str, tolerance: float
) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(83, 5)) * (rng.random((83, 5)) < 0.6)
    X = (X != 0).astype(float) if LAYOUTS[layout_].binary else X
    at = rng.choice(83, 21, replace=False)
    D = rng.normal(size=(2, 21))
    own = {
        "cpu": devices.default_profile(devices.find(device)),
        "tiles": replace(PROFILES["gpu"], tiles={"many": TILES}),
    }
    chosen = own.get(profile, PROFILES["gpu"])
    text = emit.emit(kernel, product, layout_, dtype, chosen, d=5)
    K, c = host(text, device, kernel, layout_, X, at, D, options=dtype == "float64")
    expected = kernel(X[at], X)
    if product != "update":
        np.testing.assert_allclose(K, expected, rtol=tolerance, atol=tolerance)
    if product in ("update", "both"):
        np.testing.assert_allclose(c, 1 + D @ expected, rtol=0, atol=40 * tolerance)


def test_numbers_are_in_the_comment_alone() -> None:
    one, two = (
        emit.emit(Kernel("poly", gamma=g, coef0=1, degree=degree), "rows", "dense", "float32", PROFILES["cpu"])
        for g, degree in ((0.5, 2), (0.25, 4))
    )
    assert (Header(one).numbers, Header(two).numbers) == (
        {"f0": "0.5", "f1": "1.0", "f2": "2"},
        {"f0": "0.25", "f1": "1.0", "f2": "4"},
    )
    assert one.split("\n\n#ifndef")[1:] == two.split("\n\n#ifndef")[1:]
    text = emit.emit(kernels.make("linear"), "rows", "csr", "float32", PROFILES["cpu"], d=70000)
    assert "has no numbers of its own" in text
    assert "#define INDEX int\n" in text


def test_emit_writes_a_file_or_stdout(run: Command, tmp_path: Path) -> None:
    flags = ["emit", "--kernel", EXPRESSION, "--param", "c=2", "--profile", "gpu", "--product", "both"]
    result = run(*flags)
    assert (result.code, result.err) == (0, "")
    made = Kernel(EXPRESSION, gamma=1.0, c=2)
    assert result.out == emit.emit(made, "both", "dense", "float32", PROFILES["gpu"]) + "\n"
    assert run(*flags, "-o", "out.cl") == (0, "", "")
    assert (tmp_path / "out.cl").read_text() + "\n" == result.out
    assert max(map(len, result.out.split("\n\n#ifndef")[0].splitlines())) <= 120
    result = run("emit", "--element", "abs(x - y)", "--layout", "csr", "--dtype", "float64")
    assert (result.code, result.err) == (0, "")
    assert "sum_j e(0, u_j)" in result.out
