"""Slow, plain solvers of GTSVM's optimisation problems (equations 1 to 4), to hold the library against.

Written from the problems alone, in float64, over a whole kernel matrix; nothing here comes from clsvm. Letters: n rows,
k classes, K (n, n), signed coefficients b (y_i alpha_i, or alpha_i^(y) as b[y, i]), responses c = K b, and f = c minus
what a row wants its response to be, the gradient of the minimised dual.

primal - dual is a sum over rows of terms that are never negative, each 0 where the row fulfils its KKT conditions. So
the gap closes at every KKT point, also for a kernel matrix that is not positive semi-definite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

TAU = 1e-12  # the least curvature along a direction, as every SMO solver takes it
SLACK = 1e-8  # of C: a coefficient this near to a bound stands on it
SWEEPS = 3000
FACE_EVERY, FACE_STEPS, FACE_CELLS = 10, 20, 1500


@dataclass(frozen=True)
class Value:
    """What coefficients are worth: objectives of the primal (minimised) and the dual (maximised), KKT violation."""

    primal: float
    dual: float
    violation: float
    bias: float = 0.0
    """The one that minimises the primal for these coefficients, where there is one."""

    @property
    def gap(self) -> float:
        difference, total = self.primal - self.dual, self.primal + self.dual
        return 2 * difference / total if total > 0 else difference


@dataclass(frozen=True)
class Solution(Value):
    """A value and the coefficients that reach it: (n,), or (k, n) of Crammer and Singer's problem."""

    b: Any = None


def binary_value(K: Array, y: ArrayLike, C: ArrayLike, b: ArrayLike, bias: bool = True) -> Value:
    """Of y alpha (n,) for labels y (n,) of -1 and +1 and boxes C, a number or (n,).

    The violation is max f over rows whose b can shrink minus min f over rows whose b can grow; without a bias, how far
    f stands on the wrong side of 0.
    """
    y, b = np.asarray(y, np.float64), np.asarray(b, np.float64)
    C = np.broadcast_to(np.asarray(C, np.float64), y.shape)
    c = K @ b
    f = c - y
    offset = _best_bias(y, C, f) if bias else 0.0
    quadratic = float(b @ c)
    shrinks = b > np.where(y > 0, 0, -C) + SLACK * C
    grows = b < np.where(y > 0, C, 0) - SLACK * C
    high, low = f[shrinks].max(initial=-np.inf), f[grows].min(initial=np.inf)
    return Value(
        primal=quadratic / 2 + float(C @ np.maximum(0, 1 - y * (c + offset))),
        dual=float(y @ b) - quadratic / 2,
        violation=max(0.0, float(high - low if bias else max(high, -low))),
        bias=offset,
    )


def crammer_singer_value(K: Array, labels: ArrayLike, C: ArrayLike, b: ArrayLike) -> Value:
    """Of coefficients b (k, n) for labels (n,) of 0 .. k - 1 and boxes C, a number or (n,).

    The violation is the largest over rows of max f over the classes minus min f over those whose b can grow.
    """
    b = np.asarray(b, np.float64)
    C = np.broadcast_to(np.asarray(C, np.float64), b.shape[1:])
    own = np.arange(len(b))[:, None] == np.asarray(labels)
    c = K @ b.T
    f = c.T - own
    quadratic = float(np.sum(b.T * c))
    grows = b < C * own - SLACK * C
    return Value(
        primal=quadratic / 2 + float(C @ (f.max(axis=0) - f[own.T.nonzero()[::-1]])),
        dual=float(b[own].sum()) - quadratic / 2,
        violation=float(np.max(f.max(axis=0) - np.where(grows, f, np.inf).min(axis=0))),
    )


def binary(K: Array, y: ArrayLike, C: ArrayLike, bias: bool = True, gap: float = 1e-9) -> Solution:
    """Equation 2, with sum b = 0 or (bias=False) without, to a relative duality gap of ``gap``.

    Pairs with the second-order choice of Fan, Chen and Lin (2005), or exact minimisation in one coefficient at a time;
    now and then a Newton step in all that are free. Raises RuntimeError where the gap is not reached.
    """
    y = np.asarray(y, np.float64)
    C = np.broadcast_to(np.asarray(C, np.float64), y.shape)
    low, high = np.where(y > 0, 0, -C), np.where(y > 0, C, 0)
    b, curvature = np.zeros(len(y)), np.maximum(np.diag(K), TAU)
    for sweep in range(SWEEPS):
        value = binary_value(K, y, C, b, bias)
        if value.gap <= gap:
            return Solution(**vars(value), b=b)
        f = K @ b - y
        if sweep % FACE_EVERY == FACE_EVERY - 1:
            _face_steps(K, b[None], f[None], low, high, np.zeros((1, len(y))) if bias else None)
        if bias:
            _pair_steps(K, low, high, b, f)
            continue
        excess = b * f + C * np.maximum(0, -y * f)
        for i in _worst(excess):
            step = np.clip(b[i] - f[i] / curvature[i], low[i], high[i]) - b[i]
            b[i] += step
            f += step * K[i]
    raise RuntimeError(f"a relative gap of {value.gap:.3g} after {SWEEPS} sweeps, wanted {gap:.3g}")


