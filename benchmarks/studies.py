"""Studies of Nyström kernel machines: the tables and figures of Meanti et al. 2020 (Kernel methods through the roof).

table5    seconds and test errors of Falkon, SVC and LIBSVM with the same rbf kernel
ablation  the gain of each part (appendix A.1): the first row is plain NumPy, and each further row adds one part
features  seconds of the product K(X, C)'(K(X, C) v) over the number of features, beside KeOps (figure 8)
curves    test errors over seconds: SVMs on growing numbers of rows, Falkon on all rows with growing numbers of points
growth, outofcore: see benchmarks/larger.py
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.svm import SVC

import clsvm
from benchmarks import larger, solvers, table
from benchmarks.bench import Laid
from benchmarks.command import DATA, Asked, Command, Part, chosen, each_set, number, option, peers, repeats, several
from benchmarks.falkon import FALKON_SETS, TOL, score
from benchmarks.sets import Split
from benchmarks.solvers import fields_of, interleaved, timed
from benchmarks.table import Row, Shown, label, percent, shown
from clsvm.distribute import call_part
from clsvm.gram import layouts
from clsvm.gram.cross import Cross, Sums, kernel_matrix
from clsvm.kernels import make
from clsvm.losses import LOSSES
from clsvm.nystrom import newton
from clsvm.nystrom.preconditioner import Preconditioner, sampled
from clsvm.nystrom.rows import RowBlock, RowOperator, Task, deviation
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
WARM = 1000  # rows of a first fit that only builds programs


def over_sets(
    study: str, measure: Callable[[str, Asked], Row], usual: Sequence[str], further: Sequence[str] = ()
) -> Callable[[Asked], Row]:
    """Return a function that measures the requested data sets, by default the ``usual`` ones.

    Other data sets than the usual and further ones raise MissingSetError.
    """

    def every(asked: Asked) -> Row:
        asked.sets = chosen("this study", asked.sets or usual, (*usual, *further))
        return {"study": study, "centers": asked.centers or 2000, **each_set(measure, "limit")(asked)}

    return every


def fitted(model: Any, split: Split, n: int, classes: bool) -> Row:
    """Return seconds and test error of a fit on the first n rows, after a fit on few rows that builds the programs."""
    X, y, X_test, y_test = split
    gc.collect()
    model.fit(X[: min(n, WARM)], y[: min(n, WARM)])
    row = {"solver": type(model).__name__, "rows": n, "seconds": timed(lambda: model.fit(X[:n], y[:n]))[0]}
    row |= {"vectors": model.support_vectors_.shape[0], "error": score(model, X_test, y_test, classes)}
    return row | {"converged": bool(model.fit_report_.converged)}


def _converged(result: Row) -> bool:
    return all(row.get("converged", True) for one in result["sets"] for row in one["rows"])


def _rows(result: Row) -> list[Row]:
    return [row | {"label": label(one), "one": one} for one in result["sets"] for row in one["rows"]]


# Table 5.

PAPER = {"mnist": {"Falkon": 10.9, "Falkon in core": 6.5, "ThunderSVM": 19.6}}  # seconds on two GPUs


def table5(name: str, asked: Asked) -> Row:
    """Fit Falkon, SVC and LIBSVM to a data set."""
    recipe, m = FALKON_SETS[name], asked.centers or 2000
    X, y, *tests = recipe.make(asked.data)
    split = X[: asked.rows], y[: asked.rows], *tests
    given = {"gamma": recipe.gamma, "device": asked.device, "random_state": 0}
    models = (
        clsvm.FalkonClassifier(n_centers=m, penalty=recipe.penalty, tol=TOL, **given),
        clsvm.SVC(C=recipe.C, **given),
    )
    n = len(split[1])
    rows = [fitted(model, split, n, True) | {"note": ""} for model in models]
    if "libsvm" in asked.peers:
        rows.append(_libsvm(SVC(C=recipe.C, gamma=recipe.gamma, cache_size=solvers.CACHE_MB), asked, split))
    numbers = fields_of(recipe, "gamma", "C", "penalty") | {"paper": PAPER.get(name, {})}
    return {"set": name, "n": n, "d": X.shape[1], **numbers, "rows": rows}


def _libsvm(model: SVC, asked: Asked, split: Split) -> Row:
    """Return a row of LIBSVM; the seconds of a fit on fewer rows grow with their square to those of all rows."""
    X, y, X_test, y_test = split
    n, some = len(y), min(len(y), asked.libsvm_rows)
    (form,) = solvers.forms("libsvm", X)
    rows = solvers.formed(X[:some], form)
    seconds, _ = timed(lambda: model.fit(rows, y[:some]))
    error = score(model, solvers.formed(X_test, form), y_test, True)
    note = "" if some == n else f"extrapolated from {some} rows with the square of the rows"
    row = {"solver": "LIBSVM", "form": form, "rows": some, "vectors": len(model.support_vectors_), "note": note}
    row |= {"measured_seconds": seconds, "measured_error": error}
    return row | {"seconds": seconds * (n / some) ** 2, "error": error if some == n else None}


def _show_table5(result: Row) -> Shown:
    columns: tuple[table.Column, ...] = (
        ("set", "{label}"), ("solver", "{solver}"), ("rows", "{rows}"), ("vectors", "{vectors}"),
        ("s", "{seconds:.3g}"),
        ("times Falkon's", lambda row: f"{row['seconds'] / row['one']['rows'][0]['seconds']:.1f}"),
        ("test error %", lambda row: f"{100 * (row['error'] or row['measured_error']):.2f}"), ("note", "{note}"),
    )  # fmt: skip
    title = f"Falkon on {result['centers']} inducing points beside SVMs: seconds to train and test errors"
    return shown(title, columns, _rows(result), left=2)


# Curves.

FIRST = 1000  # rows of the first SVM
CENTERS = (100, 200, 500, 1000, 2000, 4000)


def curves(name: str, asked: Asked) -> Row:
    """Return the points of a data set's curves; an SVM that takes longer than the limit is the last one."""
    recipe = FALKON_SETS[name]
    X, y, *tests = recipe.make(asked.data)
    some = np.random.default_rng(0).permutation(len(y))[: asked.rows or recipe.most]  # (ijcnn1 is a time series)
    points = _points(name, (X[some], y[some], *tests), asked)
    rows = [{**row, "machine": row.pop("solver")} for row in points]
    numbers = {"classes": recipe.epsilon is None, **fields_of(recipe, "gamma", "penalty", "C", "epsilon")}
    return {"set": name, "n": len(some), "d": X.shape[1], **numbers, "rows": rows}


