"""Compute gradients f = K b + q of small subproblems, where K is the kernel matrix.

A subproblem is the dual problem over some rows of a data set, with coefficients b and linear term q. The tile of a
subproblem is the kernel matrix among the rows of the subproblem. The batch solver solves several subproblems together.
It pads the tiles of these subproblems to one size, W x W values. :func:`tiles` computes the tiles, and
:func:`respond_tiles` computes gradients from tiles. Both use the dtype in which the device stores the rows.

The batch solver can check gradients in float64. For this check, :func:`responses` computes the gradients of chosen
rows in float64.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts.panel import Panel, PanelPair
from clsvm.gram.products import Operator, Tile, Update, counts
from clsvm.gram.programs import SECTION
from clsvm.opencl.stream import Buffer
from clsvm.problem import Vector
from clsvm.solvers.state import RESPOND, mirror, respond

UNIT = 32  # a subproblem is padded to a multiple of UNIT rows, so that its part of a shared buffer begins aligned
# Several float64 products share one buffer. Each product begins at a multiple of ALIGN rows, an aligned address.
ALIGN = 128
# On CPUs, values of a symmetric kernel matrix are computed once, not twice, if one costs >= MIRRORED multiply-adds.
MIRRORED = 64
# The gradients of rows R need the kernel matrix K(R, S) between the rows R and the support vectors S.
# For the union T of R and S, half of the symmetric K(T, T) replaces K(R, S) if |T|^2 / 2 <= SYMMETRIC * |R| * |S|.
SYMMETRIC = 0.6
# The kernel matrix of r rows and s support vectors may be computed transposed only if s >= FEW_FACTOR * r.
# The kernel matrix of some rows and support vectors may be computed transposed only if it takes <= FEW_BYTES bytes.
FEW_FACTOR, FEW_BYTES = 2, 16 << 20
# The kernel matrices of a batch of subproblems together take at most the share TILES of the device's free memory.
# A float64 check of one subproblem may make a kernel matrix that takes at most the share TILES of the free memory.
TILES = 0.25


class GradientRequest(NamedTuple):
    """Request the gradients f = K b + q of chosen rows in float64.

    K is the kernel matrix between the chosen rows and the support vectors.

    Attributes
    ----------
    rows
        positions of the requested rows in the device's order of rows.
    support
        positions of the support vectors in the device's order of rows.
    q
        linear terms of the dual for the requested rows.
    b
        coefficients of the support vectors.
    """

    rows: NDArray[np.int32]
    support: NDArray[np.int32]
    q: Vector
    b: Vector


def responses(gram: Operator, requests: Sequence[GradientRequest]) -> list[Vector]:
    """Return the gradients K(rows, support) b + q of each request, in float64.

    gram: operator that computes products with the kernel matrix K in float64.
    requests: the rows, their linear terms q, the support vectors and their coefficients b.
    """
    methods = [_method(gram, request) for request in requests]
    found: dict[int, Vector] = {}
    for method in dict.fromkeys(methods):
        indices = [i for i, chosen in enumerate(methods) if chosen is method]
        found |= zip(indices, method(gram, [requests[i] for i in indices]), strict=True)
    return [found[i] for i in range(len(requests))]


def _method(gram: Operator, request: GradientRequest) -> Callable[[Operator, list[GradientRequest]], list[Vector]]:
    """Choose the function that computes the gradients f of the ``request``, from kernel values K.

    :func:`_from_tiles` computes half of the symmetric kernel matrix among all rows and support vectors. It is chosen on
    CPUs if this is less work than K(rows, support), and if the symmetric matrix fits in memory.
    :func:`_from_transposes` computes K(support, rows). It is chosen for few rows and many support vectors on devices
    where K(rows, support) takes longer. Otherwise :func:`_from_products` is chosen.
    """
    stream, rows, support = gram.stream, len(request.rows), len(request.support)
    if mirrors(gram):
        m = len(np.union1d(request.rows, request.support))
        W, budget = _round_up(gram, m, UNIT), min(stream.largest, int(TILES * (stream.limit - stream.allocated)))
        if m * m / 2 <= SYMMETRIC * rows * support and budget >= 8 * W * W:
            return _from_tiles
    few = FEW_FACTOR * rows <= support and 8 * rows * support <= FEW_BYTES
    return _from_transposes if few and gram.by_blocks else _from_products


def _from_tiles(gram: Operator, requests: list[GradientRequest]) -> list[Vector]:
    """Return the gradients f of each request (:func:`_from_tile`)."""
    return [_from_tile(gram, request) for request in requests]


def _from_tile(gram: Operator, request: GradientRequest) -> Vector:
    """Return the gradients f of a request, computed from one symmetric kernel matrix.

    A request names some rows, the support vectors and the coefficients of the support vectors. The symmetric matrix
    holds the kernel values among all these rows and support vectors.
    """
    stream, positions = gram.stream, np.union1d(request.rows, request.support)
    m, W = len(positions), _round_up(gram, len(positions), UNIT)
    q, b, at = np.zeros(W), np.zeros(W), positions.searchsorted(request.rows)
    q[at], b[positions.searchsorted(request.support)] = request.q, request.b
    count, Q, f = stream.upload(counts([(m, m)])), stream.buffer(8 * W * W), stream.buffer(8 * W)
    (panel, rows), weights, linear = gathered(gram, _padded([positions], W, -1), count), stream.wide(b), stream.wide(q)
    tiles(gram, panel, rows, count, Q, [m])
    respond_tiles(gram, (1, W), Q, weights, linear, f)
    found = stream.read_wide(f, W)[at]
    stream.free(count, Q, f, rows, weights, linear, *panel.buffers())
    return found


def _from_transposes(gram: Operator, requests: list[GradientRequest]) -> list[Vector]:
    """Return the gradients of each request, computed from kernel values K(support, rows).

    K(support, rows) is faster to compute than K(rows, support) if there are few rows and many support vectors.
    """
    found = []
    with _panels(gram, [request.support for request in requests], [request.rows for request in requests]) as parts:
        out = gram.stream.buffer(8 * max(pair.panel.capacity * pair.right.capacity for _, pair in parts))
        for request, (_, pair) in zip(requests, parts, strict=True):
            gram.between(pair, out, None)
            K = gram.stream.read(out, np.float64, (pair.right.capacity, pair.panel.capacity))
            found.append(np.asarray(K[: len(request.rows), : len(request.support)] @ request.b + request.q))
        gram.stream.free(out)
    return found


def _from_products(gram: Operator, requests: list[GradientRequest]) -> list[Vector]:
    """Return the gradients K(rows, support) b + q of each request.

    The device multiplies kernel values K by the coefficients b without storing K, and adds the linear terms q.
    """
    stream, rows, support = gram.stream, [one.rows for one in requests], [one.support for one in requests]
    R, S = (_round_up(gram, max(map(len, vectors)), ALIGN) for vectors in (rows, support))
    with _panels(gram, rows, support) as parts:
        D = stream.wide(_padded([request.b for request in requests], S, 0))
        c = stream.wide(_padded([request.q for request in requests], R, 0))
        for first, pair in parts:
            k = pair.matrices
            sums, weights = (stream.part(x, 8 * first * each, 8 * k * each) for x, each in ((c, R), (D, S)))
            update = Update(1, pair.panel.capacity // k, sums, weights, pair.right.capacity // k)
            gram.between(pair, None, update)
        found = stream.read_wide(c, (len(requests), R))
        stream.free(D, c)
    return [values[: len(request.rows)] for request, values in zip(requests, found, strict=True)]


@contextmanager
def _panels(
    gram: Operator, left: list[NDArray[np.int32]], right: list[NDArray[np.int32]]
) -> Iterator[list[tuple[int, PanelPair]]]:
    """Gather on the device the rows U and R of several kernel matrices K(U, R).

    :meth:`Operator.between` writes the values of such a matrix transposed, as K(R, U). Yield a list with a tuple for
    each call of :meth:`Operator.between` that the matrices need: the index of the call's first matrix, and its panels.

    left: for each matrix, the positions of the rows U in the device's order of rows.
    right: for each matrix, the positions of the rows R in the device's order of rows.
    """
    stream, sizes = gram.stream, [*zip(map(len, left), map(len, right), strict=True)]
    A, B = (_round_up(gram, max(map(len, vectors)), ALIGN) for vectors in (left, right))
    all_rows = stream.upload(np.array([len(sizes) * max(A, B)], np.int32))
    panel, at = gathered(gram, _padded(left, A, -1), all_rows)
    others, of = gathered(gram, _padded(right, B, -1), all_rows)
    numbers = stream.upload(counts((b, a) for a, b in sizes))
    if gram.at_once:
        yield [(0, PanelPair(panel, at, others, numbers, len(sizes)))]
    else:
        parts = []
        for i, (a, b) in enumerate(sizes):
            one, positions, count = _part(gram, panel, at, numbers, (i, A, _round_up(gram, a)))
            parts.append((i, PanelPair(one, positions, gram.part(others, i * B, _round_up(gram, b), count), count)))
        yield parts
    stream.free(all_rows, at, of, numbers, *panel.buffers(), *others.buffers())


def _part(
    gram: Operator, panel: Panel, at: Buffer, numbers: Buffer, which: tuple[int, int, int]
) -> tuple[Panel, Buffer, Buffer]:
    """Return the part of a panel for one of several matrices, with the part's positions and sizes.

    panel: buffer of rows of X for several matrices.
    at: buffer with the positions of these rows.
    numbers: buffer with the sizes of all matrices (products.counts).
    which: index of the matrix, number of rows of the panel for each matrix, and number of rows of the returned part.
    """
    (index, each, capacity), stream = which, gram.stream
    count = stream.part(numbers, 4 * SECTION * index, 4 * SECTION)
    part = gram.part(panel, index * each, capacity, count)
    return part, stream.part(at, 4 * index * each, 4 * capacity), count


def mirrors(gram: Operator) -> bool:
    """Return whether to compute half of a symmetric kernel matrix and copy the other half.

    This is done on CPUs if a kernel value costs at least MIRRORED multiply-adds.
    """
    return gram.stream.profile.style == "simd" and gram.rows.tile_cost >= MIRRORED


def tiles(gram: Operator, panel: Panel, rows: Buffer, numbers: Buffer, Q: Buffer, sizes: Sequence[int]) -> None:
    """Compute several kernel matrices, each among some rows, and store them one after another in the buffer Q.

    Each matrix has W x W values. ``panel`` has room for W rows of each matrix.

    panel: buffer with the features of the rows.
    rows: buffer with the positions of the rows in the device's order of rows.
    numbers: buffer with the sizes of the matrices (products.counts).
    sizes: number of rows of each matrix.
    """
    stream, number, symmetric = gram.stream, len(sizes), mirrors(gram)
    W, itemsize = panel.capacity // number, np.dtype(gram.rows.dtype).itemsize
    if gram.at_once:
        gram.tile(panel, Tile(rows, numbers, Q, end=max(sizes), symmetric=symmetric, matrices=number))
    else:
        for p, most in enumerate(sizes):
            part, at, count = _part(gram, panel, rows, numbers, (p, W, W))
            out = stream.part(Q, itemsize * p * W * W, itemsize * W * W)
            gram.tile(part, Tile(at, count, out, end=most, symmetric=symmetric))
    if symmetric:
        mirror(stream, gram.rows.dtype, number)(W, range(W), Q)


def respond_tiles(gram: Operator, shape: tuple[int, int], Q: Buffer, b: Buffer, q: Buffer, f: Buffer) -> None:
    """Compute the gradients f = Q b + q for several kernel matrices Q, each of W x W values.

    Each matrix Q has its own coefficients b (W,) and linear term q (W,).

    shape: number of matrices, and W.
    """
    (tiles, W), profile = shape, gram.stream.profile
    columns = -(-W // (RESPOND * gram.rows.lanes)) if profile.style == "simd" else W
    gram.stream.variant(respond(profile, gram.rows.dtype))((columns, tiles), None, W, Q, b, q, f)


def gathered(gram: Operator, positions: NDArray[np.int32], count: Buffer) -> tuple[Panel, Buffer]:
    """Gather rows of X into a panel, which is a buffer for the rows U of a product K(X, U).

    Return the panel and a buffer with ``positions``.

    positions: position of each row in the device's order of rows; -1 stands for no row.
    count: buffer with the number of positions.
    """
    panel, at = gram.panel(positions.size, square=True), gram.stream.upload(positions.ravel())
    gram.gather(panel, at, count)
    return panel, at


def _padded(vectors: Sequence[NDArray[Any]], size: int, value: int) -> NDArray[Any]:
    """Return an array whose rows are the ``vectors``, each padded with ``value`` to the length ``size``."""
    padded = np.full((len(vectors), size), value, vectors[0].dtype)
    for row, vector in zip(padded, vectors, strict=True):
        row[: len(vector)] = vector
    return padded


def _round_up(gram: Operator, rows: int, unit: int = 1) -> int:
    """Round ``rows`` up to a multiple of ``unit``, and the result up to a multiple of ``gram.width``.

    ``rows`` is the number of rows of X that a buffer on the device must hold. OpenCL kernels read the buffer in blocks
    of ``gram.width`` rows, so the buffer needs memory for whole blocks.
    """
    rows = -(-max(1, rows) // unit) * unit
    return -(-rows // gram.width) * gram.width
