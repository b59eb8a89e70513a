"""Rows on the device: one record for dense, clustered and CSR rows, and the choice between them.

    lanes   values[at[group] + j * V + lane]: V rows side by side, contiguous for each feature in the group's list J;
            "dense" where J is everything, "clustered" where J is what some row of the cluster uses
            (GTSVM section 5.3; Catanzaro 2011, listings 3 and 4)
    csr     rows one after another, for text

Device order is the clustered one (module cluster); ``Rows.order`` maps a position to the caller's row (-1: padding,
which stands wherever a cluster is not full). Padding rows are zero vectors. Letters: n rows, d features, V lanes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data, centred
from clsvm.gram import cluster
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Buffer, Stream

WHOLE = 8  # rows that choosing a working set takes at a time: n_pad is a multiple, whatever V is
_SAMPLE = 2048  # rows that the choice looks at
_SORTED = 8192, 1 << 24  # rows and cells at most that it sorts, to see what clusters would fill
_CLUSTERED_MAX_FEATURES = 16384
_STAGING = 256 << 20  # bytes of the caller's rows on the device at a time, where the host's memory is not shared


@dataclass(frozen=True)
class Plan:
    """How a model's rows are laid out, training and test alike.

    kind: "dense", "clustered" or "csr". centre: (d,) float64 subtracted before the cast (zeros where a shift would
    cost sparsity). reason: the costs that decided, in dense cells a row.
    """

    kind: str
    centre: NDArray[np.float64]
    reason: str


class Part(NamedTuple):
    """Lane groups first .. first + groups - 1 in one buffer, small enough for the device's largest allocation."""

    first: int
    groups: int
    values: Buffer


@dataclass(frozen=True)
class Rows:
    """Rows on the device. n_pad rows with padding; xx their squared norms; stored: cells kept, padding included."""

    kind: str
    dtype: str
    n: int
    d: int
    n_pad: int
    lanes: int
    stored: int
    order: NDArray[np.int32]
    position: NDArray[np.int32]
    xx: Buffer
    parts: tuple[Part, ...] = ()
    at: Buffer = None
    columns_at: Buffer = None
    columns: Buffer = None
    csr: tuple[Buffer, Buffer, Buffer] | None = None  # indptr int64, indices, data
    lengths: NDArray[np.int64] | None = None  # of the CSR rows, falling

    def buffers(self) -> tuple[Buffer, ...]:
        """Every buffer it holds, to be given back."""
        made = (self.at, self.columns_at, self.columns, *(part.values for part in self.parts), *(self.csr or ()))
        return (self.xx, *(buffer for buffer in made if buffer is not None))

    def entries(self, rows: int) -> int:
        """The most entries that so many CSR rows can have together."""
        assert self.lengths is not None
        return int(self.lengths[:rows].sum())

    def describe(self) -> str:
        return f"{self.kind}, {self.stored / max(self.n, 1):.1f} cells a row of {self.d}, {self.lanes} lanes"


def lanes(profile: Profile, dtype: str) -> int:
    """V for values of ``dtype``: half as many doubles fill the same vector."""
    return profile.lanes // 2 if dtype == "float64" and profile.shape == "vector" else profile.lanes


def options(profile: Profile, dtype: str, d: int = 0) -> list[str]:
    """The -D options that every program over rows of ``dtype`` shares."""
    made = [f"-DV={lanes(profile, dtype)}", f"-DINDEX={'ushort' if d <= 1 << 16 else 'int'}"]
    made += ["-DVECTOR"] * (profile.shape == "vector") + ["-DREAL64"] * (dtype == "float64")
    return made + ["-DWIDE_PAIR"] * (profile.wide == "pair")


def choose(profile: Profile, X: Data, spec: Spec, kind: str | None = None) -> Plan:
    """The cheapest layout that the kernel function has, by the profile's measured costs, and the centre that goes with
    it (||x-y|| is unchanged by a shift, and float32 loses it all where the data sit far from 0)."""
    n, d = X.shape
    sample = _sample(X)
    nonzero = sample != 0
    density = nonzero.mean(axis=0) if isinstance(sample, np.ndarray) else _csr_density(sample)
    used = float(density.sum())
    costs = {"dense": float(d), "csr": profile.csr_cost * used}
    if n > 1 and d <= _CLUSTERED_MAX_FEATURES and used < 0.9 * d and "clustered" in spec.layouts:
        costs["clustered"] = profile.clustered_cost * _sampled_fill(X, profile)
    if d > _CLUSTERED_MAX_FEATURES and used < 0.25 * d:
        del costs["dense"]
    kind = kind or min(costs, key=lambda name: costs[name])
    centre = np.zeros(d)
    if spec.of_distance and n:
        full = np.ones(d, bool) if kind == "dense" else _full_columns(X, density)
        centre[full] = _mean(X, full)
    reason = ", ".join(f"{name} {cost:.0f}" for name, cost in sorted(costs.items(), key=lambda item: item[1]))
    return Plan(kind, centre, f"cost a row in dense cells: {reason}")