def _points(name: str, split: Split, asked: Asked) -> Iterator[Row]:
    recipe, most = FALKON_SETS[name], len(split[1])
    classes, n, seconds = recipe.epsilon is None, 0, 0.0
    given: Row = {"gamma": recipe.gamma, "device": asked.device}
    while seconds <= asked.limit and n < most:
        n = min(2 * n or FIRST, most)
        svr: Row = {} if classes else {"epsilon": recipe.epsilon}
        point = fitted((clsvm.SVC if classes else clsvm.SVR)(C=recipe.C, **svr, **given), split, n, classes)
        seconds = point["seconds"]
        yield point
    given |= {"penalty": recipe.penalty, "tol": TOL, "random_state": 0}
    for m in CENTERS:
        if m <= min(most, asked.centers or most):
            model = (clsvm.FalkonClassifier if classes else clsvm.FalkonRegressor)(n_centers=m, **given)
            yield fitted(model, split, most, classes)


def _show_curves(result: Row) -> Shown:
    columns: tuple[table.Column, ...] = (
        ("set", "{label}"), ("machine", "{machine}"), ("rows", "{rows}"), ("vectors", "{vectors}"),
        ("s", "{seconds:.3g}"),
        ("test error", lambda row: f"{row['error']:.2%}" if row["one"]["classes"] else f"{row['error']:.4f}"),
    )  # fmt: skip
    title = f"test errors against seconds; SVMs on ever more rows, until a fit takes {result['limit']:g} s"
    return shown(title, columns, _rows(result), left=2)


