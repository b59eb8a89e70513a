"""What each part gains (Meanti et al. 2020, appendix A.1): from plain NumPy on, one part added at a time.

All solve the same problem from the same inducing points by :class:`clsvm.nystrom.newton.Newton` to the same residual,
whose norm is the preconditioner's: the objectives, compared with the least of them, say that solutions are as good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import Asked, chosen
from benchmarks.falkon import BLOCK, FALKON_SETS, TOL, NumPyCross
from benchmarks.table import Row, Shown, label, percent, shown
from clsvm.distribute import call
from clsvm.gram import layouts
from clsvm.gram.cross import Cross, kernel_matrix
from clsvm.kernels import make
from clsvm.losses import LOSSES
from clsvm.nystrom import newton
from clsvm.nystrom.preconditioner import Preconditioner, sampled
from clsvm.nystrom.rows import RowBlock, RowOperator, Task
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
WARM = 1000  # rows of a first solve that only builds programs
ROWS = 116_000  # of covtype: a quarter of those that are trained on
MOST = 1000  # steps
TWO_CLASSES = ("synthetic", "ijcnn1", "covtype")


@dataclass(frozen=True)
class Part:
    """What a row of the table has: products in a dtype, ours or NumPy's; a preconditioner of more rows than centres; K
    kept where memory holds it."""

    name: str
    dtype: str = "float32"
    ours: bool = True
    more: bool = False
    keep: bool = False


PARTS = (
    Part("NumPy, float64", "float64", ours=False),
    Part("+ float32 products", ours=False),
    Part("+ generated OpenCL products"),
    Part("+ preconditioner of more rows than centres", more=True),
    Part("+ K kept where that is faster", more=True, keep=True),
)


@dataclass(frozen=True)
class Posed:
    """Rows (n, d), signs y (n,), centres (m, d), and which rows they are."""

    X: Any
    y: Vector
    C: Any
    places: NDArray[np.intp] | None
    gamma: float
    penalty: float
    device: Any

    def first(self, n: int) -> Posed:
        """Return the same of fewer rows, of which centres are none."""
        return replace(self, X=self.X[:n], y=self.y[:n], places=None)


class OneBlock:
    """A block of all rows, in this thread: :class:`clsvm.distribute.Parts`."""

    def __init__(self, block: RowBlock) -> None:
        self._block = block
        self.sizes: Sequence[int] = [block.n]

    def ask(self, name: str, given: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Return what the block answers to the one question."""
        return [call(self._block, name, given[0] or ())]

    def peak(self) -> int:
        """Return 0: nobody asks."""
        return 0

    def memory(self) -> tuple[int, int]:
        """Return 0 and 0: nobody asks."""
        return 0, 0


def measure(asked: Asked) -> dict[str, Any]:
    """Solve the same problem with each part; objectives, compared with the least, say that solutions are as good."""
    name, *_ = chosen("this study", asked.sets or ["covtype"], TWO_CLASSES)
    recipe = FALKON_SETS[name]
    X, y, X_test, y_test = recipe.make(asked.data)
    n = min(len(y), asked.rows or ROWS)
    places = np.sort(np.random.default_rng(0).permutation(n)[: asked.centers or 2000])
    posed = Posed(X[:n], y[:n].astype(np.float64), X[places], places, recipe.gamma, recipe.penalty, asked.device)
    rows = [_ablated(part, posed, X_test, y_test) for part in PARTS]
    least = min(row["objective"] for row in rows)
    for before, row in zip([rows[0], *rows], rows, strict=False):
        row["above_least"] = row["objective"] / least - 1
        row["gain"] = before["seconds"]["total"] / row["seconds"]["total"]
    numbers = {"gamma": recipe.gamma, "penalty": recipe.penalty, "tol": TOL}
    return {"study": "ablation", "set": name, "n": n, "d": X.shape[1], "centers": len(places), **numbers, "rows": rows}