def _sample(X: Data) -> Any:
    step = max(1, X.shape[0] // _SAMPLE)
    sample = X[::step]
    return sample.toarray() if sp.issparse(sample) and X.shape[1] <= _CLUSTERED_MAX_FEATURES else sample


def _csr_density(X: sp.csr_matrix) -> NDArray[np.float64]:
    return np.bincount(X.indices, minlength=X.shape[1]) / max(X.shape[0], 1)


def _full_columns(X: Data, density: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Columns without a single zero: those can be shifted at no cost to a sparse layout."""
    full: NDArray[np.bool_] = density == 1
    candidates = np.flatnonzero(full)
    if sp.issparse(X):
        full[candidates] = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])[candidates] == X.shape[0]
    elif candidates.size:
        full[candidates] = (X[:, candidates] != 0).all(axis=0)
    return full


def _mean(X: Data, columns: NDArray[np.bool_]) -> NDArray[np.float64]:
    if sp.issparse(X):
        return (np.bincount(X.indices, X.data, minlength=X.shape[1]) / X.shape[0])[columns]  # (in float64)
    mean = X.mean(axis=0, dtype=np.float64) if columns.all() else X[:, columns].mean(axis=0, dtype=np.float64)
    return np.asarray(mean)


def _sampled_fill(X: Data, profile: Profile) -> float:
    """Average columns of a cluster, from above: of some of the rows, and of groups of neighbours when these are sorted
    by their pattern, which hardly ever beats clusters and takes no device."""
    size = profile.lanes * profile.cluster
    sample = cluster.sampled(X, X.shape[1], *_SORTED)
    groups = sample.shape[0] // size
    if not groups:
        return float(X.shape[1])
    pattern = (sample.toarray() if sp.issparse(sample) else sample) != 0
    order = cluster.by_pattern(pattern[:, cluster.telling_columns(pattern)])
    return float(pattern[order[: groups * size]].reshape(groups, size, -1).any(axis=1).sum(axis=1).mean())


def build(stream: Stream, X: Data, plan: Plan, dtype: str) -> Rows:
    """X (n, d), dense or CSR, on the device as ``plan`` says, in ``dtype``.

    Raises ValueError where the memory budget does not hold it, DeviceError where the device does not.
    """
    if dtype == "float64" and stream.profile.wide == "pair":
        raise ValueError(f"dtype 'float64' needs a device with double precision, {stream.info} has none; use 'float32'")
    if stream.profile.wide == "pair" and (X.dtype != np.float32 or plan.centre.any()):  # such a device has no doubles
        X, plan = centred(X, plan.centre).astype(np.float32), replace(plan, centre=np.zeros_like(plan.centre))
    n, d = X.shape
    V = lanes(stream.profile, dtype)
    size = V * (stream.profile.cluster if plan.kind == "clustered" else 1)
    unit = math.lcm(size, WHOLE)
    n_pad = -(-n // unit) * unit
    centre, mask = plan.centre, None
    if plan.kind == "csr" or (plan.kind == "clustered" and sp.issparse(X)):
        X, centre = sp.csr_matrix(centred(X, centre)), np.zeros(d)
    if plan.kind == "clustered":
        clusters = cluster.cluster(stream, X, size, centre=centre)
        empty = n_pad - len(clusters.order)  # rows of no cluster
        order = np.concatenate([clusters.order, np.full(empty, -1, np.int32)])
        mask = np.pad(np.repeat(clusters.mask, size // V, axis=0), ((0, empty // V), (0, 0)))
    else:
        order = np.where(np.arange(n_pad) < n, np.arange(n_pad), -1).astype(np.int32)
    position = np.empty(n, np.int32)
    position[order[order >= 0]] = np.flatnonzero(order >= 0)
    common = {"kind": plan.kind, "dtype": dtype, "n": n, "d": d, "n_pad": n_pad, "lanes": V}
    common |= {"order": order, "position": position}
    opts = [*options(stream.profile, dtype, d), f"-DINPUT={'float' if X.dtype == np.float32 else 'double'}"]
    if plan.kind == "csr":
        return _build_csr(stream, X, common, opts)
    return _build_lanes(stream, X, centre, mask, common, opts)


def _build_csr(stream: Stream, X: sp.csr_matrix, common: dict[str, Any], opts: list[str]) -> Rows:
    real = np.dtype(common["dtype"])
    indptr = np.full(common["n_pad"] + 1, X.indptr[-1], np.int64)
    indptr[: X.shape[0] + 1] = X.indptr
    indices = X.indices.astype(np.uint16 if X.shape[1] <= 1 << 16 else np.int32)
    buffers = stream.upload(indptr), stream.upload(indices), stream.upload(X.data.astype(real))
    xx = stream.buffer(real.itemsize * common["n_pad"])
    norms = stream.kernel(sources.cl("gram/pack"), opts, "norms_csr")
    norms((common["n_pad"],), None, buffers[0], buffers[2], xx)
    _check_norms(stream, xx, common)
    lengths = -np.sort(-np.diff(indptr))
    return Rows(**common, stored=int(X.indptr[-1]), xx=xx, csr=buffers, lengths=lengths)


def _build_lanes(
    stream: Stream,
    X: Data,
    centre: NDArray[np.float64],
    mask: NDArray[np.bool_] | None,
    common: dict[str, Any],
    opts: list[str],
) -> Rows:
    """mask (groups, d): the columns that a lane group stores; None is all."""
    d, V, n_pad, order = (common[name] for name in ("d", "lanes", "n_pad", "order"))
    real, dense = np.dtype(common["dtype"]), mask is None
    groups = n_pad // V
    width = 1 if stream.profile.shape == "vector" else 64
    centre_buffer = stream.upload(centre.astype(stream.profile.finest))
    if mask is None:
        lengths, columns = np.full(groups, d, np.int64), np.zeros(1, np.int32)
    else:
        lengths, columns = mask.sum(axis=1, dtype=np.int64), np.nonzero(mask)[1].astype(np.int32)
    if not dense and lengths.sum() >= 2**31:
        raise ValueError(
            f"the clustered layout of {common['n']} rows needs {lengths.sum()} columns, at most {2**31 - 1}"
        )
    columns_at = np.zeros(groups + 1, np.int32)
    if not dense:
        columns_at[1:] = np.cumsum(lengths)
    parts, at = _split(stream, lengths * V * real.itemsize)
    shared = stream.upload(at // real.itemsize), stream.upload(columns_at), stream.upload(columns)
    kernel = stream.kernel(sources.cl("gram/pack"), opts, "pack")
    for first, count, row0, rows, source, begin, order_buffer in _staged(stream, X, order, V):
        for part in parts:
            start, end = max(first, part.first), min(first + count, part.first + part.groups)
            if start < end:
                arguments = (row0, rows, d, source, begin, start, order_buffer, centre_buffer, *shared, int(dense))
                kernel((width, end - start), (width, 1), *arguments, part.values)
        stream.finish()
    xx = stream.buffer(real.itemsize * n_pad)
    norms = stream.kernel(sources.cl("gram/pack"), opts, "norms_lanes")
    for part in parts:
        norms((part.groups * V,), None, part.first, d, part.values, *shared[:2], int(dense), xx)
    _check_norms(stream, xx, common)
    stream.free(centre_buffer)
    at_buffer, columns_at_buffer, columns_buffer = shared
    return Rows(
        **common,
        stored=int(lengths.sum()) * V,
        xx=xx,
        parts=tuple(parts),
        at=at_buffer,
        columns_at=columns_at_buffer,
        columns=columns_buffer,
    )


def _check_norms(stream: Stream, xx: Buffer, common: dict[str, Any]) -> None:
    """Rows whose squared norm overflows have no kernel values: better refused than NaN later."""
    norms = stream.read(xx, common["dtype"], common["n_pad"])
    bad = np.flatnonzero(~np.isfinite(norms))
    if bad.size:
        row, advice = common["order"][bad[0]], " or take dtype='float64'" * (common["dtype"] == "float32")
        raise ValueError(f"the squared norm of row {row} is too large for {common['dtype']}: scale X{advice}")


def _split(stream: Stream, sizes: NDArray[np.int64]) -> tuple[list[Part], NDArray[np.int64]]:
    """Consecutive groups into buffers within the largest allocation; each group's byte offset in its own buffer."""
    parts, at, first, filled = [], np.zeros(len(sizes), np.int64), 0, 0
    for g, size in enumerate(sizes.tolist()):
        if filled and filled + size > stream.largest:
            parts.append(Part(first, g - first, stream.buffer(filled)))
            first, filled = g, 0
        at[g] = filled
        filled += size
    parts.append(Part(first, len(sizes) - first, stream.buffer(filled)))
    return parts, at


def _staged(stream: Stream, X: Data, order: NDArray[np.int32], V: int) -> Any:
    """The caller's rows, row-major on the device, some lane groups at a time.

    Yields (first group, groups, row0, rows, buffer of rows, its first item, buffer of the order): position i stands in
    the buffer at row order[i] - row0. A device that shares the host's memory reads the caller's array itself.
    """
    n, d = X.shape
    groups = len(order) // V
    if stream.unified and not sp.issparse(X):
        order_buffer = stream.upload(order)
        with stream.view(X) as (source, begin):
            yield 0, groups, 0, n, source, begin, order_buffer
        stream.free(order_buffer)
        return
    there = order >= 0
    before = np.concatenate([[0], np.cumsum(there)])  # the caller's rows in front of a position
    order_buffer = stream.upload(np.where(there, before[:-1], -1).astype(np.int32))
    chunk = max(1, min(_STAGING, stream.largest) // max(1, V * d * X.dtype.itemsize))
    for first in range(0, groups, chunk):
        count = min(chunk, groups - first)
        piece = order[first * V : (first + count) * V]
        rows = X[piece[piece >= 0]]
        rows = rows.toarray() if sp.issparse(rows) else rows
        with stream.view(np.ascontiguousarray(rows)) as (source, begin):
            yield first, count, int(before[first * V]), len(rows), source, begin, order_buffer
    stream.free(order_buffer)