# Features.

FEATURES, POINTS = (1, 3, 10, 30, 100, 300, 784), (100_000, 2000)  # POINTS: rows and inducing points
PROBE = 1000  # rows of a pass that estimates KeOps' rate


def features(asked: Asked) -> Row:
    """Time K(X, C)'(K(X, C) v) in float32 for each number of features, beside KeOps and a lower bound."""
    n, m = asked.rows or POINTS[0], asked.centers or POINTS[1]
    return {"study": "features", "n": n, "m": m, "rows": [_pass(d, n, min(n, m), asked) for d in FEATURES]}


def _pass(d: int, n: int, m: int, asked: Asked) -> Row:
    """Time interleaved passes over n rows of d features.

    KeOps gets as many rows as the time limit allows, and its seconds are scaled to n rows. The lower bound counts n m
    (d + c + 2) multiply-adds at the rate of NumPy's matrix product, or the bytes of X at the rate of a sum. Here c is
    the cost of the kernel function, from the time that it adds to the linear kernel's.
    """
    rng, gamma = np.random.default_rng(0), 1.0 / d
    X, V = rng.random((n, d), np.float32), rng.normal(size=(1, m))
    C, A, B = X[:m].copy(), np.ones((2048, 2048), np.float32), np.ones(1 << 26, np.float32)
    calls, rows = {"clsvm": _clsvm_pass(X, V, "rbf", asked.device, gamma=gamma)}, {"clsvm": n}
    if "keops" in asked.peers:
        probe = min(PROBE, n)
        least = best({"keops": keops(X[:probe], C, V, gamma)}, 2)["keops"]
        rows["keops"] = int(min(n, max(probe, probe * asked.limit / least)))
        calls["keops"] = keops(X[: rows["keops"]], C, V, gamma)
    ours, *others = (np.asarray(call(), np.float64).reshape(1, m) for name, call in calls.items() if rows[name] == n)
    apart = max((float(np.abs(one - ours).max() / np.abs(one).max()) for one in others), default=None)
    seconds = {name: spent * n / rows[name] for name, spent in best(calls, asked.repeats).items()}
    limits: dict[str, Callable[[], Any]] = {
        "linear": _clsvm_pass(X, V, "linear", asked.device),
        "product": partial(np.matmul, A, A),
        "copy": B.sum,
    }
    spent = best(limits, 3)
    rate, copied = 2048**3 / spent["product"], B.nbytes / spent["copy"]
    c = max(0.0, seconds["clsvm"] - spent["linear"]) * rate / (n * m)
    floor = max(n * m * (d + c + 2) / rate, X.nbytes / copied)
    measured = {"seconds": seconds, "rows": rows, "apart": apart}
    return {"d": d, **measured, "c": c, "floor": floor, "fma": rate, "copy": copied}


