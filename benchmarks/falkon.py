"""Nyström kernel machines against the direct solution at the same inducing points: scikit-learn's Nystroem and Ridge,
or its LogisticRegression, in turns. The peer has a row for each form of its rows.

--product: K(X, C)'(w * (K(X, C) V)), K made in every pass, beside KeOps and NumPy by blocks and beside what it must
cost: n m (d + c + 2 k) multiply-adds at the rate of NumPy's matrix product, or the bytes of X at the rate of a copy; c,
what the kernel function costs, is the time that it adds to the linear one's at the same d.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

import clsvm
from benchmarks import sets, solvers, table
from benchmarks.bench import Laid
from benchmarks.command import DATA, Asked, Command, Part, number, option, peers, repeats, sets_of
from benchmarks.solvers import Answer, at_work, dense, in_turns, timed, turns
from benchmarks.table import Row, Shown, picture, shown
from clsvm.gram.cross import Sums
from clsvm.kernels import make
from clsvm.opencl.stream import Stream

Split = tuple[Any, Any, Any, Any]
PRECISE: dict[str, Any] = {"max_iter": 5000, "tol": 1e-7}  # else scikit-learn's logistic loss ends far from its least
TOL = 1e-3  # of ours: test errors are the direct solution's by then


@dataclass(frozen=True)
class FalkonSet:
    """How to make a set, its kernel width and penalty; what studies take for SVMs: C, epsilon of numbers, rows at most.

    logistic: whether that loss is measured, too.
    """

    make: Callable[[Path | None], Split]
    gamma: float
    penalty: float
    logistic: bool = False
    C: float = 1.0
    epsilon: float | None = None
    most: int | None = None


def _standard(X: Any) -> Any:
    spread = X.std(axis=0)
    return ((X - X.mean(axis=0)) / np.where(spread > 0, spread, 1)).astype(np.float32)


def _split(X: Any, y: Any) -> Split:
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
    return X, y, X_test, y_test


def _regression(name: str, folder: Path | None) -> Split:
    X, y, X_test, y_test = sets.load(name, folder).split
    rows, targets = np.concatenate([X, X_test]), np.concatenate([y, y_test])
    return _split(_standard(rows), (targets - targets.mean()) / targets.std())


def _kin40k(folder: Path | None) -> Split:
    found = sets.archive(folder, "kin40k.npz")
    return _split(found["X"].astype(np.float32), found["y"].ravel().astype(np.float64))


def _loaded(name: str, folder: Path | None) -> Split:
    X, y, X_test, y_test = sets.load(name, folder).split
    return dense(X).astype(np.float32), y, dense(X_test).astype(np.float32), y_test


def _covtype(folder: Path | None) -> Split:
    found = sets.archive(folder, "covtype_full.npz")
    return _split(_standard(found["X"]), np.where(found["y"] == 2, 1, -1))


def _synthetic(folder: Path | None) -> Split:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25000, 10)).astype(np.float32)
    return _split(X, np.where(np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + rng.normal(size=len(X)) / 2 > 0, 1, -1))


TRAINED, TESTED = 50000, 10000  # rows of the wide set
BLOCK, PILOT = 4096, 5000  # rows made at a time, as of a product in NumPy; rows that show how large each output is
WRONG = 0.05  # share of labels that are drawn anew


def wide(
    n: int, seed: int, d: int = 3072, classes: int = 10, latent: int = 20, hidden: int = 40
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return X (n, d) float32, as wide as CIFAR10's images, and y (n,).

    x = A z + e / 2 with z (latent,) and e (d,) normal; the class of x is the largest output of a tanh layer over z and
    a linear one, each output with mean 0 and deviation 1.
    """
    made = np.random.default_rng(0)
    A = (made.normal(size=(latent, d)) / np.sqrt(latent)).astype(np.float32)
    first = made.normal(size=(latent, hidden)) / np.sqrt(latent)
    last, bias = made.normal(size=(hidden, classes)), made.normal(size=hidden) / 2
    pilot = np.tanh(made.normal(size=(PILOT, latent)) @ first + bias) @ last
    last, mean = last / pilot.std(axis=0), (pilot / pilot.std(axis=0)).mean(axis=0)
    rng, X, y = np.random.default_rng((0, seed)), np.empty((n, d), np.float32), np.empty(n, np.intp)
    for start in range(0, n, BLOCK):
        rows = slice(start, min(start + BLOCK, n))
        z = rng.standard_normal((rows.stop - start, latent))
        X[rows] = rng.standard_normal(X[rows].shape, np.float32) / 2 + z.astype(np.float32) @ A
        labels = (np.tanh(z @ first + bias) @ last - mean).argmax(axis=1)
        drawn = rng.random(len(z)) < WRONG
        labels[drawn] = rng.integers(0, classes, int(drawn.sum()))
        y[rows] = labels
    return X, y