def _ablated(part: Part, posed: Posed, X_test: Any, y_test: Any) -> dict[str, Any]:
    _solve(part, posed.first(WARM), most=2)  # builds programs, starts threads
    found, seconds, words = _solve(part, posed, MOST)
    values = NumPyCross(X_test, posed.C, posed.gamma, "float32").forward(found.alpha)[0]
    kept = ("steps", "newton_steps", "passes", "residual", "objective", "exact")
    row = {"part": part.name, "seconds": seconds, **{key: getattr(found, key) for key in kept}, **words}
    return row | {"converged": found.status.converged, "error": float(np.mean((values > 0) != (y_test > 0)))}


def _solve(part: Part, posed: Posed, most: int) -> tuple[newton.Result, dict[str, float], dict[str, Any]]:
    """Return what was found, seconds by what they were spent on, the sample's size and where K was."""
    with ExitStack() as stack:
        times = [perf_counter()]
        cross, exact = _products(part, posed, stack)
        times.append(perf_counter())
        P = Preconditioner(kernel_matrix(posed.C, gamma=posed.gamma, dtype="float64", device=posed.device))
        sample = _sampled(cross, P, posed) if part.more else posed.places
        times.append(perf_counter())
        task = Task(LOSSES["squared"], posed.y[None], np.ones(cross.n), np.zeros(1), posed.penalty)
        rows = RowOperator(OneBlock(RowBlock(cross, exact, task)), task, cross.m, lambda i: (sample,))
        # (float32's for all: it is how well steps are solved before the residual is computed anew)
        solver = newton.Newton(rows, P, TOL, most)
        solver.fine = newton.FINE["float32"]
        found = solver.run(None)
        times.append(perf_counter())
    layout, made, solved = np.diff(times).tolist()
    weighed = found.weighing
    seconds = {"layout": layout, "preconditioner": made + weighed, "conjugate gradients": solved - weighed}
    where = cross.describe() if part.ours else f"NumPy, blocks of {BLOCK} rows"
    return (
        found,
        seconds | {"total": sum(seconds.values())},
        {"sample": len(posed.C if sample is None else sample), "layout": where},
    )


def _products(part: Part, posed: Posed, stack: ExitStack) -> tuple[Any, Callable[[], Any] | None]:
    """Return K(X, C) as the solver takes it, and what makes the same in float64."""
    if not part.ours:
        plain = partial(NumPyCross, posed.X, posed.C, posed.gamma)
        return plain(part.dtype), None if part.dtype == "float64" else partial(plain, "float64")
    stream = stack.enter_context(Stream(posed.device))
    kernel = make("rbf", gamma=posed.gamma)
    given = stream, posed.X, posed.C, kernel, layouts.choose(stream.profile, posed.X, kernel.spec)
    finest = stream.profile.finest
    finer = None if finest == part.dtype else partial(Cross, *given, finest, 1, keep=False)
    return Cross(*given, part.dtype, 1, keep=part.keep), finer


def _sampled(cross: Cross, P: Preconditioner, posed: Posed) -> NDArray[np.intp] | None:
    """Return the rows of which the preconditioner is made, as a fit draws them."""
    s = sampled(cross.n, cross.m, 1, cross.cost, TOL)
    if s <= cross.m:
        return posed.places
    sample = np.sort(np.random.default_rng(1).permutation(cross.n)[:s])
    P.sample(cross.values(sample), posed.penalty)
    return sample


def show(result: Row) -> Shown:
    """Return a row for each part that is added."""
    columns = (
        ("what", "{part}"), ("preconditioner of rows", "{sample}"), ("s of it", "{seconds[preconditioner]:.3g}"),
        ("steps", "{steps}"), ("s of them", "{seconds[conjugate gradients]:.3g}"), ("s in all", "{seconds[total]:.3g}"),
        ("gain", "{gain:.2f}"), ("F above the least", "{above_least:.1e}"),
        percent("test %", "error"),
    )  # fmt: skip
    words = f"{label(result)}, m = {result['centers']}, residual {result['tol']:g}; gain: over the row before"
    return shown(words, columns, result["rows"])
