"""What of its peaks the device reaches in the library's own kernels: products, reductions, the subproblem's steps.

Shares are of the peaks that took turns with what is measured. Sizes go with the device's arithmetic and its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks.gpu.peaks import calls, peaks_of
from benchmarks.gpu.plan import Asked, PartialError
from benchmarks.ladder_device import Bench, Clock
from benchmarks.ladder_extremes import FORMS, Extremes, shapes
from clsvm import kernels, solvers
from clsvm.errors import ClsvmError
from clsvm.gram import layouts, trial
from clsvm.gram.layouts.record import Rows
from clsvm.gram.products import Gram, Store, Update
from clsvm.gram.units import Units
from clsvm.opencl.devices import default_profile, find
from clsvm.opencl.profiles import SEARCH, Profile, Tile, shape_class
from clsvm.opencl.stream import Stream
from clsvm.problem import Constraint, posed
from clsvm.solvers.selection import View, selection

Tiles = Callable[[Profile, str], Iterator[tuple[str, Tile]]]  # of a shape class: (its name, a tile)
WORKING = {"few": (2, 16), "many": (512, 1024)}  # working vectors, by what bounds their products
LONG = {"vector": 1 << 27, "group": 1 << 28}  # bytes of X where they are few: more than caches hold
STORED = 1 << 30  # bytes of K that are stored at most
LAUNCH = 0.005  # of the limit: what a launch takes at most, about, by a trial with LEAST_ROWS
LEAST_ROWS = 1024
HALF = 0.55  # of the limit: when nothing more is begun
ALL = 0.85  # the same of tiles, of which each takes little
TOLERANCE = 1e-4  # of a kernel value, which is at most 1
REDUCED = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
CHOSEN = (1 << 16, 16), (1 << 16, 1024), (1 << 20, 1024)  # n, W of working sets that are chosen
SUBPROBLEMS = (64, 256, 1024)
STEPS = 100_000  # inner steps that are timed at most


# What is tried beside the profile's own tile, in this order; all of it is in profiles.SEARCH.
OTHER: dict[str, dict[str, tuple[Tile, ...]]] = {
    "group": {
        "two": ({"COLUMNS": 2, "RX": 1, "GROUPS": 2, "DEPTH": 32},),
        "few": ({"COLUMNS": 16, "RX": 1, "GROUPS": 4, "DEPTH": 16},),
        "many": ({"GROUPS": 1, "BLOCKS": 1, "DEPTH": 8},),
        "wide": ({"GROUPS": 2, "BLOCKS": 1, "DEPTH": 8},),
    },
    "vector": {
        "two": ({"COLUMNS": 2, "GROUPS": 4, "AHEAD": 4},),
        "few": ({"COLUMNS": 8, "GROUPS": 1, "AHEAD": 256},),
        "many": ({"COLUMNS": 8, "GROUPS": 2, "AHEAD": 0},),
    },
}


def other_tile(profile: Profile, shape: str) -> Tile:
    """A tile of that shape class that is not the profile's."""
    tiles = *OTHER[profile.shape][shape], *SEARCH[profile.shape]["tiles"][shape]
    return next(tile for tile in tiles if tile != profile.tiles[shape])


