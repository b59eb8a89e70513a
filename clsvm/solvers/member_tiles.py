"""Tiles of members, K among the rows of each; and f of members, from tiles or, in float64, from products with their
support vectors.

In float64 half of K among all rows that take part, and its mirror image, can be less work than K between the rows that
are asked for and the support vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts.record import Panel
from clsvm.gram.products import Operator, Tile, Update
from clsvm.opencl.parts import together
from clsvm.opencl.stream import Buffer, Stream
from clsvm.solvers import programs

Vector = NDArray[np.float64]
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


def responses(stream: Stream, gram: Operator, asked: Sequence[Asked]) -> list[Vector]:
    """f = K b + q of each, by ``gram``, which is in float64."""
    ways = [_way(stream, gram, one) for one in asked]
    rest = iter(_between(stream, gram, [one for one, way in zip(asked, ways, strict=True) if way is None]))
    return [way(stream, gram, one) if way else next(rest) for one, way in zip(asked, ways, strict=True)]


def _way(stream: Stream, gram: Operator, one: Asked) -> Callable[[Stream, Operator, Asked], Vector] | None:
    """What is less work for it alone; None: products with its support vectors, beside those of others."""
    if _half(stream, gram, one):
        return _among
    few = FEWER * len(one.rows) <= len(one.support) and 8 * len(one.rows) * len(one.support) <= PASSING
    return _across if few and gram.by_blocks else None


def _half(stream: Stream, gram: Operator, one: Asked) -> bool:
    """Whether half of K among all rows that take part is less work, and memory holds it."""
    m = len(np.union1d(one.rows, one.support))
    W, room = _square(gram, m), min(stream.largest, int(TILES * (stream.limit - stream.held)))
    less = m * m / 2 <= HALVED * len(one.rows) * len(one.support)
    return mirrors(stream, gram) and less and room >= 8 * W * W


def _among(stream: Stream, gram: Operator, one: Asked) -> Vector:
    """f by a tile of all rows that take part."""
    both = np.union1d(one.rows, one.support)
    m, W = len(both), _square(gram, len(both))
    places, q, b = np.full(W, -1, np.int32), np.zeros(W), np.zeros(W)
    places[:m] = both
    at = both.searchsorted(one.rows)
    q[at], b[both.searchsorted(one.support)] = one.q, one.b
    count, Q, f = stream.upload(np.array([m], np.int32)), stream.buffer(8 * W * W), stream.buffer(8 * W)
    (panel, rows), weights, linear = gathered(stream, gram, places, count), stream.wide(b), stream.wide(q)
    tile(stream, gram, panel, rows, count, Q, 0, m)
    respond(stream, gram, (1, W), Q, weights, linear, f)
    found = stream.read_wide(f, W)[at]
    stream.free(count, Q, f, rows, weights, linear, *panel.buffers())
    return found


def _across(stream: Stream, gram: Operator, one: Asked) -> Vector:
    """f by K between support vectors and the rows that are asked for, which are the working vectors: a block of entries
    is laid out for each few of these."""
    R, S = (_whole(gram, len(some)) for some in (one.rows, one.support))
    lefts, rights = np.full(S, -1, np.int32), np.full(R, -1, np.int32)
    lefts[: len(one.support)], rights[: len(one.rows)] = one.support, one.rows
    here, there = (stream.upload(np.array([len(some)], np.int32)) for some in (one.rows, one.support))
    (panel, at), (right, of) = gathered(stream, gram, lefts, there), gathered(stream, gram, rights, here)
    out = stream.buffer(8 * R * S)
    gram.between(panel, at, right, here, out)
    K = stream.read(out, np.float64, (R, S))[: len(one.rows), : len(one.support)]
    stream.free(here, there, at, of, out, *panel.buffers(), *right.buffers())
    return np.asarray(K @ one.b + one.q)


def _between(stream: Stream, gram: Operator, asked: Sequence[Asked]) -> list[Vector]:
    """f by products of the rows that are asked for with the support vectors."""
    if not asked:
        return []
    lengths = [len(one.rows) for one in asked], [len(one.support) for one in asked]
    R, S = (_whole(gram, -(-max(1, *some) // ROOM) * ROOM) for some in lengths)
    q, weights = np.zeros((len(asked), R)), np.zeros((len(asked), S))
    lefts, rights = (np.full((len(asked), size), -1, np.int32) for size in (R, S))
    for i, one in enumerate(asked):
        q[i, : len(one.rows)], weights[i, : len(one.support)] = one.q, one.b
        lefts[i, : len(one.rows)], rights[i, : len(one.support)] = one.rows, one.support
    everything = stream.upload(np.array([len(asked) * max(R, S)], np.int32))
    (panel, at), (right, of) = (gathered(stream, gram, places, everything) for places in (lefts, rights))
    D, c = stream.wide(weights), stream.wide(q)
    count, each, *_ = together(stream, counts([*lengths[0], *lengths[1]]))
    for i, (one, here, there) in enumerate(zip(asked, each, each[len(asked) :], strict=False)):
        m, vectors = _whole(gram, len(one.rows)), _whole(gram, len(one.support))
        left, own = gram.part(panel, i * R, m, here), gram.part(right, i * S, vectors, there)
        sums, parts = stream.part(c, 8 * i * R, 8 * m), stream.part(D, 8 * i * S, 8 * vectors)
        gram.respond(left, stream.part(at, 4 * i * R, 4 * m), own, there, Update(1, m, sums, parts, vectors))
    found = stream.read_wide(c, (len(asked), R))
    stream.free(everything, at, of, D, c, count, *panel.buffers(), *right.buffers())
    return [values[: len(one.rows)] for one, values in zip(asked, found, strict=True)]


def mirrors(stream: Stream, gram: Operator) -> bool:
    """Whether one side of a tile is computed, which the other mirrors: on a CPU, of long rows."""
    return stream.profile.shape == "vector" and gram.rows.tile_cost >= MIRRORED


def tile(
    stream: Stream, gram: Operator, panel: Panel, rows: Buffer, count: Buffer, Q: Buffer, place: int, most: int
) -> None:
    """K among the ``most`` rows of a square panel, as tile number ``place`` of Q."""
    W, real, half = panel.capacity, np.dtype(gram.rows.dtype).itemsize, mirrors(stream, gram)
    own = stream.part(Q, real * place * W * W, real * W * W)
    gram.tile(panel, Tile(rows, count, own, half=half, most=most))
    if half:
        mirror = stream.variant(programs.carry(stream.profile, gram.rows.dtype), "mirror")
        mirror(*programs.squares(stream.profile, W, W), W, 0, own)


def respond(stream: Stream, gram: Operator, shape: tuple[int, int], Q: Buffer, b: Buffer, q: Buffer, f: Buffer) -> None:
    """f = Q b + q of as many tiles of W x W as shape (tiles, W) has."""
    tiles, W = shape
    vectors = programs.RESPOND * gram.rows.lanes
    columns = -(-W // vectors) if stream.profile.shape == "vector" else W
    stream.variant(programs.respond(stream.profile, gram.rows.dtype))((columns, tiles), None, W, Q, b, q, f)


def gathered(stream: Stream, gram: Operator, places: NDArray[np.int32], count: Buffer) -> tuple[Panel, Buffer]:
    """A panel of the rows at ``places``, -1 where there is none; and these on the device."""
    panel, at = gram.panel(places.size, square=True), stream.upload(places.ravel())
    gram.gather(panel, at, count)
    return panel, at


def counts(numbers: Sequence[int]) -> list[NDArray[np.int32]]:
    """Each by itself, as kernels take how many there are of something."""
    return [np.array([number], np.int32) for number in numbers]


def _square(gram: Operator, rows: int) -> int:
    """Rows and columns of a tile of so many rows."""
    return _whole(gram, -(-rows // UNIT) * UNIT)


def _whole(gram: Operator, rows: int) -> int:
    """So many rows, one at least, in whole blocks of ``gram``."""
    return -(-max(1, rows) // gram.width) * gram.width
