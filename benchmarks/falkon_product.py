"""The product K(X, C)'(w * (K(X, C) V)) of machines on centres, K made in every pass, beside what it must cost, KeOps
and NumPy by blocks.

The floor of a pass is n m (d + c + 2 k) multiply-adds at the rate of NumPy's matrix product, or the bytes of X at the
rate of a copy; c, what the kernel function costs, is the time that it adds to the linear one's at the same d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

from clsvm.gram import layouts
from clsvm.gram.products import Gram
from clsvm.gram.sums import Sums
from clsvm.kernels import Kernel, make
from clsvm.opencl.stream import Stream

FEATURES, OUTPUTS = (3, 10, 28, 90, 784), (1, 10)
BLOCK, KEOPS = 4096, 90  # rows of NumPy's; features that KeOps is tried with at most: it is made for few


def run(peers: Sequence[str], device: Any, repeats: int, n: int = 100_000, m: int = 2000) -> dict[str, Any]:
    """Seconds of a pass for each number of features and outputs; float32, rbf."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for d in FEATURES:
        X = rng.random((n, d), np.float32)
        C, gamma = X[:m].copy(), 1.0 / d
        for k in OUTPUTS:
            V = rng.normal(size=(k, m))
            rate, copied = multiply_adds(), copy_rate()
            seconds = {"clsvm": best(_ours(X, C, V, make("rbf", gamma=gamma), device), repeats)}
            linear = best(_ours(X, C, V, make("linear"), device), repeats)
            if "numpy" in peers:
                seconds["numpy"] = best(partial(by_blocks, X, C, V, gamma), max(2, repeats // 2))
            if "keops" in peers and d <= KEOPS:
                seconds["keops"] = best(keops(X, C, V, gamma), max(2, repeats // 2))
            c = max(0.0, seconds["clsvm"] - linear) * rate / (n * m)
            floor = max(n * m * (d + c + 2 * k) / rate, X.nbytes / copied)
            rows.append({"d": d, "k": k, "seconds": seconds, "c": c, "floor": floor, "fma": rate, "copy": copied})
    return {"n": n, "m": m, "rows": rows}


def best(call: Callable[[], Any], repeats: int) -> float:
    """The least seconds of some calls after a first."""
    call()
    spent = []
    for _ in range(repeats):
        began = perf_counter()
        call()
        spent.append(perf_counter() - began)
    return min(spent)


def multiply_adds(size: int = 2048) -> float:
    """Of NumPy's float32 matrix product, a second."""
    A = np.ones((size, size), np.float32)
    return size**3 / best(lambda: A @ A, 5)


def copy_rate(nbytes: int = 1 << 28) -> float:
    """Bytes read a second by a sum over memory."""
    A = np.ones(nbytes // 4, np.float32)
    return nbytes / best(lambda: A.sum(), 3)


def _ours(X: Any, C: Any, V: Any, kernel: Kernel, device: Any) -> Callable[[], Any]:
    stream = Stream(device)
    rows = layouts.build(stream, X, layouts.choose(stream.profile, X, kernel.spec, "dense"), "float32")
    gram = Gram(stream, rows, kernel)
    panel = gram.panel(len(C), square=True)
    at, count = stream.upload(rows.position[: len(C)]), stream.upload(np.array([len(C)], np.int32))
    gram.gather(panel, at, count)
    sums = Sums(gram, panel, len(C), len(V))
    return lambda: sums.forward_back(V)


def by_blocks(X: Any, C: Any, V: Any, gamma: float) -> Any:
    """The product (m, k) of X (n, d), C (m, d) and V (k, m) in NumPy."""
    cc, weights, out = np.square(C).sum(axis=1), V.T.astype(np.float32), 0.0
    for first in range(0, len(X), BLOCK):
        K = rbf(X[first : first + BLOCK], C, cc, gamma)
        out = out + K.T @ (K @ weights)
    return out


def rbf(x: Any, C: Any, cc: Any, gamma: float) -> Any:
    """K(x, C) in NumPy. cc: the squared lengths of the rows of C."""
    return np.exp(-gamma * (np.square(x).sum(axis=1)[:, None] + cc - 2 * (x @ C.T)))


def keops(X: Any, C: Any, V: Any, gamma: float) -> Callable[[], Any]:
    """A call of the product of X (n, d), C (m, d) and V (k, m) in float32."""
    from pykeops.numpy import LazyTensor

    x, c, weights = LazyTensor(X[:, None, :]), LazyTensor(C[None, :, :]), np.ascontiguousarray(V.T, np.float32)
    K = (-((x - c) ** 2).sum(-1) * np.float32(gamma)).exp()
    return lambda: K.T @ np.ascontiguousarray(K @ weights)


def show(result: dict[str, Any]) -> Table:
    """A row for each number of features and outputs."""
    names = [*result["rows"][0]["seconds"]]
    table = Table(title=f"K'(w * (K V)), n = {result['n']}, m = {result['m']}, float32: milliseconds of a pass")
    for title in ("d", "k", *names, "floor", "times floor", "c"):
        table.add_column(title, justify="right")
    for row in result["rows"]:
        spent = row["seconds"]
        cells = (f"{1e3 * spent[name]:.0f}" if name in spent else "" for name in names)
        last = f"{1e3 * row['floor']:.0f}", f"{spent['clsvm'] / row['floor']:.2f}", f"{row['c']:.0f}"
        table.add_row(str(row["d"]), str(row["k"]), *cells, *last)
    return table