def crammer_singer(K: Array, labels: ArrayLike, C: ArrayLike, k: int, gap: float = 1e-9) -> Solution:
    """Equation 4 for labels (n,) of 0 .. k - 1, to a relative duality gap of ``gap``; b is (k, n).

    One row's coefficients are minimised exactly at a time: C [y == y_i] - b[:, i] is the projection on the simplex of
    size C_i of where the gradient would be zero. Now and then a Newton step in all that are free. Raises RuntimeError
    where the gap is not reached.
    """
    labels = np.asarray(labels)
    n = len(labels)
    C = np.broadcast_to(np.asarray(C, np.float64), n)
    top = np.where(np.arange(k)[:, None] == labels, C, 0.0)
    own = np.arange(k)[:, None] == labels
    b, curvature = np.zeros((k, n)), np.maximum(np.diag(K), TAU)
    for sweep in range(SWEEPS):
        value = crammer_singer_value(K, labels, C, b)
        if value.gap <= gap:
            return Solution(**vars(value), b=b)
        f = b @ K - own
        if sweep % FACE_EVERY == FACE_EVERY - 1:
            _face_steps(K, b, f, np.full((k, n), -np.inf), top, np.broadcast_to(np.arange(n), (k, n)))
        excess = C * f.max(axis=0) - np.sum((top - b) * f, axis=0)
        for i in _worst(excess):
            new = top[:, i] - _on_simplex(top[:, i] - b[:, i] + f[:, i] / curvature[i], C[i])
            step = new - b[:, i]
            b[:, i] = new
            f += np.outer(step, K[i])
    raise RuntimeError(f"a relative gap of {value.gap:.3g} after {SWEEPS} sweeps, wanted {gap:.3g}")


def _worst(excess: Array) -> NDArray[np.intp]:
    """Rows in falling order of their part of the gap: those that hold more than a tenth of the mean part."""
    order = np.argsort(-excess)
    return order[: max(1, int(np.sum(excess > excess.mean() / 10)))]


def _best_bias(y: Array, C: Array, f: Array) -> float:
    """The minimiser of sum C max(0, -y (f + bias)): every row raises the slope by C_i where bias passes -f_i."""
    order = np.argsort(-f)
    passed = np.searchsorted(np.cumsum(C[order]), C[y > 0].sum())
    return float(-f[order[min(passed, len(y) - 1)]])


def _pair_steps(K: Array, low: Array, high: Array, b: Array, f: Array) -> None:
    """As many pair updates of b and f, in place, as there are rows, or until no pair can move."""
    diagonal = np.diag(K)
    for _ in range(len(b)):
        i = int(np.argmin(np.where(b < high, f, np.inf)))
        descent = np.where(b > low, f - f[i], 0.0)
        if not b[i] < high[i] or descent.max() <= 0:
            return
        curvature = np.maximum(diagonal[i] + diagonal - 2 * K[i], TAU)
        j = int(np.argmax(np.where(descent > 0, descent**2 / curvature, -np.inf)))
        step = min(descent[j] / curvature[j], high[i] - b[i], b[j] - low[j])
        # the bound itself, not a sum that rounding leaves short of it: else the same pair would come again
        b[i] = high[i] if step == high[i] - b[i] else b[i] + step
        b[j] = low[j] if step == b[j] - low[j] else b[j] - step
        f += step * (K[i] - K[j])


def _face_steps(K: Array, b: Array, f: Array, low: Array, high: Array, group: Array | None) -> None:
    """Newton steps of b and f (k, n), in place, in all coefficients between their bounds at once; each step ends at the
    first bound, which drops that coefficient. One coefficient at a time creeps where K is ill-conditioned.

    Coefficients of the same ``group`` (k, n) have a sum to keep: each trades with the first of its group. None: no sum.
    """
    n, flat, gradient = len(K), b.reshape(-1), f.reshape(-1)
    low, high = np.ravel(low), np.ravel(high)

    def between(p: Any, q: Any) -> Array:
        return K[np.ix_(p % n, q % n)] * (p[:, None] // n == q // n)

    for _ in range(FACE_STEPS):
        cells = np.flatnonzero((flat > low) & (flat < high))
        base = cells[:0]
        if group is not None and len(cells):
            _, first, which = np.unique(group.reshape(-1)[cells], return_index=True, return_inverse=True)
            base = cells[first[which]]
            cells, base = cells[base != cells], base[base != cells]
        if not 0 < len(cells) <= FACE_CELLS:
            return
        H, g = between(cells, cells), gradient[cells]
        if len(base):
            H, g = H - between(cells, base) - between(base, cells) + between(base, base), g - gradient[base]
        d = -np.linalg.solve(H + (TAU + 1e-12 * np.abs(np.diag(H)).max()) * np.eye(len(H)), g)
        d *= -np.sign(g @ d)  # an indefinite K may point upwards
        move = np.zeros(flat.shape)
        move[cells] = d
        if len(base):
            np.subtract.at(move, base, d)
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(move > 0, (high - flat) / move, np.where(move < 0, (low - flat) / move, np.inf))
        bend = float(d @ H @ d)
        full = -float(g @ d) / bend if bend > 0 else np.inf
        hit = int(np.argmin(room))
        step = min(full, room[hit])
        if not np.isfinite(step):
            return
        flat += step * move
        if step == room[hit]:
            flat[hit] = high[hit] if move[hit] > 0 else low[hit]
        gradient += step * (move.reshape(b.shape) @ K).reshape(-1)
        if step == full:
            return


def _on_simplex(v: Array, total: float) -> Array:
    """The point of {a >= 0, sum a = total} nearest to v."""
    falling = -np.sort(-v)
    over = (np.cumsum(falling) - total) / np.arange(1, len(v) + 1)
    return np.maximum(v - over[np.flatnonzero(falling >= over)[-1]], 0.0)
