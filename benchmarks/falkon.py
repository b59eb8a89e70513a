"""Nyström kernel machines against the direct solution at the same inducing points: scikit-learn's Nystroem and Ridge,
or its LogisticRegression, in turns. The peer has a row for each form of its rows.

--product: K(X, C)'(w * (K(X, C) V)), K made in every pass, beside KeOps and NumPy by blocks and beside what it must
cost: n m (d + c + 2 k) multiply-adds at the rate of NumPy's matrix product, or the bytes of X at the rate of a copy; c,
what the kernel function costs, is the time that it adds to the linear one's at the same d.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split

import clsvm
from benchmarks import sets, solvers, table
from benchmarks.bench import Laid
from benchmarks.command import DATA, Asked, Command, number, option, peers, repeats, sets_of
from benchmarks.solvers import Answer, Contestant, Worker, turns
from benchmarks.table import Row, Shown, shown
from clsvm.gram.sums import Sums
from clsvm.kernels import Kernel, make
from clsvm.opencl.stream import Stream

Split = tuple[Any, Any, Any, Any]
PRECISE: dict[str, Any] = {"max_iter": 5000, "tol": 1e-7}  # else scikit-learn's logistic loss ends far from its least
TOL = 1e-3  # of ours: test errors are the direct solution's by then


@dataclass(frozen=True)
class FalkonSet:
    """How to make a set, its kernel width and penalty. logistic: whether that loss is measured, too."""

    make: Callable[[Path | None], Split]
    gamma: float
    penalty: float
    logistic: bool = False


def _standard(X: Any) -> Any:
    spread = X.std(axis=0)
    return ((X - X.mean(axis=0)) / np.where(spread > 0, spread, 1)).astype(np.float32)


def _split(X: Any, y: Any) -> Split:
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
    return X, y, X_test, y_test


def _regression(name: str, folder: Path | None) -> Split:
    X, y, X_test, y_test = sets.load_task(name, folder)
    rows = np.concatenate([part.toarray() if sp.issparse(part) else part for part in (X, X_test)])
    targets = np.concatenate([y, y_test])
    return _split(_standard(rows), (targets - targets.mean()) / targets.std())


def _file(name: str, folder: Path | None) -> Any:
    if folder is None or not (folder / name).exists():
        raise sets.MissingSetError(f"{name} is not there: --data names its folder")
    return np.load(folder / name)


def _kin40k(folder: Path | None) -> Split:
    found = _file("kin40k.npz", folder)
    return _split(found["X"].astype(np.float32), found["y"].ravel().astype(np.float64))


def _mnist(folder: Path | None) -> Split:
    found = _file("mnist.npz", folder)
    X, X_test = (found[f"X_{part}"].reshape(-1, 784) / np.float32(255) for part in ("train", "test"))
    return X, found["y_train"], X_test, found["y_test"]


def _covtype(folder: Path | None) -> Split:
    found = _file("covtype_full.npz", folder)
    return _split(_standard(found["X"]), np.where(found["y"] == 2, 1, -1))


def _ijcnn1(folder: Path | None) -> Split:
    one = sets.load("ijcnn1", folder)
    return one.X.toarray(), one.y, one.X_test.toarray(), one.y_test


def _synthetic(folder: Path | None) -> Split:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25000, 10)).astype(np.float32)
    return _split(X, np.where(np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + rng.normal(size=len(X)) / 2 > 0, 1, -1))


FALKON_SETS = {
    "synthetic": FalkonSet(_synthetic, 0.1, 1e-6, True),
    "kin40k": FalkonSet(_kin40k, 0.125, 1e-6),
    "cadata": FalkonSet(partial(_regression, "cadata"), 0.2, 1e-6),
    "cpusmall": FalkonSet(partial(_regression, "cpusmall"), 0.1, 1e-6),
    "ijcnn1": FalkonSet(_ijcnn1, 2.0, 1e-6, True),
    "mnist": FalkonSet(_mnist, 0.02, 1e-6, True),
    "covtype": FalkonSet(_covtype, 0.1, 1e-7),
}


def falkon_set(name: str, asked: Asked) -> Row:
    """Fit both on one set, with squared loss and where asked with logistic loss."""
    recipe, m = FALKON_SETS[name], asked.centers
    X, y, X_test, y_test = recipe.make(asked.data)
    X, y = X[: asked.rows], y[: asked.rows]
    classes = len(np.unique(y)) <= 20
    given = {
        "center_selection": X[np.sort(drawn(len(X), m))], "gamma": recipe.gamma, "penalty": recipe.penalty,
        "fit_intercept": False, "tol": TOL, "device": asked.device,
    }  # fmt: skip
    models = {"squared": (clsvm.FalkonClassifier if classes else clsvm.FalkonRegressor)(**given)}
    if recipe.logistic:
        models["logistic"] = clsvm.LogisticFalkonClassifier(**given)
    entered = solvers.entered([peer for peer in asked.peers if peer == "nystroem"], X, asked.repeats)
    rows_of = {form: (solvers.formed(X, form), solvers.formed(X_test, form)) for _, form, _ in entered}
    found: list[Row] = []
    for loss, model in models.items():
        direct = partial(_direct, Nystroem(gamma=recipe.gamma, n_components=m, random_state=0), loss, recipe.penalty)
        made = [
            Contestant(who, form, count, Worker(0, _fitting, model if who == "clsvm" else direct, rows_of[form][0], y))
            for who, form, count in entered
        ]
        for one in turns(made):
            one.time()
        rows = []
        for one in made:
            rows.append({"solver": one.name, "form": one.form, "loss": loss} | one.row())
            if (answer := one.ask("answer")) is not None:
                rows[-1]["score"] = score(answer, rows_of[one.form][1], y_test, classes)
        rows[0]["report"] = model.fit_report_.to_dict()
        least = min((row["score"] for row in rows[1:] if "score" in row), default=np.inf)
        for row in rows[1:]:
            if not near(row.get("score", least), least):
                row["misses"] = [f"error {row['score']:.4f}, {least:.4f} with other rows"]
        found += rows
    return {"set": name, "n": len(y), "d": X.shape[1], "gamma": recipe.gamma, "penalty": recipe.penalty, "rows": found}


def drawn(n: int, m: int) -> Any:
    """Return the rows that Nystroem takes with random_state=0, which needs m x m values and their SVD to say so."""
    return np.random.RandomState(0).permutation(n)[:m]


def _fitting(model: Any, X: Any, y: Any) -> Answer:
    """Return what answers "fit" with seconds and "answer" with what predicts. model: ours, or a function of X and y."""
    found: Callable[[Any], Any] | None = None

    def answer(question: Any) -> Any:
        nonlocal found
        if question != "fit":
            return found
        gc.collect()
        began = perf_counter()
        found = model.fit(X, y).predict if hasattr(model, "fit") else model(X, y)
        return perf_counter() - began

    return answer


def _direct(features: Nystroem, loss: str, penalty: float, X: Any, y: Any) -> Callable[[Any], Any]:
    """Fit features of the inducing points and a linear model of them: the same objective, solved directly."""
    Z, kinds = features.fit_transform(X), np.unique(y)
    if loss == "logistic":
        linear: Any = LogisticRegression(C=1 / (penalty * len(y)), fit_intercept=False, **PRECISE).fit(Z, y)
        return lambda rows: linear.predict(features.transform(rows))
    ridge = Ridge(alpha=penalty * len(y), fit_intercept=False)
    if len(kinds) > 20:
        ridge.fit(Z, y)
        return lambda rows: ridge.predict(features.transform(rows))
    if len(kinds) == 2:
        ridge.fit(Z, np.where(y == kinds[1], 1.0, -1.0))
        return lambda rows: kinds[(ridge.predict(features.transform(rows)) > 0).astype(int)]
    ridge.fit(Z, np.where(y[:, None] == kinds, 1.0, -1.0))
    return lambda rows: kinds[ridge.predict(features.transform(rows)).argmax(axis=1)]


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


def holds(result: Row) -> bool:
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


FEATURES, OUTPUTS = (3, 10, 28, 90, 784), (1, 10)
PRODUCT = 100_000, 2000  # rows and inducing points
BLOCK, KEOPS = 4096, 90  # rows of NumPy's; features that KeOps is tried with at most: it is made for few


def product(asked: Asked) -> Row:
    """Return the seconds of a pass for each number of features and outputs; float32, rbf."""
    rng, rows, (n, m) = np.random.default_rng(0), list[Row](), PRODUCT
    for d in FEATURES:
        X = rng.random((n, d), np.float32)
        C, gamma = X[:m].copy(), 1.0 / d
        for k in OUTPUTS:
            V, A, B = rng.normal(size=(k, m)), np.ones((2048, 2048), np.float32), np.ones(1 << 26, np.float32)
            rate, copied = 2048**3 / best(partial(np.matmul, A, A), 5), B.nbytes / best(B.sum, 3)
            seconds = {"clsvm": best(_ours(X, m, V, make("rbf", gamma=gamma), asked.device), asked.repeats)}
            linear = best(_ours(X, m, V, make("linear"), asked.device), asked.repeats)
            if "numpy" in asked.peers:
                seconds["numpy"] = best(partial(by_blocks, X, C, V, gamma), max(2, asked.repeats // 2))
            if "keops" in asked.peers and d <= KEOPS:
                seconds["keops"] = best(keops(X, C, V, gamma), max(2, asked.repeats // 2))
            c = max(0.0, seconds["clsvm"] - linear) * rate / (n * m)
            floor = max(n * m * (d + c + 2 * k) / rate, X.nbytes / copied)
            rows.append({"d": d, "k": k, "seconds": seconds, "c": c, "floor": floor, "fma": rate, "copy": copied})
    return {"n": n, "m": m, "rows": rows}


def best(call: Callable[[], Any], repeats: int) -> float:
    """Return the least seconds of some calls after a first."""
    call()
    spent = []
    for _ in range(repeats):
        began = perf_counter()
        call()
        spent.append(perf_counter() - began)
    return min(spent)


def _ours(X: Any, m: int, V: Any, kernel: Kernel, device: Any) -> Callable[[], Any]:
    return partial(passing(Laid.by(Stream(device), X, kernel), m, len(V)).forward_back, V)


def passing(laid: Laid, m: int, k: int) -> Sums:
    """Return the sums of k outputs over passes of the first m rows as inducing points."""
    gram, stream = laid.gram, laid.gram.stream
    panel, count = gram.panel(m, square=True), stream.upload(np.array([m], np.int32))
    gram.gather(panel, stream.upload(gram.rows.position[:m]), count)
    return Sums(gram, panel, m, k)


def by_blocks(X: Any, C: Any, V: Any, gamma: float) -> Any:
    """Return the product (m, k) of X (n, d), C (m, d) and V (k, m) by NumPy."""
    cc, weights, out = np.square(C).sum(axis=1), V.T.astype(np.float32), 0.0
    for first in range(0, len(X), BLOCK):
        K = rbf(X[first : first + BLOCK], C, cc, gamma)
        out = out + K.T @ (K @ weights)
    return out


def rbf(x: Any, C: Any, cc: Any, gamma: float) -> Any:
    """Return K(x, C) by NumPy. cc: the squared lengths of the rows of C."""
    return np.exp(-gamma * (np.square(x).sum(axis=1)[:, None] + cc - 2 * (x @ C.T)))


def keops(X: Any, C: Any, V: Any, gamma: float) -> Callable[[], Any]:
    """Return a call of the product of X (n, d), C (m, d) and V (k, m) in float32."""
    from pykeops.numpy import LazyTensor

    x, c, weights = LazyTensor(X[:, None, :]), LazyTensor(C[None, :, :]), np.ascontiguousarray(V.T, np.float32)
    K = (-((x - c) ** 2).sum(-1) * np.float32(gamma)).exp()
    return lambda: K.T @ np.ascontiguousarray(K @ weights)


def milliseconds(names: Sequence[str]) -> list[table.Column]:
    """Return a column of each solver's milliseconds."""
    return [(name, lambda row, name=name: f"{1e3 * row['seconds'][name]:.3g}") for name in names]  # type: ignore[misc]


