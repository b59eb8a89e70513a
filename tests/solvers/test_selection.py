"""The rows that the choice of a working set takes, against NumPy's choice from the same state."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.stream import Stream
from clsvm.problem import Constraint
from clsvm.solvers import kernel_rows
from clsvm.solvers.state import Selection
from tests.conftest import thrifty

Rows = NDArray[np.float64]
BIN = 2.0**-7  # counting tells violations apart by this, relatively


def state(n: int, seed: int) -> tuple[Rows, Rows, Rows, Rows]:
    """f, b, lo, hi (1, n) on numbers that float32 holds: rows at each bound, free rows, inert rows at the end."""
    rng = np.random.default_rng(seed)
    lo, hi = -(rng.random(n) < 0.6).astype(np.float64), (rng.random(n) < 0.6).astype(np.float64)
    lo[-n // 8 :] = hi[-n // 8 :] = 0
    b = rng.choice([0.0, 0.5, 1.0], n)
    b = lo + b * (hi - lo)
    f = (rng.permutation(n) - n // 2) / 1024
    return f[None], b[None], lo[None], hi[None]


def violations(of: tuple[Rows, Rows, Rows, Rows], constraint: Constraint) -> tuple[Rows, Rows, float, float]:
    """Each row's violation on either side, -1 on the one where it does not stand; m and M."""
    f, b, lo, hi = (values[0] for values in of)
    up, low = b < hi, b > lo
    m, M = float(f[up].min()), float(f[low].max())
    if constraint is Constraint.NONE:
        alone = np.where(up & (f < 0), -f, np.where(low & (f > 0), f, -1.0))
        return alone, np.full(len(f), -1.0), m, M
    rise, fall = np.where(up, M - f, -1.0), np.where(low, f - m, -1.0)
    other = fall > rise
    return np.where(other, -1.0, rise), np.where(other, fall, -1.0), m, M


def chosen(device: str, of: tuple[Rows, ...], constraint: Constraint, W: int, kept: Rows) -> Rows:
    with Stream(device) as stream:
        n = of[0].shape[1]
        made = Selection(stream, "float32", constraint, 1, n, W)
        made.clear()
        first = np.full(W, -1, np.int32)
        first[: len(kept)] = kept
        in_set = np.zeros(n, np.uint8)
        in_set[kept] = 1
        made.ws, made.in_set = stream.upload(first), stream.upload(in_set)
        view = (*(stream.wide(values) for values in of), stream.wide(np.zeros(1)))
        made.find_extremes(view)  # type: ignore[arg-type]
        made.choose(view, len(kept))  # type: ignore[arg-type]
        ws = stream.read(made.ws, np.int32, W)
        marked = stream.read(made.in_set, np.uint8, n)
        numbers, places, _ = made.read_extremes()
        *_, m, M = violations(of, constraint)  # type: ignore[arg-type]
        assert (numbers[..., 0].min(), numbers[..., 1].max()) == (m, M)
        f, b, lo, hi = (values[0] for values in of)
        free = (b > lo) & (b < hi)
        assert places[..., 2].sum() == free.sum()
        np.testing.assert_allclose(numbers[..., 2].sum(), f[free].sum(), rtol=1e-6, atol=1e-9)
    assert list(ws[: len(kept)]) == list(kept)
    rows = ws[ws >= 0]
    assert len(set(rows)) == len(rows)
    assert set(np.flatnonzero(marked)) == set(rows)
    return np.asarray(ws[len(kept) :])


@pytest.mark.oclgrind
@pytest.mark.parametrize("constraint", [Constraint.BIAS, Constraint.NONE])
def test_the_largest_violations(device: str, profile: str, constraint: Constraint) -> None:
    for seed, (n, W, keep) in enumerate([(160, 16, 8), (640, 32, 16), (1600, 64, 0)][: 1 if thrifty(device) else None]):
        of = state(n, seed)
        kept = np.random.default_rng(seed).permutation(n)[:keep]
        ws = chosen(device, of, constraint, W, kept)
        one_sided_derivatives = violations(of, constraint)[:2]
        quota = (W - keep) // (2 if constraint is Constraint.BIAS else 1)
        for side in range(W - keep, 0, -quota):
            got, violation = ws[len(ws) - side :][:quota], one_sided_derivatives[(W - keep - side) // quota].copy()
            violation[kept] = -1
            best = np.argsort(-violation, kind="stable")[:quota]
            least = violation[best].min()
            assert least > 0
            assert len(got) == quota
            assert violation[got].min() >= least * (1 - BIN)
            assert set(np.flatnonzero(violation > least * (1 + BIN))) <= set(got)


def test_fewer_violators_than_places(device: str, profile: str) -> None:
    f, b, lo, hi = state(320, 5)
    b[:] = np.where(f < -0.15, lo, np.where(f > 0.15, hi, np.where(f < 0, hi, lo)))  # a few rows stand wrong
    wrong = np.flatnonzero(((f < 0) & (b < hi) | (f > 0) & (b > lo))[0])
    ws = chosen(device, (f, b, lo, hi), Constraint.NONE, 64, np.zeros(0, np.int32))
    assert 0 < len(wrong) < 64
    assert sorted(ws[ws >= 0]) == list(wrong)


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_cost_of_working_sets(profile: str) -> None:
    """More rows call for larger sets, dearer steps as well, wider rows for smaller ones."""
    of = PROFILES[profile]
    tried = kernel_rows._sizes(of.working_set)
    assert tried[0] == 16
    assert tried[-1] == of.working_set

    def best(n: int, width: float = 100, value: float = 30) -> int:
        return min(tried, key=lambda W: kernel_rows.cost(of, n, width, value, W))

    assert best(300) <= best(10**5)
    assert best(10**4, width=1e5) < best(10**4)
    assert best(10**5, value=2000) >= best(10**5, value=2)


def test_a_small_row_cache_calls_for_sets_that_it_holds() -> None:
    """A value is cheap where its row is kept; of sets larger than the row cache, rows that stay are computed again."""
    of = PROFILES["cpu"]
    value = partial(kernel_rows._value, of, 5000.0, 6000)
    assert value(2000.0, 256) == value(6000.0, 2048) == of.cache_cost
    assert value(0.0, 16) == value(0.0, 2048) == 5000
    assert of.cache_cost < value(400.0, 256) < 5000 < value(400.0, 512) < value(400.0, 2048)
    tried = kernel_rows._sizes(2048)
    assert min(tried, key=lambda W: kernel_rows.cost(of, 6000, 5000, value(400.0, W), W)) == 256