def best(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the least seconds of each interleaved call after its first one."""
    return {name: min(seconds[1:]) for name, (seconds, _) in interleaved(calls, repeats + 1).items()}


def _clsvm_pass(X: Any, V: Any, kernel: str, device: Any, **numbers: float) -> Callable[[], Any]:
    """Return clsvm's product, with the first m rows of X as inducing points."""
    (k, m), gram = V.shape, Laid(Stream(device), X, make(kernel, **numbers)).gram
    panel, count = gram.panel(m, square=True), gram.stream.upload(np.array([m], np.int32))
    gram.gather(panel, gram.stream.upload(gram.rows.position[:m]), count)
    return partial(Sums(gram, panel, m, k).forward_back, V)


def keops(X: Any, C: Any, V: Any, gamma: float) -> Callable[[], Any]:
    """Return KeOps' product (k, m) of X (n, d), C (m, d) and V (k, m) in float32."""
    from pykeops.numpy import LazyTensor

    x, c, weights = LazyTensor(X[:, None, :]), LazyTensor(C[None, :, :]), np.ascontiguousarray(V.T, np.float32)
    K = (-((x - c) ** 2).sum(-1) * np.float32(gamma)).exp()
    return lambda: (K.T @ np.ascontiguousarray(K @ weights)).T


def _show_features(result: Row) -> Shown:
    def milliseconds(name: str) -> table.Column:
        return name, lambda row: f"{1e3 * row['seconds'][name]:.3g}"

    columns = (
        ("d", "{d}"), *map(milliseconds, result["rows"][0]["seconds"]),
        ("KeOps / ours", lambda row: f"{row['seconds']['keops'] / row['seconds']['clsvm']:.1f}"),
        ("KeOps' rows", "{rows[keops]}"), ("floor", lambda row: f"{1e3 * row['floor']:.0f}"),
        ("times floor", lambda row: f"{row['seconds']['clsvm'] / row['floor']:.2f}"), ("c", "{c:.0f}"),
    )  # fmt: skip
    words = f"K'(K v), n = {result['n']}, m = {result['m']}, float32: milliseconds of a pass"
    return shown(words, columns, result["rows"], left=0)


# Ablation.

ROWS = 116_000  # a quarter of covtype's training rows
MOST = 1000  # iterations of conjugate gradients
BLOCK = 4096  # rows of a block in NumPy
TWO_CLASSES = ("synthetic", "ijcnn1", "covtype")


@dataclass(frozen=True)
class Added:
    """The parts of a row of the ablation.

    dtype: of products. ours: whether clsvm makes the products, or NumPy. more: whether the preconditioner takes more
    rows than inducing points. keep: whether K is stored if memory holds it.
    """

    name: str
    dtype: str = "float32"
    ours: bool = True
    more: bool = False
    keep: bool = False


PARTS = (
    Added("NumPy, float64", "float64", ours=False),
    Added("+ float32 products", ours=False),
    Added("+ generated OpenCL products"),
    Added("+ preconditioner of more rows than centres", more=True),
    Added("+ K kept where that is faster", more=True, keep=True),
)


@dataclass(frozen=True)
class AblationProblem:
    """A problem: rows X (n, d), signs y (n,), and inducing points C (m, d), which are the rows at ``places``."""

    X: Any
    y: Vector
    C: Any
    places: NDArray[np.intp] | None
    gamma: float
    penalty: float
    device: Any


class NumPyCross:
    """The methods of a Cross that the solver calls, in NumPy: each pass computes K(X, C) of an rbf kernel by blocks.

    Sums over rows are in float64.
    """

    def __init__(self, X: Any, C: Any, gamma: float, dtype: str) -> None:
        self._X, self._C, self._gamma, self._real = X.astype(dtype), C.astype(dtype), gamma, np.dtype(dtype)
        self._cc = np.square(self._C).sum(axis=1)
        self.n, self.m, self.k, self.passes, self.dtype = len(X), len(C), 1, 0, dtype
        self.set_weights()

    def set_weights(self, w: Any = None, shares: Any = None) -> None:
        """Set the weights w (n,) of :meth:`forward_back`; ``shares``, for losses that couple outputs, is ignored."""
        self._w = np.ones(self.n) if w is None else w.reshape(self.n)

    def forward(self, V: Any) -> NDArray[np.float64]:
        """Return K V (k, n) of V (k, m)."""
        v = V.T.astype(self._real)
        return np.concatenate([K @ v for _, K in self._blocks()]).T.astype(np.float64)

    def back(self, R: Any) -> NDArray[np.float64]:
        """Return K' R (k, m) of R (k, n)."""
        return self._summed((K, R[:, rows].T) for rows, K in self._blocks())

    def forward_back(self, V: Any) -> NDArray[np.float64]:
        """Return K' (w * (K V)) (k, m) of V (k, m)."""
        v = V.T.astype(self._real)
        return self._summed((K, self._w[rows, None] * (K @ v)) for rows, K in self._blocks())

    def _summed(self, parts: Iterable[tuple[Any, Any]]) -> NDArray[np.float64]:
        out = 0.0
        for K, values in parts:
            out = out + (K.T @ values.astype(self._real)).astype(np.float64)
        return np.asarray(out).T

    def _blocks(self) -> Iterator[tuple[slice, Any]]:
        self.passes += 1
        for first in range(0, self.n, BLOCK):
            rows = slice(first, first + BLOCK)
            x = self._X[rows]
            distances = np.square(x).sum(axis=1)[:, None] + self._cc - 2 * (x @ self._C.T)
            yield rows, np.exp(-self._gamma * distances)


class OneBlock:
    """The methods of :class:`clsvm.distribute.Parts` that a solver calls, for one block of all rows in this thread."""

    def __init__(self, block: RowBlock) -> None:
        self._block = block
        self.sizes = [block.n]

    def call(self, name: str, given: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Return the block's answer to the request."""
        return [call_part(self._block, name, given[0] or ())]


def ablation(asked: Asked) -> Row:
    """Solve the same problem with more and more parts, and compare each objective with the least one."""
    name, *_ = chosen("this study", asked.sets or ["covtype"], TWO_CLASSES)
    recipe = FALKON_SETS[name]
    X, y, X_test, y_test = recipe.make(asked.data)
    n = min(len(y), asked.rows or ROWS)
    places = np.sort(np.random.default_rng(0).permutation(n)[: asked.centers or 2000])
    problem = AblationProblem(
        X[:n], y[:n].astype(np.float64), X[places], places, recipe.gamma, recipe.penalty, asked.device
    )
    rows = [_ablated(part, problem, X_test, y_test) for part in PARTS]
    least = min(row["objective"] for row in rows)
    for before, row in zip([rows[0], *rows], rows, strict=False):
        row["above_least"] = row["objective"] / least - 1
        row["gain"] = before["seconds"]["total"] / row["seconds"]["total"]
    numbers = fields_of(recipe, "gamma", "penalty") | {"tol": TOL, "centers": len(places)}
    return {"study": "ablation", "set": name, "n": n, "d": X.shape[1], **numbers, "rows": rows}


def _ablated(part: Added, problem: AblationProblem, X_test: Any, y_test: Any) -> Row:
    _solve(part, replace(problem, X=problem.X[:WARM], y=problem.y[:WARM], places=None), most=2)  # builds programs
    found, row = _solve(part, problem, MOST)
    values = NumPyCross(X_test, problem.C, problem.gamma, "float32").forward(found.alpha)[0]
    row |= fields_of(found, "steps", "newton_steps", "passes", "residual", "objective", "exact") | {"part": part.name}
    return row | {"converged": found.status.converged, "error": float(np.mean((values > 0) != (y_test > 0)))}


def _solve(part: Added, problem: AblationProblem, most: int) -> tuple[newton.Result, Row]:
    """Return the solution, the seconds of each part, the number of sampled rows and the place of K."""
    with ExitStack() as stack:
        times = [perf_counter()]
        cross, exact = _products(part, problem, stack)
        times.append(perf_counter())
        P = Preconditioner(kernel_matrix(problem.C, gamma=problem.gamma, dtype="float64", device=problem.device))
        sample = _sampled(cross, P, problem) if part.more else problem.places
        times.append(perf_counter())
        y, offset = problem.y[None], np.zeros(1)
        task = Task(LOSSES["squared"], y, np.ones(cross.n), offset, problem.penalty, deviation(y, offset))
        blocks: Any = OneBlock(RowBlock(cross, exact, task))
        rows = RowOperator(blocks, task, cross.m, lambda i: (sample, task.total, None))
        # All rows of the table recompute the residual as often as float32 products need it.
        solver = newton.Newton(rows, P, TOL, most)
        solver.fine = newton.FINE["float32"]
        found = solver.run(None)
        times.append(perf_counter())
    layout, made, solved = np.diff(times).tolist()
    weighed = found.preconditioner_seconds
    seconds = {"layout": layout, "preconditioner": made + weighed, "conjugate gradients": solved - weighed}
    seconds["total"] = sum(seconds.values())
    where = cross.describe() if part.ours else f"NumPy, blocks of {BLOCK} rows"
    return found, {"seconds": seconds, "sample": len(problem.C if sample is None else sample), "layout": where}


def _products(part: Added, problem: AblationProblem, stack: ExitStack) -> tuple[Any, Callable[[], Any] | None]:
    """Return K(X, C), and a function that makes K(X, C) in float64."""
    if not part.ours:
        plain = partial(NumPyCross, problem.X, problem.C, problem.gamma)
        return plain(part.dtype), None if part.dtype == "float64" else partial(plain, "float64")
    stream = stack.enter_context(Stream(problem.device))
    kernel = make("rbf", gamma=problem.gamma)
    given = stream, problem.X, problem.C, kernel, layouts.choose(stream.profile, problem.X, kernel.spec)
    finest = stream.profile.finest
    finer = None if finest == part.dtype else partial(Cross, *given, finest, 1, keep=False)
    return Cross(*given, part.dtype, 1, keep=part.keep), finer


def _sampled(cross: Cross, P: Preconditioner, problem: AblationProblem) -> NDArray[np.intp] | None:
    """Return the rows of the preconditioner, as many as a fit would draw."""
    s, sums = sampled(cross.n, cross.m, 1, cross.cost, TOL, spectrum=P.spectrum(problem.penalty, cross.n))
    if s <= cross.m:
        return problem.places
    sample = np.sort(np.random.default_rng(1).permutation(cross.n)[:s])
    if sums:
        P.sample_sums(lambda some: cross.values(sample[some]))
    else:
        P.sample(cross.values(sample), problem.penalty)
    return sample


def _show_ablation(result: Row) -> Shown:
    columns = (
        ("what", "{part}"), ("preconditioner of rows", "{sample}"), ("s of it", "{seconds[preconditioner]:.3g}"),
        ("steps", "{steps}"), ("s of them", "{seconds[conjugate gradients]:.3g}"), ("s in all", "{seconds[total]:.3g}"),
        ("gain", "{gain:.2f}"), ("F above the least", "{above_least:.1e}"),
        percent("test %", "error"),
    )  # fmt: skip
    words = f"{label(result)}, m = {result['centers']}, residual {result['tol']:g}; gain: over the row before"
    return shown(words, columns, result["rows"])


STUDIES = {
    "table5": Part(over_sets("table5", table5, ("mnist", "synthetic")), _show_table5, _converged),
    "ablation": Part(
        ablation,
        _show_ablation,
        lambda result: all(row["converged"] and row["above_least"] <= 1e-3 for row in result["rows"]),
    ),
    "features": Part(
        features,
        _show_features,
        lambda result: all((row.get("apart") or 0.0) < 1e-4 for row in result["rows"]),
    ),
    "curves": Part(
        over_sets("curves", curves, ("kin40k", "ijcnn1", "covtype"), ("synthetic",)), _show_curves, _converged
    ),
    **larger.STUDIES,
}
COMMAND = Command(
    "study",
    "studies of Nyström kernel machines: beside SVMs and KeOps, gain of each part, growth with the rows, tiles",
    (
        option("study", choices=tuple(STUDIES), help="which one"),
        several("--sets", tuple(FALKON_SETS), None, "; the study's own"),
        peers(("keops", "libsvm"), ("keops", "libsvm")),
        number("--centers", None, "m, the largest of them in curves"),
        number("--rows", None, "n at most, the largest of them in growth"),
        number("--libsvm-rows", 5000, "rows that LIBSVM is fitted on, table5"),
        number("--limit", 60.0, "seconds of a fit or a pass, curves, features"),
        option("--memory-limit", default="400MB", help="of the device in growth"),
        option("--sizes", type=int, nargs="+", default=[2000, 4000, 6000, 8000, 12000], help="of matrices, outofcore"),
        option("--dtypes", nargs="+", choices=tuple(larger.APART_BY), default=[*larger.APART_BY], help="of them"),
        repeats(3, "of a product in features and of a factor in outofcore, after the cold one"), DATA,
    ),
    STUDIES,
    lambda given: given["study"],
)  # fmt: skip
