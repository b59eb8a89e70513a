"""Tiles of members, K among the rows of each; and f of members, from tiles or, in float64, from products with their
support vectors.

In float64 half of K among all rows that take part, and its mirror image, can be less work than K between the rows that
are asked for and the support vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts.record import Panel
from clsvm.gram.products import Operator, Tile, Update
from clsvm.opencl.stream import Buffer, together
from clsvm.problem.dual import Vector
from clsvm.solvers import programs

UNIT = 32  # rows whose numbers fill an aligned part of a buffer, and whole vectors
ROOM = 128  # places of what products are taken of are multiples of it: parts of buffers are aligned then
MIRRORED = 64  # cells of a row from which a value of K is cheaper to copy than to compute
HALVED = 0.6  # of what K between rows and support vectors takes: half of K among all of them
FEWER, PASSING = 2, 16 << 20  # support vectors for each row that is asked for; bytes of K between them, at most
TILES = 0.25  # share of the memory that is left, for the tiles of a batch, or one in float64


class Asked(NamedTuple):
    """What is asked of a member: f of the rows at some places, from q there, and the places and coefficients of its
    support vectors."""

    rows: NDArray[np.int32]
    support: NDArray[np.int32]
    q: Vector
    b: Vector


def responses(gram: Operator, asked: Sequence[Asked]) -> list[Vector]:
    """Return f = K b + q of each, by ``gram``, which is in float64."""
    halved = [_halved(gram, one) for one in asked]
    across = [not half and _few(gram, one) for half, one in zip(halved, asked, strict=True)]
    ways = list(zip(asked, halved, across, strict=True))
    rest = iter(_between(gram, [one for one, *alone in ways if not any(alone)]))
    return [_among(gram, one) if half else _across(gram, one) if few else next(rest) for one, half, few in ways]


def _halved(gram: Operator, one: Asked) -> bool:
    """Return whether half of K among all rows that take part is less work, and memory holds it."""
    stream, m = gram.stream, len(np.union1d(one.rows, one.support))
    W, room = _square(gram, m), min(stream.largest, int(TILES * (stream.limit - stream.held)))
    return mirrors(gram) and m * m / 2 <= HALVED * len(one.rows) * len(one.support) and room >= 8 * W * W


def _few(gram: Operator, one: Asked) -> bool:
    """Return whether so few rows are asked for that they are best the working vectors."""
    few = FEWER * len(one.rows) <= len(one.support) and 8 * len(one.rows) * len(one.support) <= PASSING
    return few and gram.by_blocks


def _among(gram: Operator, one: Asked) -> Vector:
    """Return f by a tile of all rows that take part."""
    stream, both = gram.stream, np.union1d(one.rows, one.support)
    m, W = len(both), _square(gram, len(both))
    q, b, at = np.zeros(W), np.zeros(W), both.searchsorted(one.rows)
    q[at], b[both.searchsorted(one.support)] = one.q, one.b
    count, Q, f = stream.upload(np.array([m], np.int32)), stream.buffer(8 * W * W), stream.buffer(8 * W)
    (panel, rows), weights, linear = gathered(gram, _padded(both, W), count), stream.wide(b), stream.wide(q)
    tile(gram, panel, rows, count, Q, 0, m)
    respond(gram, (1, W), Q, weights, linear, f)
    found = stream.read_wide(f, W)[at]
    stream.free(count, Q, f, rows, weights, linear, *panel.buffers())
    return found


def _across(gram: Operator, one: Asked) -> Vector:
    """Return f by K between support vectors and the rows that are asked for, which are the working vectors: a block of
    entries is laid out for each few of these."""
    stream, R, S = gram.stream, _whole(gram, len(one.rows)), _whole(gram, len(one.support))
    here, there = (stream.upload(np.array([len(some)], np.int32)) for some in (one.rows, one.support))
    panel, at = gathered(gram, _padded(one.support, S), there)
    right, of = gathered(gram, _padded(one.rows, R), here)
    out = stream.buffer(8 * R * S)
    gram.between(panel, at, right, here, out, None)
    K = stream.read(out, np.float64, (R, S))[: len(one.rows), : len(one.support)]
    stream.free(here, there, at, of, out, *panel.buffers(), *right.buffers())
    return np.asarray(K @ one.b + one.q)


def _between(gram: Operator, asked: Sequence[Asked]) -> list[Vector]:
    """Return f by products of the rows that are asked for with the support vectors."""
    if not asked:
        return []
    stream, lengths = gram.stream, [(len(one.rows), len(one.support)) for one in asked]
    R, S = (_whole(gram, -(-max(1, *some) // ROOM) * ROOM) for some in zip(*lengths, strict=True))
    everything = stream.upload(np.array([len(asked) * max(R, S)], np.int32))
    panel, at = gathered(gram, np.stack([_padded(one.rows, R) for one in asked]), everything)
    right, of = gathered(gram, np.stack([_padded(one.support, S) for one in asked]), everything)
    D = stream.wide(np.stack([np.pad(one.b, (0, S - len(one.b))) for one in asked]))
    c = stream.wide(np.stack([np.pad(one.q, (0, R - len(one.q))) for one in asked]))
    count, each, *_ = together(stream, counts([number for some in lengths for number in some]))
    for i, (m, vectors) in enumerate(lengths):
        here, there, m, vectors = *each[2 * i : 2 * i + 2], _whole(gram, m), _whole(gram, vectors)
        left, own = gram.part(panel, i * R, m, here), gram.part(right, i * S, vectors, there)
        sums, parts = stream.part(c, 8 * i * R, 8 * m), stream.part(D, 8 * i * S, 8 * vectors)
        update = Update(1, m, sums, parts, vectors)
        gram.between(left, stream.part(at, 4 * i * R, 4 * m), own, there, None, update)
    found = stream.read_wide(c, (len(asked), R))
    stream.free(everything, at, of, D, c, count, *panel.buffers(), *right.buffers())
    return [values[: len(one.rows)] for one, values in zip(asked, found, strict=True)]


def mirrors(gram: Operator) -> bool:
    """Return whether one side of a tile is computed, which the other mirrors: on a CPU, of long rows."""
    return gram.stream.profile.shape == "vector" and gram.rows.tile_cost >= MIRRORED


def tile(gram: Operator, panel: Panel, rows: Buffer, count: Buffer, Q: Buffer, place: int, most: int) -> None:
    """Compute K among the ``most`` rows of a square panel, as tile number ``place`` of Q."""
    W, real, half = panel.capacity, np.dtype(gram.rows.dtype).itemsize, mirrors(gram)
    own = gram.stream.part(Q, real * place * W * W, real * W * W)
    gram.tile(panel, Tile(rows, count, own, half=half, most=most))
    if half:
        programs.mirror(gram.stream, gram.rows.dtype)(W, 0, own)


def respond(gram: Operator, shape: tuple[int, int], Q: Buffer, b: Buffer, q: Buffer, f: Buffer) -> None:
    """Compute f = Q b + q of as many tiles of W x W as shape (tiles, W) has."""
    (tiles, W), profile = shape, gram.stream.profile
    columns = -(-W // (programs.RESPOND * gram.rows.lanes)) if profile.shape == "vector" else W
    gram.stream.variant(programs.respond(profile, gram.rows.dtype))((columns, tiles), None, W, Q, b, q, f)


def gathered(gram: Operator, places: NDArray[np.int32], count: Buffer) -> tuple[Panel, Buffer]:
    """Return a panel of the rows at ``places``, -1 where there is none; and these on the device."""
    panel, at = gram.panel(places.size, square=True), gram.stream.upload(places.ravel())
    gram.gather(panel, at, count)
    return panel, at


def counts(numbers: Sequence[int]) -> list[NDArray[np.int32]]:
    """Return each number by itself, as kernels take how many there are of something."""
    return [np.array([number], np.int32) for number in numbers]


def _padded(places: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """Return so many places, -1 behind those that are given."""
    return np.pad(places, (0, size - len(places)), constant_values=-1)


def _square(gram: Operator, rows: int) -> int:
    """Return the rows of a tile of so many rows."""
    return _whole(gram, -(-rows // UNIT) * UNIT)


def _whole(gram: Operator, rows: int) -> int:
    """Return so many rows, one at least, in whole blocks of ``gram``."""
    return -(-max(1, rows) // gram.width) * gram.width