FALKON_SETS = {
    "synthetic": FalkonSet(_synthetic, 0.1, 1e-6, True),
    "kin40k": FalkonSet(_kin40k, 0.125, 1e-6, C=10, epsilon=0.05),
    "cadata": FalkonSet(partial(_regression, "cadata"), 0.2, 1e-6, epsilon=0.1),
    "cpusmall": FalkonSet(partial(_regression, "cpusmall"), 0.1, 1e-6, epsilon=0.1),
    "ijcnn1": FalkonSet(partial(_loaded, "ijcnn1"), 2.0, 1e-6, True, C=32),
    "mnist": FalkonSet(partial(_loaded, "mnist"), 0.02, 1e-6, True, C=10),
    "covtype": FalkonSet(_covtype, 0.1, 1e-7, C=10, most=116_000),
    "wide": FalkonSet(lambda folder: (*wide(TRAINED, 1), *wide(TESTED, 2)), 0.5 / 3072, 1e-6),
}


def falkon_set(name: str, asked: Asked) -> Row:
    """Fit both on one set, with squared loss and where asked with logistic loss."""
    recipe, m = FALKON_SETS[name], asked.centers
    X, y, X_test, y_test = recipe.make(asked.data)
    X, y = X[: asked.rows], y[: asked.rows]
    classes = len(np.unique(y)) <= 20
    # the rows that Nystroem takes with random_state=0, which needs m x m values and their SVD to say so
    drawn = np.random.RandomState(0).permutation(len(X))[:m]
    given = {
        "center_selection": X[np.sort(drawn)], "gamma": recipe.gamma, "penalty": recipe.penalty,
        "fit_intercept": False, "tol": TOL, "device": asked.device,
    }  # fmt: skip
    alpha = recipe.penalty * len(y)
    ridge = (RidgeClassifier if classes else Ridge)(alpha=alpha, fit_intercept=False)
    models = {"squared": ((clsvm.FalkonClassifier if classes else clsvm.FalkonRegressor)(**given), ridge)}
    if recipe.logistic:
        direct = LogisticRegression(C=1 / alpha, fit_intercept=False, **PRECISE)
        models["logistic"] = clsvm.LogisticFalkonClassifier(**given), direct
    entered = solvers.entered([peer for peer in asked.peers if peer == "nystroem"], X, asked.repeats)
    rows_of = {form: (solvers.formed(X, form), solvers.formed(X_test, form)) for _, form, _ in entered}
    found: list[Row] = []
    for loss, (ours, linear) in models.items():
        features = Nystroem(gamma=recipe.gamma, n_components=m, random_state=0)
        by_name = {"clsvm": ours, "nystroem": make_pipeline(features, linear)}
        rows = []
        works = [(*one, (by_name[one[0]], rows_of[one[1]][0], y)) for one in entered]
        with at_work(0, _fitting, works) as made:
            for one in turns(made):
                one.time()
            for one in made:
                rows.append({"solver": one.name, "form": one.form, "loss": loss} | one.row())
                if (model := one.ask("model")) is not None:
                    rows[-1]["score"] = score(model.predict, rows_of[one.form][1], y_test, classes)
        rows[0]["report"] = ours.fit_report_.to_dict()
        least = min((row["score"] for row in rows[1:] if "score" in row), default=np.inf)
        for row in rows[1:]:
            if not near(row.get("score", least), least):
                row["misses"] = [f"error {row['score']:.4f}, {least:.4f} with other rows"]
        found += rows
    return {"set": name, "n": len(y), "d": X.shape[1], "gamma": recipe.gamma, "penalty": recipe.penalty, "rows": found}


def _fitting(model: Any, X: Any, y: Any) -> Answer:
    """Return what answers "fit" with the seconds of another fit, and "model" with the model."""

    def answer(question: Any) -> Any:
        if question != "fit":
            return model
        gc.collect()
        return timed(lambda: model.fit(X, y))[0]

    return answer


def score(answer: Callable[[Any], Any], X: Any, y: Any, classes: bool) -> float:
    """Return the share of errors, or the root of the mean squared error."""
    found = answer(X)
    return float(np.mean(found != y)) if classes else float(np.sqrt(np.mean(np.square(found - y))))