@dataclass
class Product:
    """K(X, U) of ``W`` working rows in one tile: stored ("rows"), or as c += K D ("update")."""

    gram: Gram
    X: Any  # (n, d), dense or CSR
    W: int
    stored: bool

    def __post_init__(self) -> None:
        stream, rows = self.gram.stream, self.gram.rows
        self.working = np.random.default_rng(self.W).integers(0, rows.n, self.W).astype(np.int32)
        self.panel = self.gram.panel(self.W)
        at = np.full(self.panel.capacity, -1, np.int32)
        at[: self.W] = rows.position[self.working]
        self.count = stream.upload(np.array([self.W], np.int32))
        self.gram.gather(self.panel, stream.upload(at), self.count)
        self.store: Store | None = None
        self.update: Update | None = None
        if self.stored:
            slot = stream.upload(np.arange(self.panel.capacity, dtype=np.int32))
            self.nbytes = 4 * self.W * rows.n_pad
            self.out = stream.buffer(self.nbytes)
            self.store = Store((self.out,), self.W, rows.n_pad, slot)
        else:
            self.nbytes = 8 * rows.n_pad
            self.out = stream.zeros(self.nbytes)
            weights = stream.wide(np.full((1, self.panel.capacity), 1.0 / self.W))
            self.update = Update(1, rows.n_pad, self.out, weights, self.panel.capacity)

    def launch(self) -> None:
        self.gram.accumulate(self.panel, self.count, self.store, self.update)

    def error(self) -> float:
        """The largest difference from float64 of a fresh launch, on up to 64 rows, both ends among them."""
        stream, rows = self.gram.stream, self.gram.rows
        stream.clear(self.out, self.nbytes)
        self.launch()
        sample = np.unique(np.linspace(0, rows.n - 1, min(rows.n, 64)).astype(np.int64))
        x, u = (_dense(self.X[some]).astype(np.float64) for some in (sample, self.working))
        gamma = float(self.gram.kernel.params["gamma"])
        K = np.exp(-gamma * np.stack([np.square(x - row).sum(axis=1) for row in u]))
        at = rows.position[sample]
        if self.stored:
            ends = 0, self.W // 2, self.W - 1
            got = np.stack([stream.read(self.out, np.float32, rows.n_pad, 4 * w * rows.n_pad)[at] for w in ends])
            difference = np.abs(got - K[list(ends)])
        else:
            difference = np.abs(stream.read_wide(self.out, rows.n_pad)[at] - K.mean(axis=0))
        return float(np.nan_to_num(difference, nan=np.inf).max())

    def work(self) -> tuple[float, float]:
        """Flops (a multiply and an add for each feature and pair) and bytes: X once, and what is written."""
        n, d = self.gram.rows.n, self.gram.rows.d
        return 2.0 * n * self.W * d, 4.0 * n * d + (4.0 * n * self.W if self.stored else 16.0 * n)


def products(asked: Asked, d: int) -> Iterator[dict[str, Any]]:
    """Few and many working rows in two tiles each, stored and as an update, over dense rows of ``d`` features."""
    wrong, left_out, began = [], "", perf_counter()
    with Bench(asked.device) as bench:
        most = peaks_of(bench)
        for bound, sizes in WORKING.items():
            if perf_counter() - began > HALF * asked.seconds:
                left_out = f"no time for {bound} working rows"
                break
            n = _rows(bench, bound, d, asked.seconds)
            part, failed = _measured(bench, most, n, d, sizes, min(4.0, asked.seconds / 8), _tiles)
            wrong += failed
            yield part
    if wrong:
        raise ArithmeticError(f"wrong products: {'; '.join(wrong)}")
    if left_out:
        raise PartialError(left_out)


def tiles(asked: Asked, d: int) -> Iterator[dict[str, Any]]:
    """Many working rows over dense rows of ``d`` features, in each tile that the tuner can choose."""
    wrong, left_out, began = [], [], perf_counter()
    with Bench(asked.device) as bench:
        most, W = peaks_of(bench), max(WORKING["many"])
        n = _rows(bench, "many", d, asked.seconds)
        for one in _searched(bench.profile):
            if perf_counter() - began > ALL * asked.seconds:
                left_out.append(str(dict(one[1])))
                continue
            part, failed = _measured(bench, most, n, d, (W,), asked.seconds / 50, partial(_alone, one))
            wrong += failed
            yield part
    if wrong:
        raise ArithmeticError(f"wrong products: {'; '.join(wrong)}")
    if left_out:
        raise PartialError(f"no time for the tiles {', '.join(left_out)}")


def _measured(
    bench: Bench, most: Any, n: int, d: int, sizes: tuple[int, ...], seconds: float, tiles: Tiles
) -> tuple[dict[str, Any], list[str]]:
    """(what is found of products with dense rows (n, d), the names of those that are wrong); seconds: for their turns
    with the peaks."""
    wrong = []
    with ExitStack() as stack:
        made, records = _prepared(bench, stack, n, d, sizes, tiles)
        clock = Clock(seconds)
        clock.run(bench, most.launches | {name: one.launch for name, one in made.items()})
        rates = most.rates(clock)
        for name, one in made.items():
            flops, nbytes = one.work()
            spent, error = clock.best[name], one.error()
            found = {"seconds": spent, "gflops": 1e-9 * flops / spent, "gbs": 1e-9 * nbytes / spent}
            found |= {"error": error, "right": error <= TOLERANCE}
            found["of_arithmetic"] = found["gflops"] / rates["fma_gflops"]
            found["of_bandwidth"] = found["gbs"] / rates["read_gbs"]
            records[name] |= found
            wrong += [name] * (not found["right"])
    return {"products": list(records.values()), "peaks": [{"n": n, **rates}]}, wrong


