"""``clsvm kernels``, and that what it emits runs by its own comment alone: on pyopencl, and in a program in C."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from ctypes.util import find_library
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from clsvm import Kernel, kernels
from clsvm.estimators.classification import SVC
from clsvm.gram import layouts
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.products import Gram
from clsvm.gram.programs import FORTH, LINE, OWN
from clsvm.gram.sums import Sums
from clsvm.opencl import devices, sources
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.stream import Stream
from clsvm.solvers import programs
from clsvm.tools import audit, emit, registry
from clsvm.tools.audit import Finding, Target
from tests.conftest import Command, noisy, take_profile

EXPRESSION = "exp(-gamma * sqdist) + c * dot"


@pytest.fixture
def run(command: Command) -> Command:
    """``clsvm kernels ...`` in this process and an empty folder."""
    return partial(command, "kernels")


# list, show, check


def test_list_names_every_kernel_in_full(run: Command) -> None:
    result = run("list")
    assert (result.code, result.err) == (0, "")
    for name, spec in kernels.BUILTIN.items():
        (line,) = (line for line in result.out.splitlines() if line.startswith(f"│ {name} "))
        assert spec.formula in line
    assert "alpha = 1 (number > 0)" in result.out
    assert "degree = 3 (whole number >= 0)" in result.out
    assert "…" not in result.out


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


def test_check(run: Command, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1 1:1 2:1\n-1 1:-1\n1 1:2\n-1 1:-1 2:-1\n")
    result = run("check", "--kernel", "rbf", "rows")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Kernel('rbf', gamma=0.5) on 4 rows: symmetric")
    assert result.out.endswith(": positive semi-definite\n")
    result = run("check", "--kernel", "-dot", "--rows", "3", "rows")
    assert (result.code, result.err) == (1, "")
    assert "on 3 rows" in result.out
    assert result.out.endswith(": not positive semi-definite\n")
    result = run("check", "--kernel", "chi2", "rows")
    assert (result.code, result.out) == (1, "")
    assert result.err == "clsvm: error: kernel chi2 is for rows without negative values, got -1\n"


USAGE = {
    "show: nothing": (["show"], "expected one of them"),
    "show: unknown name": (["show", "spam"], "at 'spam', column 1 of 'spam'"),
    "show: value": (["show", "rbf", "--param", "gamma=x"], "got 'gamma=x', expected name=number"),
    "show: no name": (["show", "rbf", "--param", "=1"], "expected name=number"),
    "show: no value": (["show", "rbf", "--param", "gamma"], "expected name=number"),
    "show: twice": (["show", "rbf", "--param", "gamma=1", "--param", "gamma=2"], "got gamma twice"),
    "show: unknown parameter": (["show", "rbf", "--param", "alpha=1"], "kernel rbf has no parameter alpha"),
    "show: outside the limits": (["show", "rbf", "--param", "gamma=0"], "gamma must be finite and > 0"),
    "show: not finite": (["show", "rbf", "--param", "gamma=inf"], "gamma must be finite"),
    "show: division": (["show", "1 / c * dot", "--param", "c=0"], "with c=0 a number"),
    "show: huge": (["show", "dot * c", "--param", f"c=1{'0' * 400}"], "c"),
    "show: bad element": (["show", "--element", "dot"], "unknown name 'dot'"),
    "show: infinite at 0": (["show", "--element", "1 / (x - y)"], "where padding needs a number"),
    "emit: nothing": (["emit"], "expected one of them"),
    "emit: product": (["emit", "--kernel", "rbf", "--product", "spam"], "rows, update, both, forward-back, tile"),
    "emit: layout": (["emit", "--kernel", "rbf", "--layout", "spam"], "dense, csr, clustered"),
    "emit: layout it lacks": (["emit", "--kernel", "chi2", "--layout", "clustered"], "expected one of dense, csr"),
    "emit: dtype": (["emit", "--kernel", "rbf", "--dtype", "half"], "float32 or float64"),
    "emit: profile": (["emit", "--kernel", "rbf", "--profile", "spam"], "cpu"),
    "emit: two devices": (["emit", "--kernel", "rbf", "--profile", "cpu", "--device", "0"], "got both"),
    "audit: target": (["audit", "--targets", "gfx906,spam"], "expected one of gfx906"),
    "audit: kernel": (["audit", "--kernels", "spam"], "expected one of linear"),
    "audit: jobs": (["audit", "--jobs", "0"], "greater than or equal to 1"),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_command_lines(run: Command, tmp_path: Path, name: str) -> None:
    args, part = USAGE[name]
    result = run(*args)
    assert (result.code, result.out) == (2, "")
    assert part in result.err
    assert "Traceback" not in result.err
    assert not list(tmp_path.iterdir())


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


def data_of(head: Header, kernel: Kernel, layout_: str, product: str, X: np.ndarray, at: np.ndarray) -> dict[str, Any]:
    """Every argument by its name, as the comment describes it; working vectors are the rows ``at`` of X."""
    (n, d), V, UB, m = X.shape, head.V, head.UB, len(at)
    capacity, n_pad = padded(m, UB), padded(n, V)
    U = np.zeros((capacity, d))
    U[:m] = X[at]
    rows = np.zeros((n_pad, d))
    rows[:n] = X
    u, j = np.meshgrid(np.arange(capacity), np.arange(d), indexing="ij")
    panel = np.zeros(capacity * d)
    panel[(u // UB * d + j) * UB + u % UB] = U
    uu, xx = (U**2).sum(axis=1), (rows**2).sum(axis=1)
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
        "place": line[h:] + 40,
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
    if product == "tile":
        made |= {"groups": capacity // V, "ld": capacity + 4, "rows": np.full(capacity, -1)}
        made["rows"][:m] = at
    if product == "tile" and layout_ not in ("csr", "hybrid"):
        return made | {"values": panel, "xx": uu, "at": np.arange(capacity // V) * V * d}
    if layout_ == "dense":
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


def host(
    text: str, device: str, kernel: Kernel, layout_: str, product: str, X: np.ndarray, at: np.ndarray, D: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(K of the working vectors and rows, c) as a host computes them from the emitted text."""
    head = Header(text)
    made = data_of(head, kernel, layout_, product, X, at)
    weights = np.zeros((2, made["capacity"]))
    weights[:, : len(at)] = D
    made |= {"problems": 2, "D": weights, **{name: float(value) for name, value in head.numbers.items()}}
    chosen = [d for platform in cl.get_platforms() for d in platform.get_devices()][int(device)]
    context = cl.Context([chosen])
    queue = cl.CommandQueue(context)
    program = cl.Program(context, text).build(["-cl-opt-disable"])  # (sooner)
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
    names = [name for _, name in head.arguments]
    for b, block in enumerate(made["blocks"]) if "block" in names else [(0, None)]:
        if block is not None:
            arguments[names.index("first")] = np.int32(b * head.UB)
            cl.enqueue_copy(queue, arguments[names.index("block")], block.astype(real))
        program.gram(queue, *size, *arguments)
    for buffer, array in outputs.values():
        cl.enqueue_copy(queue, array, buffer)
    queue.finish()
    columns = len(at) if product == "tile" else len(X)
    K = outputs["K0"][1][made["slot"], :columns] if "K0" in outputs else np.zeros(0)
    if "K0" in outputs:
        assert (outputs["K0"][1][:, made["ld"] - 4 :] == 1).all(), "what is beyond the rows stays as it was"
    return K, outputs["c"][1][:, :columns] if "c" in outputs else np.zeros(0)