def _show_product(result: Row) -> Shown:
    columns = (
        ("d", "{d}"), ("k", "{k}"), *milliseconds([*result["rows"][0]["seconds"]]),
        ("floor", lambda row: f"{1e3 * row['floor']:.0f}"),
        ("times floor", lambda row: f"{row['seconds']['clsvm'] / row['floor']:.2f}"), ("c", "{c:.0f}"),
    )  # fmt: skip
    words = f"K'(w * (K V)), n = {result['n']}, m = {result['m']}, float32: milliseconds of a pass"
    return shown(words, columns, result["rows"], left=0)


def _measure(asked: Asked) -> Row:
    if asked.product:
        return product(asked)
    return {"centers": asked.centers, "sets": [falkon_set(name, asked) for name in asked.sets]}


COMMAND = Command(
    "falkon",
    "Nyström kernel machines against the direct solution, or their product against KeOps and NumPy",
    (
        sets_of(tuple(FALKON_SETS), ("synthetic",)), peers(("nystroem", "keops", "numpy")),
        number("--centers", 2000, "m"), number("--rows", None, "rows of a set at most"),
        option("--product", action="store_true", help="the product alone, for features 3 to 784"), repeats(3), DATA,
    ),
    _measure,
    lambda result: _show(result) if "sets" in result else _show_product(result),
    lambda result: "sets" not in result or holds(result),
)  # fmt: skip