def _rows(bench: Bench, bound: str, d: int, seconds: float) -> int:
    """How many rows X has: what memory allows, or what a launch gets through in its share of the limit."""
    W, room = max(WORKING[bound]), min(bench.stream.largest, bench.stream.limit // 8)
    most = min(LONG[bench.profile.shape] // (4 * d) if bound == "few" else STORED // (4 * max(W, d)), room // (4 * d))
    rbf, X = _data(LEAST_ROWS, d)
    with bench.section() as part:
        rows = layouts.build(part.stream, X, layouts.choose(bench.profile, X, rbf.spec, "dense"), "float32")
        clock = Clock(0.0, rounds=1, batch=0.0)
        clock.run(part, {"few": Product(Gram(part.stream, rows, rbf), X, W, stored=True).launch})
    return max(LEAST_ROWS, min(most, int(LEAST_ROWS * LAUNCH * seconds / clock.best["few"])))


@lru_cache(maxsize=1)
def _data(n: int, d: int) -> tuple[kernels.Kernel, NDArray[np.float32]]:
    """Rows (n, d) in [0, 1), and a kernel function whose values over them are about exp(-1)."""
    return kernels.make("rbf", gamma=6.0 / d), np.random.default_rng(d).random((n, d), np.float32)


def _tiles(profile: Profile, shape: str) -> Iterator[tuple[str, Tile]]:
    """The tiles that are tried for a shape class, the profile's and another; many vectors have wide ones, too."""
    for name in ("wide", "many") if shape == "many" and "wide" in profile.tiles else (shape,):
        yield name, profile.tiles[name]
        yield name, other_tile(profile, name)


def _alone(one: tuple[str, Tile], profile: Profile, shape: str) -> Iterator[tuple[str, Tile]]:
    """One tile and nothing else, whatever is asked for."""
    yield one


def _searched(profile: Profile) -> Iterator[tuple[str, Tile]]:
    """The tiles of many vectors that the tuner tries, with their shape class; the profile's own first."""
    for name in ("wide", "many") if "wide" in profile.tiles else ("many",):
        own = profile.tiles[name]
        yield from (
            (name, tile) for tile in (own, *(one for one in SEARCH[profile.shape]["tiles"][name] if one != own))
        )


def _units(stream: Stream, shape: str, usual: bool) -> list[Units | None]:
    """None for the tile itself, and beside the profile's wide one the device's matrix units, if it has such."""
    units = trial.found(stream).units if shape == "wide" and usual else None
    return [None, units] if units else [None]


def _dense(X: Any) -> NDArray[np.float32]:
    return np.asarray(X.toarray() if sp.issparse(X) else X)


def _prepared(
    bench: Bench, stack: ExitStack, n: int, d: int, sizes: tuple[int, ...], tiles: Tiles
) -> tuple[dict[str, Product], dict[str, dict[str, Any]]]:
    """Products that the device takes, by name, and a record for each that was tried."""
    rbf, X = _data(n, d)
    rows: Rows | None = None
    made: dict[str, Product] = {}
    records: dict[str, dict[str, Any]] = {}
    for W in sizes:
        for shape, tile in tiles(bench.profile, shape_class(W)):
            unforced = {name: other for name, other in bench.profile.tiles.items() if (shape, name) != ("many", "wide")}
            profile = replace(bench.profile, tiles={**unforced, shape: tile})
            stream = stack.enter_context(Stream(bench.queue, profile=profile))
            if rows is None:  # the layout does not depend on tiles
                rows = layouts.build(stream, X, layouts.choose(profile, X, rbf.spec, "dense"), "float32")
            usual = tile == bench.profile.tiles[shape]
            for units, stored in product(_units(stream, shape, usual), (True, False)):
                words = {"UNITS": units.name} if units else dict(tile)
                name = f"W = {W}, d = {d}, {'rows' if stored else 'update'}, {words}"
                records[name] = {"W": W, "d": d, "n": n, "stored": stored, "tile": words}
                records[name]["usual"] = usual and not units
                try:
                    gram = Gram(stream, rows, rbf)
                    gram.use(units)
                    one = Product(gram, X, W, stored)
                    one.launch()
                    stream.finish()
                    made[name] = one
                except (ClsvmError, ValueError) as error:  # too many registers, say: the other tile still counts
                    records[name]["refused"] = f"{type(error).__name__}: {error}"[:500]
    return made, records


def reductions(asked: Asked) -> Iterator[dict[str, Any]]:
    """Smallest and largest of n numbers and where they stand, and the solver's choice of a working set."""
    wrong, left_out, began = [], "", perf_counter()
    with Bench(asked.device) as bench:
        most = peaks_of(bench)
        room = min(bench.stream.largest, bench.stream.limit // 8) // 4
        for n, W in CHOSEN:
            W = min(W, bench.profile.working_set)
            yield {"choices": [_choice(bench, n, W, min(0.2, asked.seconds / 20))]}
        for n in (n for n in REDUCED if n <= room):
            if perf_counter() - began > HALF * asked.seconds:
                left_out = f"no time for {n} numbers"
                break
            numbers = np.random.default_rng(0).standard_normal(n, np.float32)
            with bench.section() as part:
                x = part.stream.upload(numbers)
                forms = {
                    f"{form.name} {shape}": Extremes(part, form, n, shape) for form in FORMS for shape in shapes(part)
                }
                launches = {name: one.launch(x, n) for name, one in forms.items()}
                clock = Clock(min(2.0, asked.seconds / 20))
                clock.run(part, most.launches | launches)
                rates = most.rates(clock)
                found = []
                for form in FORMS:
                    name = min((one for one in forms if forms[one].form is form), key=lambda one: clock.best[one])
                    launches[name]()
                    right = forms[name].right(numbers)
                    seconds = clock.best[name]
                    row = {"n": n, "name": form.name, "seconds": seconds, "gbs": 4e-9 * n / seconds, "right": right}
                    found.append(row | {"of_bandwidth": row["gbs"] / rates["read_gbs"]})
                    wrong += [f"{form.name} of {n}"] * (not right)
            yield {"reductions": found}
    if wrong:
        raise ArithmeticError(f"wrong reductions: {'; '.join(wrong)}")
    if left_out:
        raise PartialError(left_out)


def _choice(bench: Bench, n: int, W: int, seconds: float) -> dict[str, Any]:
    """Microseconds of a look at the state of n rows, and of that and the choice of W of them."""
    with bench.section() as part:
        stream, rng = part.stream, np.random.default_rng(0)
        one = selection(stream, "float32", Constraint.BIAS, 1, n, W)
        f, box = rng.standard_normal(n), np.where(rng.random(n) < 0.5, 1.0, -1.0)
        state = f, np.zeros(n), np.minimum(box, 0), np.maximum(box, 0), np.zeros(1)
        view = View(*(stream.wide(values) for values in state))

        def choose() -> None:
            one.look(view)
            one.choose(view, 0)

        clock = Clock(seconds)
        clock.run(part, {"look": calls(one.look, view), "choose": choose})
    return {"n": n, "W": W, **{name: 1e6 * seconds for name, seconds in clock.best.items()}}


def subproblem(asked: Asked) -> Iterator[dict[str, Any]]:
    """What a step inside a working set costs, and each part of a working set, by its size: of solves of noisy data that
    wait for the device after each part, so launches and waits are included."""
    n = 16 * max(SUBPROBLEMS)
    rng = np.random.default_rng(0)
    signs = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    X = (rng.normal(size=(n, 16)) + 0.15 * signs[:, None]).astype(np.float32)
    problem, rbf = posed.c_svc(signs[None], np.full((1, n), 10.0)), kernels.make("rbf", gamma=0.05)
    profile = replace(default_profile(find(asked.device)), sync=1)
    for W in SUBPROBLEMS:
        best: dict[str, Any] = {}
        for limit, seconds in ((W, 60.0), (STEPS, asked.seconds / 20), (STEPS, asked.seconds / 20)):  # the first builds
            with Stream(asked.device, profile=profile) as stream:
                rows = layouts.build(stream, X, layouts.choose(profile, X, rbf.spec, "dense"), "float32")
                settings = solvers.Settings(
                    tol=1e-3, gap_tol=None, max_iter=limit, working_set=W, cache_bytes=stream.limit // 4,
                    kernel_scale=1.0, exact=None, max_time=seconds,
                )  # fmt: skip
                found = solvers.Solver(stream, Gram(stream, rows, rbf), problem, settings).run()
            steps, sets = int(found.steps.sum()), found.outer_steps
            row: dict[str, Any] = {
                "W": found.working_set,
                "steps": steps,
                "working_sets": sets,
                "status": found.status.value,
            }
            row["microseconds"] = 1e6 * found.seconds["subproblem"] / max(1, steps)
            row["of_a_set"] = {part: 1e6 * spent / max(1, sets) for part, spent in found.seconds.items()}
            if limit == STEPS and (not best or row["microseconds"] < best["microseconds"]):
                best = row
        yield {"subproblems": [best]}
