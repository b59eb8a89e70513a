"""Products over rows of which most cells are empty, in every layout that the choice between layouts weighs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.gpu.plan import Asked, PartialError
from benchmarks.gpu.products import HALF, TOLERANCE, Product
from benchmarks.gpu.training import a9a_like
from benchmarks.ladder_device import Bench, Clock
from clsvm import kernels
from clsvm.errors import ClsvmError
from clsvm.gram import layouts as laid
from clsvm.gram.products import Gram
from clsvm.opencl.stream import Stream

WORKING = (16, 512)
TEXT, WORDS = (20000, 30000), 120  # rows and columns of the text-like set, words of a row at most


def text_like(n: int, d: int) -> sp.csr_matrix:
    """Rows (n, d) of length 1, of words of which few are frequent."""
    rng = np.random.default_rng(0)
    words = (d * rng.random((n, WORDS)) ** 4).astype(np.int32)
    X = sp.csr_matrix((np.ones(words.size, np.float32), words.ravel(), WORDS * np.arange(n + 1)), shape=(n, d))
    X.sum_duplicates()
    X.data[:] = 1
    return sp.csr_matrix(X.multiply(1 / np.sqrt(X.sum(axis=1)))).astype(np.float32)


SETS: dict[str, tuple[float, Callable[[], sp.csr_matrix]]] = {  # gamma, rows
    "a9a-like": (0.05, lambda: a9a_like(Path(), 32561, 1)[0].astype(np.float32)),
    "text-like": (1.0, lambda: text_like(*TEXT)),
}


def layouts(asked: Asked) -> Iterator[dict[str, Any]]:
    """Seconds of K(X, U) of W working rows, stored and as an update, in each layout; which one is chosen."""
    wrong, left_out, began = [], [], perf_counter()
    with Bench(asked.device) as bench:
        for name, (gamma, make) in SETS.items():
            X, rbf = make(), kernels.make("rbf", gamma=gamma)
            for W in WORKING:
                if perf_counter() - began > HALF * asked.seconds:
                    left_out.append(f"{W} working rows of {name}")
                    continue
                rows = _measured(bench, X, rbf, W, min(2.0, asked.seconds / 20))
                wrong += [f"{name}, {one['layout']}, W = {W}" for one in rows if one.get("right") is False]
                yield {"layouts": [{"set": name, **one} for one in rows]}
    if wrong:
        raise ArithmeticError(f"wrong products: {'; '.join(wrong)}")
    if left_out:
        raise PartialError(f"no time for {', '.join(left_out)}")


def _measured(bench: Bench, X: sp.csr_matrix, rbf: kernels.Kernel, W: int, seconds: float) -> list[dict[str, Any]]:
    """A record of each layout and product of W working rows that there is an estimate of."""
    (n, d), made = X.shape, dict[tuple[str, bool], Product]()
    records: dict[tuple[str, bool | None], dict[str, Any]] = {}
    plan = laid.choose(bench.profile, X, rbf.spec, working=W)
    every = laid.choose(bench.profile, X, rbf.spec, plan.kind, W)  # (a choice estimates only what may be chosen)
    with ExitStack() as stack:
        for kind, cost in every.costs.items():
            head = {"n": n, "d": d, "entries": X.nnz / n, "layout": kind, "chosen": kind == plan.kind}
            try:
                stream = stack.enter_context(Stream(bench.queue))
                rows = laid.build(stream, X, laid.choose(bench.profile, X, rbf.spec, kind, W), "float32")
                for stored in (True, False):
                    one = Product(Gram(stream, rows, rbf), X, W, stored)
                    one.launch()
                    stream.finish()
                    made[kind, stored] = one
                    records[kind, stored] = {**head, "W": W, "stored": stored, "estimate": cost}
            except (ClsvmError, ValueError) as error:  # what one layout lacks leaves the others worth trying
                records[kind, None] = {**head, "W": W, "refused": f"{type(error).__name__}: {error}"[:500]}
        clock = Clock(seconds)
        clock.run(bench, {str(key): one.launch for key, one in made.items()})
        for key, one in made.items():
            spent, off = clock.best[str(key)], one.error()
            records[key] |= {"seconds": spent, "gflops": 2e-9 * X.nnz * W / spent, "error": off}
            records[key]["right"] = off <= TOLERANCE
    return list(records.values())