CASES = [
    (kernel, product, layout_, profile)
    for profile in ("cpu", "gpu")
    for layout_ in LAYOUTS
    for product in emit.PRODUCTS
    for kernel in (Kernel(EXPRESSION, gamma=0.4, c=0.3), Kernel("laplacian", gamma=0.2))
    if layout_ in layouts.names(kernel.spec) and not LAYOUTS[layout_].stored(PROFILES["cpu"])
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kernel", "product", "layout_", "profile"), CASES, ids=[f"{k.name}-{p}-{r}-{f}" for k, p, r, f in CASES]
)
def test_an_emitted_text_runs_by_its_comment(
    device: str, kernel: Kernel, product: str, layout_: str, profile: str
) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(83, 5)) * (rng.random((83, 5)) < 0.6)
    at = rng.choice(83, 21, replace=False)
    D = rng.normal(size=(2, 21))
    chosen = devices.default_profile(devices.find(device)) if profile == "cpu" else PROFILES[profile]
    for dtype, tolerance in (("float32", 3e-6), ("float64", 1e-13)):
        text = emit.emit(kernel, product, layout_, dtype, chosen, d=5)
        K, c = host(text, device, kernel, layout_, product, X, at, D)
        expected = kernel(X[at], X[at] if product == "tile" else X)
        if product != "update":
            np.testing.assert_allclose(K, expected, rtol=tolerance, atol=tolerance)
        if product in ("update", "both"):
            np.testing.assert_allclose(c, 1 + D @ expected, rtol=0, atol=40 * tolerance)


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_forward_and_back_by_later_kernels(device: str, profile: str) -> None:
    """The later kernels as the comment describes them, on a stored tile."""
    text = emit.emit(Kernel("rbf", gamma=0.3), "forward-back", "dense", "float32", PROFILES[profile])
    said = re.findall(r"^// +\d+\.  \S+(?: \S+)*  +(\w+)  ", text, re.MULTILINE)
    assert " ".join(said) == (
        "K ld rows v count problems capacity t t ld first w own z n r K ld rows r count problems capacity out"
    )
    rng = np.random.default_rng(0)
    m, rows, capacity, ld, first, problems = 5, 128, 64, 131, 64, 6
    n = first + rows
    K, w = rng.normal(size=(capacity, ld)).astype(np.float32), rng.random(n)
    v, z, out = rng.normal(size=(problems, capacity)), rng.normal(size=(problems, n)), np.ones((problems, capacity))
    with Stream(device, profile=PROFILES[profile]) as stream:
        given = K, w, v.astype(np.float32), z, np.array([m], np.int32), out
        K_, w_, v_, z_, count, out_ = (stream.upload(a) for a in given)
        t_, r = stream.zeros(8 * problems * ld), stream.zeros(4 * problems * ld)
        forth, residual, back = (stream.kernel(text, (), name) for name in ("forth", "residual", "back"))
        chosen = PROFILES[profile]
        vector, unit = chosen.shape == "vector", chosen.group
        size = -(-rows // (int(re.search(r"-DV=(\d+)", text)[1]) * FORTH)) if vector else rows // LINE * unit  # type: ignore[index]
        forth((size,), (unit,), K_, np.int64(ld), rows, v_, count, problems, capacity, t_)
        residual((rows, problems), None, t_, np.int64(ld), first, w_, 0, z_, np.int64(n), r)
        group, own = PROFILES[profile].group, OWN
        back((capacity // own * group,), (group,), K_, np.int64(ld), rows, r, count, problems, capacity, out_)
        got = stream.read(out_, np.float64, out.shape)
    tile = K[:m, :rows].astype(np.float64)
    expected = 1 + (w[first:] * (v[:, :m] @ tile - z[:, first:])) @ tile.T
    np.testing.assert_allclose(got[:, :m], expected, rtol=0, atol=3e-4)
    assert (got[:, m:] == 1).all()


@pytest.mark.parametrize("product", emit.PRODUCTS)
def test_tiles_of_other_shapes(device: str, product: str) -> None:
    rng = np.random.default_rng(2)
    kernel, X, D = kernels.make("rbf", gamma=0.2), rng.normal(size=(70, 3)), rng.normal(size=(2, 9))
    tile = {"GROUPS": 2, "BLOCKS": 2, "DEPTH": 4}
    profile = replace(PROFILES["gpu"], tiles={"many": tile})
    text = emit.emit(kernel, product, "dense", "float32", profile)
    K, c = host(text, device, kernel, "dense", product, X, np.arange(9), D)
    expected = kernel(X[:9], X[:9] if product == "tile" else X)
    assert product == "update" or pytest.approx(expected, abs=1e-5) == K
    assert product not in ("update", "both") or c == pytest.approx(1 + D @ expected, abs=1e-4)


@pytest.mark.full
def test_arguments_are_the_compilers(device: str) -> None:
    """Names and types of the comment against what the compiler says of the text built with the options it names."""
    stream = Stream(device)
    for kernel, product, layout_, profile in CASES:
        text = emit.emit(kernel, product, layout_, "float64", PROFILES[profile])
        head = Header(text)
        assert ("-DWG" in head.options) == (product == "forward-back")
        program = cl.Program(stream._context, text).build(
            [*head.options.split(), "-cl-kernel-arg-info", "-cl-opt-disable"], cache_dir=False
        )
        kernel_ = program.gram
        info = cl.kernel_arg_info
        assert len(head.arguments) == kernel_.num_args
        for place, (type_, name) in enumerate(head.arguments):
            plain = type_.removeprefix("global ").removeprefix("const ").replace(" ", "")
            assert kernel_.get_arg_info(place, info.NAME) == name
            said = kernel_.get_arg_info(place, info.TYPE_NAME).replace(" ", "")
            assert re.sub("real|wide|weight", "double", said) == plain
        groups = re.search(r"-DGROUPS=(\d+)", head.options)
        assert head.each == (int(groups[1]) if groups else 1)


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


def test_what_emit_refuses() -> None:
    kernel = kernels.make("laplacian")
    for args, words in {
        ("spam", "dense", "float32"): "got 'spam', expected one of rows",
        ("rows", "spam", "float32"): "got 'spam', expected one of dense",
        ("rows", "clustered", "float32"): "laplacian has the layouts dense, csr",
        ("rows", "dense", "half"): "expected one of float32",
    }.items():
        with pytest.raises(ValueError, match=words):
            emit.emit(kernel, *args, PROFILES["gpu"])


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
    assert run("emit", "--kernel", "rbf", "-o", "none/out.cl").code == 1
    assert run("emit", "--kernel", "rbf", "--device", "no-such-device").code == 1


C_HOST = r"""
/* Rows 0, 1, 2, ... of X (n x d, x_ij = sin(i d + j)) against themselves, dense rows product of V and UB lanes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef void *any;
typedef int cl_int; typedef unsigned cl_uint; typedef long long cl_long; typedef unsigned long long cl_bits;
cl_int clGetPlatformIDs(cl_uint, any *, cl_uint *);
cl_int clGetPlatformInfo(any, cl_uint, size_t, void *, size_t *);
cl_int clGetDeviceIDs(any, cl_bits, cl_uint, any *, cl_uint *);
any clCreateContext(const any *, cl_uint, const any *, any, any, cl_int *);
any clCreateCommandQueue(any, any, cl_bits, cl_int *);
any clCreateProgramWithSource(any, cl_uint, const char **, const size_t *, cl_int *);
cl_int clBuildProgram(any, cl_uint, const any *, const char *, any, any);
any clCreateKernel(any, const char *, cl_int *);
any clCreateBuffer(any, cl_bits, size_t, void *, cl_int *);
cl_int clSetKernelArg(any, cl_uint, size_t, const void *);
cl_int clEnqueueNDRangeKernel(any, any, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint, any, any);
cl_int clEnqueueReadBuffer(any, any, cl_uint, size_t, size_t, void *, cl_uint, any, any);
#define CHECK(call) do { cl_int e_ = (call); if (e_) { fprintf(stderr, "%s: %d\n", #call, e_); exit(1); } } while (0)
static any context, kernel;
static cl_uint place = 0;
static void number(const void *value, size_t size) { CHECK(clSetKernelArg(kernel, place++, size, value)); }
static any buffer(void *data, size_t size) {
  cl_int error;
  any made = clCreateBuffer(context, 1 | 32, size, data, &error); /* read and write, copied from data */
  CHECK(error);
  number(&made, sizeof made);
  return made;
}
int main(int argc, char **argv) {
  const cl_int n = 50, d = 3, V = atoi(argv[3]), UB = atoi(argv[4]), each = atoi(argv[5]), zero = 0;
  float f0 = atof(argv[6]);
  static char text[1 << 20], name[256];
  FILE *file = fopen(argv[1], "rb");
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  any platforms[16], device;
  cl_uint count = 0, at = 0;
  CHECK(clGetPlatformIDs(16, platforms, &count));
  for (; at < count; ++at) {
    CHECK(clGetPlatformInfo(platforms[at], 0x0902, sizeof name, name, 0));
    if (!strncmp(name, argv[2], strlen(argv[2]))) break;
  }
  if (at == count) return 77;
  cl_int error;
  CHECK(clGetDeviceIDs(platforms[at], 0xFFFFFFFF, 1, &device, 0));
  context = clCreateContext(0, 1, &device, 0, 0, &error); CHECK(error);
  any queue = clCreateCommandQueue(context, device, 0, &error); CHECK(error);
  const char *lines = text;
  any program = clCreateProgramWithSource(context, 1, &lines, 0, &error); CHECK(error);
  CHECK(clBuildProgram(program, 1, &device, "", 0, 0));
  kernel = clCreateKernel(program, "gram", &error); CHECK(error);

  const cl_int groups = (n + V - 1) / V, n_pad = groups * V, capacity = (n + UB - 1) / UB * UB;
  float *values = calloc(n_pad * d, 4), *xx = calloc(n_pad, 4), *panel = calloc(capacity * d, 4);
  float *uu = calloc(capacity, 4), *K = calloc((size_t)n * n_pad, 4);
  cl_long *starts = calloc(groups, 8), ld = n_pad;
  cl_int *slot = calloc(n, 4), one = 0;
  for (int g = 0; g < groups; ++g) starts[g] = (cl_long)g * V * d;
  for (int i = 0; i < n; ++i) {
    slot[i] = i;
    for (int j = 0; j < d; ++j) {
      const float x = sinf(i * d + j);
      values[starts[i / V] + j * V + i % V] = x;
      panel[(i / UB * d + j) * UB + i % UB] = x;
      xx[i] += x * x;
    }
    uu[i] = xx[i];
  }
  number(&zero, 4), number(&groups, 4), number(&zero, 4);
  buffer(values, n_pad * d * 4), buffer(starts, groups * 8), buffer(&one, 4), buffer(&one, 4), buffer(xx, n_pad * 4);
  number(&d, 4);
  buffer((void *)&n, 4), buffer(panel, capacity * d * 4), buffer(uu, capacity * 4);
  any out = buffer(K, (size_t)n * n_pad * 4);
  number(&n, 4), number(&ld, 8);
  buffer(slot, n * 4);
  number(&f0, 4);
  const size_t size = (groups + each - 1) / each;
  CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, 0, &size, 0, 0, 0, 0));
  CHECK(clEnqueueReadBuffer(queue, out, 1, 0, (size_t)n * n_pad * 4, K, 0, 0, 0));
  for (int u = 0; u < n; ++u)
    for (int i = 0; i < n; ++i) printf("%.9g\n", K[(size_t)u * n_pad + i]);
  return 0;
}
"""


@pytest.mark.skipif(not shutil.which("gcc") or not find_library("OpenCL"), reason="no gcc, or no OpenCL loader")
def test_a_host_in_c(tmp_path: Path, device: str, run: Command) -> None:
    info = devices.find(device)
    if info.kind != "cpu":
        pytest.skip("the program launches as the text for CPUs says")
    done = run("emit", "--kernel", "rbf", "--param", "gamma=0.25", "--device", device, "-o", "gram.cl")
    assert done == (0, "", "")
    head = Header((tmp_path / "gram.cl").read_text())
    (tmp_path / "host.c").write_text(C_HOST)
    loader = find_library("OpenCL")
    build = ["gcc", "-O1", "-o", "host", "host.c", f"-l:{loader}", "-lm"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True, text=True)
    numbers = (str(number) for number in (head.V, head.UB, head.each, head.numbers["f0"]))
    command = [str(tmp_path / "host"), "gram.cl", info.platform, *numbers]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ))
    if said.returncode == 77:
        pytest.skip(f"the system's OpenCL loader does not see {info.platform}")
    assert said.returncode == 0, said.stderr
    X = np.sin(np.arange(150, dtype=np.float32)).reshape(50, 3).astype(np.float64)
    expected = kernels.make("rbf", gamma=0.25)(X)
    np.testing.assert_allclose(np.array(said.stdout.split(), float).reshape(50, 50), expected, rtol=0, atol=3e-6)


# audit


def finding(program: str, target: int, **figures: Any) -> Finding:
    made = {"registers": 10, "scalar_registers": None, "spills": 0, "scalar_spills": 0, "scratch": 0, "local_memory": 0}
    return Finding(program, "gram", audit.TARGETS[target], **{**made, **figures})


def test_audit_lists_the_worst_first(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def found(programs: Any, target: Target, jobs: int) -> Any:
        asked.append(([label for label, _, _ in programs], target.name, jobs))
        if target.name == "gfx906":
            yield finding("other", 0, occupancy=4.0)
            return
        yield finding("easy", 1, occupancy=8.0)
        yield finding("close", 1, occupancy=1.5)
        yield finding("broken", 1, occupancy=2.0, problems=("spills 3 registers",))

    monkeypatch.setattr(audit, "missing", lambda: "")
    monkeypatch.setattr(audit, "audit", found)
    result = run("audit", "--targets", "gfx90a, gfx906", "--kernels", "rbf,laplacian", "--jobs", "3")
    assert (result.code, result.err) == (1, "")
    names = re.findall(r"^│ \S+ │ (\w+) ", result.out, re.MULTILINE)
    assert names == ["other", "broken", "close", "easy"]
    assert "spills 3 registers" in result.out
    assert result.out.splitlines()[-1].endswith("2 targets, 4 kernels: 1 with problems")
    (labels, *first), (others, *second) = asked
    assert (first, second) == (["gfx90a", 3], ["gfx906", 3])
    assert [label for label in labels if label not in others] == [label for label in labels if "mfma" in label] != []
    assert len(set(labels)) == len(labels)
    for part in (
        "rbf rows dense float32",
        "laplacian zero sums",
        "extremes, count",
        "extremes, sort",
        "update",
        "subproblem",
        "pack",
        "zero",
    ):
        assert any(label.startswith(part) for label in labels), part
    assert not any(label.startswith("poly") for label in labels)
    monkeypatch.setattr(audit, "audit", lambda *_: iter([finding("easy", 1)]))
    assert run("audit", "--kernels", "rbf").code == 0


def test_audit_takes_the_profile_of_each_target(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    depths = {}

    def found(programs: Any, target: Target, jobs: int) -> Any:
        (options,) = (made for label, _, made in programs if label == "rbf rows dense float32 wide")
        depths[target.name] = next(word for word in options if word.startswith("-DDEPTH"))
        return iter([finding("easy", 1)])

    monkeypatch.setattr(audit, "missing", lambda: "")
    monkeypatch.setattr(audit, "audit", found)
    assert run("audit", "--targets", "gfx906,sm_80", "--kernels", "rbf").code == 0
    assert depths == {"gfx906": "-DDEPTH=8", "sm_80": "-DDEPTH=16"}


def test_audit_says_what_is_missing(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "missing", lambda: "no clang")
    assert run("audit") == (1, "", "clsvm: error: no clang\n")


def test_audit_of_a_real_kernel(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    if words := audit.missing():
        pytest.skip(words)
    fixed = [v for v in registry.fixed(PROFILES["gpu"]) if v.label == "zero"]
    monkeypatch.setattr(registry, "fixed", lambda profile: fixed)
    monkeypatch.setattr(registry, "registry", lambda specs, profile: [])
    result = run("audit", "--targets", "gfx906")
    assert (result.code, result.err) == (0, "")
    assert re.search(r"^│ gfx906 +│ zero +│ zero ", result.out, re.MULTILINE)
    assert result.out.endswith("1 programs, 1 targets, 1 kernels: 0 with problems\n")


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("profile_name", ["cpu", "gpu"])
def test_the_fixed_programs_are_those_that_a_fit_builds(
    device: str, profile_name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every program of a fit and its predictions is in the list, or has the kernel function in it."""
    take_profile(profile_name, device, monkeypatch)
    built: set[tuple[str, tuple[str, ...], str]] = set()
    kernel = Stream.kernel

    def recorded(stream: Stream, text: str, options: Any, name: str) -> Any:
        built.add((text, tuple(options), name))
        return kernel(stream, text, options, name)

    monkeypatch.setattr(Stream, "kernel", recorded)
    X, y = noisy(300, 6)
    fitted = SVC(kernel="rbf", device=device, dtype=dtype, working_set_size=64, cache_size=1).fit(X, y)
    fitted.predict(X)
    with Stream(device) as stream:  # and of products that a binary fit has no use for
        rows = layouts.build(stream, X, layouts.choose(stream.profile, X, kernels.BUILTIN["rbf"]), dtype)
        gram = Gram(stream, rows, kernels.make("rbf"))
        panel = gram.panel(4)
        gram.gather(panel, stream.zeros(16), stream.upload(np.array([4], np.int32)))
        Sums(gram, panel, 4, 1).forward_back(np.zeros((1, 4)))
    profile = devices.default_profile(devices.find(device))
    known = {(v.text, v.options) for v in registry.fixed(profile)}
    known |= {(v.text, v.options) for v in [programs.subproblem(profile, dtype, fitted.fit_report_.working_set_size)]}
    strangers = {name for text, options, name in built if (text, options) not in known}
    assert strangers <= {"gram", "forward_back"}
    assert {name for _, _, name in built} >= {
        "extremes",
        "update",
        "subproblem",
        "pack",
        "gather",
        "zero",
        "plan",
        "back",
    }
    for v in registry.fixed(profile):
        assert re.search(rf"\bvoid {v.entry}\(", v.text), v.label