def near(found: float, other: float) -> bool:
    """Return whether an error is at most 1 %, or 0.002, above another."""
    return found <= max(1.01 * other, other + 0.002)


def _losses(result: Row) -> list[Row]:
    """Return the records of sets apart by their losses."""
    return [
        one | {"loss": loss, "rows": [row for row in one["rows"] if row["loss"] == loss]}
        for one in result["sets"]
        for loss in dict.fromkeys(row["loss"] for row in one["rows"])
    ]


def _holds(result: Row) -> bool:
    """Return whether ours converged, to errors within 1 % of the peer's (of classes within 0.2 points)."""
    for one in _losses(result):
        ours, *others = table.best_forms(one["rows"])
        if not (ours["report"]["converged"] and all(near(ours["score"], row["score"]) for row in others)):
            return False
    return True


def _show(result: Row) -> Shown:
    rows, notes = table.compared(_losses(result))
    columns = (
        table.SOLVED[0], ("loss", "{loss}"), *table.SOLVED[1:], ("test error", "{score:.4f}"),
        ("steps", "{report[steps]}"),
        ("where K is", lambda row: f"{row['report']['dtype']}, {row['report']['layout'].partition(';')[0]}"),
    )  # fmt: skip
    words = f"{result['centers']} inducing points; nystroem: scikit-learn's direct solution at the same ones"
    return shown(words, columns, rows, *notes, left=3)


# The product.

FEATURES, OUTPUTS = (3, 10, 28, 90, 784), (1, 10)
PRODUCT = 100_000, 2000  # rows and inducing points
PROBE = 1000  # rows that say what a pass of KeOps takes
LIMIT = 60.0  # seconds of a pass of KeOps at most


def product(asked: Asked) -> Row:
    """Time a pass for each number of features and outputs; float32, rbf."""
    rows = [_pass(d, k, *PRODUCT, asked) for d in FEATURES for k in OUTPUTS]
    return {"n": PRODUCT[0], "m": PRODUCT[1], "rows": rows}


def features(asked: Asked, every: Sequence[int]) -> Row:
    """Time a pass with one output for each number of features."""
    n, m = asked.rows or PRODUCT[0], asked.centers or PRODUCT[1]
    return {"n": n, "m": m, "rows": [_pass(d, 1, n, min(n, m), asked) for d in every]}


def _pass(d: int, k: int, n: int, m: int, asked: Asked) -> Row:
    """Time a pass of each, in turns. KeOps gets so many rows that one is within the limit; its seconds are for all."""
    rng, gamma = np.random.default_rng(0), 1.0 / d
    X, V = rng.random((n, d), np.float32), rng.normal(size=(k, m))
    C, A, B = X[:m].copy(), np.ones((2048, 2048), np.float32), np.ones(1 << 26, np.float32)
    calls, rows = {"clsvm": _ours(X, V, "rbf", asked.device, gamma=gamma)}, {"clsvm": n}
    if "numpy" in asked.peers:
        calls["numpy"], rows["numpy"] = partial(NumPyCross(X, C, gamma, "float32").forward_back, V), n
    if "keops" in asked.peers:
        probe = min(PROBE, n)
        least = best({"keops": keops(X[:probe], C, V, gamma)}, 2)["keops"]
        rows["keops"] = int(min(n, max(probe, probe * getattr(asked, "limit", LIMIT) / least)))
        calls["keops"] = keops(X[: rows["keops"]], C, V, gamma)
    ours, *others = (np.asarray(call(), np.float64).reshape(k, m) for name, call in calls.items() if rows[name] == n)
    apart = max((float(np.abs(one - ours).max() / np.abs(one).max()) for one in others), default=None)
    seconds = {name: spent * n / rows[name] for name, spent in best(calls, asked.repeats).items()}
    limits: dict[str, Callable[[], Any]] = {
        "linear": _ours(X, V, "linear", asked.device),
        "product": partial(np.matmul, A, A),
        "copy": B.sum,
    }
    spent = best(limits, 3)
    rate, copied = 2048**3 / spent["product"], B.nbytes / spent["copy"]
    c = max(0.0, seconds["clsvm"] - spent["linear"]) * rate / (n * m)
    floor = max(n * m * (d + c + 2 * k) / rate, X.nbytes / copied)
    measured = {"seconds": seconds, "rows": rows, "apart": apart}
    return {"d": d, "k": k, **measured, "c": c, "floor": floor, "fma": rate, "copy": copied}


