"""Times of products K(X, U) of rows in several layouts, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import check
from benchmarks.boostsvm.cases import Case
from benchmarks.boostsvm.shared import spread
from clsvm.gram import layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram, Store
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Buffer, Stream

WORKING = (512, 16)  # working rows of a product
COMPARED = 8, 256  # working rows, and rows of X, whose kernel values are recomputed in float64


class Laid:
    """Rows on the device by a plan. seconds: of laying them out. nbytes: that they hold."""

    def __init__(self, stream: Stream, X: Any, plan: Plan, kernel: Kernel) -> None:
        held, began = stream.held, perf_counter()
        self.rows = layouts.build(stream, X, plan, "float32")
        stream.finish()
        self.seconds, self.nbytes = perf_counter() - began, stream.held - held
        self.gram = Gram(stream, self.rows, kernel)


class Product:
    """K(X, U) for the rows ``chosen`` of X as U into ``out``, ready to run. nbytes: what it reads and writes where rows
    are read once: rows, panel and K."""

    def __init__(self, stream: Stream, laid: Laid, chosen: NDArray[np.int64], out: Buffer) -> None:
        self.stream, self.laid, rows, gram = stream, laid, laid.rows, laid.gram
        self.panel, self.count = gram.panel(len(chosen)), stream.upload(np.array([len(chosen)], np.int32))
        self._at, self._out = stream.upload(rows.position[chosen]), out
        gram.gather(self.panel, self._at, self.count)
        self._store = Store((self._out,), len(chosen), rows.n_pad, gram.slot(self.panel.capacity))
        blocks = self.panel.capacity // self.panel.width if self.panel.rows_stay else 1  # (a panel of CSR holds one)
        self.nbytes = laid.nbytes + blocks * self.panel.nbytes + values_bytes(laid, len(chosen))

    def run(self) -> float:
        """The seconds of one product right after the same one: those of a fit follow each other, too, and so what the
        contestant before left in the caches does not count."""
        for _ in range(2):
            self.stream.finish()
            began = perf_counter()
            self.laid.gram.accumulate(self.panel, self.count, self._store, None)
            self.stream.finish()
        return perf_counter() - began

    def values(self, working: int, sample: NDArray[np.int64]) -> NDArray[np.float64]:
        """K of the first ``working`` working rows and some rows of X, (working, len(sample)), of the last run."""
        K = self.stream.read(self._out, np.dtype(np.float32), (working, self.laid.rows.n_pad))
        return np.asarray(K[:, self.laid.rows.position[sample]], np.float64)

    def free(self) -> None:
        """Give back all but the rows."""
        self.stream.free(*self.panel.buffers(), self.count, self._at)


def values_bytes(laid: Laid, working: int) -> int:
    """Of K(X, U) with so many working rows."""
    return 4 * working * laid.rows.n_pad


def race(
    stream: Stream, case: Case, contestants: Mapping[str, Laid], repeats: int, numbers: Sequence[int] = WORKING
) -> list[dict[str, Any]]:
    """A row for each of the ``numbers`` of working rows and contestant: median seconds of ``repeats`` runs after a
    first one.

    effective, done: multiply-adds of the entries that are not 0, and of all cells that are stored. apart: the largest
    difference of a kernel value to float64's. A contestant whose columns are permuted has the same values. All write to
    the same place, as a fit's products do: on some systems the pages that a buffer gets decide more than the layout.
    """
    found, rng, n = [], np.random.default_rng(1), case.X.shape[0]
    for working in numbers:
        chosen = rng.choice(n, min(working, n), replace=False)
        sample = rng.choice(n, min(COMPARED[1], n), replace=False)
        expected = _reference(case, chosen[: COMPARED[0]], sample)
        out = stream.buffer(max(values_bytes(laid, len(chosen)) for laid in contestants.values()))
        products = {name: Product(stream, laid, chosen, out) for name, laid in contestants.items()}
        turns = [{name: product.run() for name, product in products.items()} for _ in range(repeats)]
        for name, product in products.items():
            seconds = [turn[name] for turn in turns]
            product.run()
            found.append({
                "W": working,
                "name": name,
                "seconds": statistics.median(seconds),
                "spread": spread(seconds),
                "all_seconds": seconds,
                "effective": case.nnz * len(chosen),
                "done": product.laid.rows.stored * len(chosen),
                "bytes": product.nbytes,
                "apart": float(np.abs(product.values(len(expected), sample) - expected).max()),
            })  # fmt: skip
            product.free()
        stream.free(out)
    return found


def _reference(case: Case, chosen: NDArray[np.int64], sample: NDArray[np.int64]) -> NDArray[np.float64]:
    U, X = case.X[chosen].astype(np.float64), case.X[sample].astype(np.float64)
    return check.kernel("rbf", gamma=case.gamma)(U, X)