def best(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the least seconds of each call after a first, in turns."""
    return {name: min(seconds[1:]) for name, (seconds, _) in in_turns(calls, repeats + 1).items()}


def _ours(X: Any, V: Any, kernel: str, device: Any, **numbers: float) -> Callable[[], Any]:
    """Return a call of our product, over passes of the first m rows as inducing points."""
    (k, m), gram = V.shape, Laid(Stream(device), X, make(kernel, **numbers)).gram
    panel, count = gram.panel(m, square=True), gram.stream.upload(np.array([m], np.int32))
    gram.gather(panel, gram.stream.upload(gram.rows.position[:m]), count)
    return partial(Sums(gram, panel, m, k).forward_back, V)


class NumPyCross:
    """K(X, C) of an rbf kernel in NumPy, made by blocks in every pass: what the solver asks of a Cross. Sums over rows
    are in float64."""

    def __init__(self, X: Any, C: Any, gamma: float, dtype: str) -> None:
        self._X, self._C, self._gamma, self._real = X.astype(dtype), C.astype(dtype), gamma, np.dtype(dtype)
        self._cc = np.square(self._C).sum(axis=1)
        self.n, self.m, self.k, self.passes, self.dtype = len(X), len(C), 1, 0, dtype
        self.weigh()

    def weigh(self, w: Any = None, shares: Any = None) -> None:
        """Take w (n,) of :meth:`forward_back`; losses that couple outputs there are none."""
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


def keops(X: Any, C: Any, V: Any, gamma: float) -> Callable[[], Any]:
    """Return a call of the product (k, m) of X (n, d), C (m, d) and V (k, m) in float32."""
    from pykeops.numpy import LazyTensor

    x, c, weights = LazyTensor(X[:, None, :]), LazyTensor(C[None, :, :]), np.ascontiguousarray(V.T, np.float32)
    K = (-((x - c) ** 2).sum(-1) * np.float32(gamma)).exp()
    return lambda: (K.T @ np.ascontiguousarray(K @ weights)).T


def show_passes(result: Row) -> Shown:
    """Return milliseconds of a pass, for each number of features and outputs."""

    def milliseconds(name: str) -> table.Column:
        return name, lambda row: f"{1e3 * row['seconds'][name]:.3g}"

    columns = (
        ("d", "{d}"), ("k", "{k}"), *map(milliseconds, result["rows"][0]["seconds"]),
        ("KeOps / ours", lambda row: f"{row['seconds']['keops'] / row['seconds']['clsvm']:.1f}"),
        ("KeOps' rows", "{rows[keops]}"), ("floor", lambda row: f"{1e3 * row['floor']:.0f}"),
        ("times floor", lambda row: f"{row['seconds']['clsvm'] / row['floor']:.2f}"), ("c", "{c:.0f}"),
    )  # fmt: skip
    words = f"K'(w * (K V)), n = {result['n']}, m = {result['m']}, float32: milliseconds of a pass"
    return shown(words, columns, result["rows"], left=0)


def passes_hold(result: Row) -> bool:
    """Return whether the products of all are the same to rounding."""
    return all((row.get("apart") or 0.0) < 1e-4 for row in result["rows"])


def draw_passes(result: Row, path: Path) -> None:
    """Draw seconds over features."""
    with picture(result, path) as (axes,):
        for name in result["rows"][0]["seconds"]:
            points = [(row["d"], row["seconds"][name]) for row in result["rows"] if name in row["seconds"]]
            axes.loglog(*zip(*points, strict=True), marker="o", label=name)
        axes.set(title=f"K'(K v), n = {result['n']}, m = {result['m']}", xlabel="features d", ylabel="seconds")


COMMAND = Command(
    "falkon",
    "Nyström kernel machines against the direct solution, or their product against KeOps and NumPy",
    (
        sets_of(tuple(FALKON_SETS), ("synthetic",)), peers(("nystroem", "keops", "numpy")),
        number("--centers", 2000, "m"), number("--rows", None, "rows of a set at most"),
        option("--product", action="store_true", help="the product alone, for features 3 to 784"), repeats(3), DATA,
    ),
    {
        "sets": Part(
            lambda asked: {"centers": asked.centers, "sets": [falkon_set(name, asked) for name in asked.sets]},
            _show,
            _holds,
        ),
        "product": Part(product, show_passes, passes_hold),
    },
    lambda given: "product" if given.get("product", "sets" not in given) else "sets",
)  # fmt: skip
