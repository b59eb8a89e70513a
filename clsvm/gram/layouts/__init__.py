"""Rows on a device: the layouts that there are, a record each, and the choice between them.

Adding one is a module here, its templates, and its record in LAYOUTS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data, centred
from clsvm.errors import RowTooLargeError
from clsvm.gram.layouts.csr import CSR, HYBRID, INVERTED
from clsvm.gram.layouts.lanes import CLUSTERED, DENSE, MAX_FEATURES
from clsvm.gram.layouts.record import WORKING, Layout, Plan, Rows, Survey
from clsvm.kernels.records import Spec
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (DENSE, CSR, CLUSTERED, HYBRID, INVERTED)}
SOONER = 0.8  # of dense rows' time: entries, where rows are read by their numbers
_SAMPLE = 2048  # rows that the choice looks at
_MEANT = 8192  # rows, about, that the centre of dense ones is the mean of, where none of them is beyond
_FAR = 1e4  # times their median of squared lengths; else of all


def names(spec: Spec) -> tuple[str, ...]:
    """Return the layouts that a kernel function has."""
    return tuple(layout.name for layout in LAYOUTS.values() if layout.elementwise or not spec.element)


def choose(profile: Profile, X: Data, spec: Spec, kind: str = "auto", working: int | str = "auto") -> Plan:
    """Return the plan of the cheapest layout that the kernel function has, by the profile's measured costs, or of
    ``kind``, with its centre: a shift leaves ||x-y|| as it is, and float32 loses it where the data sit far from 0.
    working: how many vectors a product has, where that is known.

    Raises ValueError for a layout that the kernel function does not have, or that cannot hold rows of so many columns.
    """
    asked = WORKING if working == "auto" else int(working)
    density = _density(X)
    survey = Survey(profile, X, density[density > 0], min(asked, max(1, X.shape[0])))
    offered = names(spec)
    if kind != "auto" and kind not in offered:
        raise ValueError(f"layout must be 'auto' or one of {', '.join(offered)} for this kernel function, got {kind!r}")
    costs, whole = _costs(survey, offered, kind == "auto")
    if kind == "auto":
        kind = min(whole, key=lambda name: whole[name])
    layout = LAYOUTS[kind]
    if X.shape[1] > layout.most:
        words = f"layout={kind!r} holds rows of at most {layout.most} columns, got {X.shape[1]}"
        raise ValueError(f"{words}: 'csr', 'hybrid' and 'inverted' hold more")
    centre = np.zeros(X.shape[1])
    if spec.of_distance and X.shape[0]:
        full = _full_columns(X, density) if layout.sparse else np.ones(X.shape[1], bool)
        centre[full] = _mean(X, full)
    reason = ", ".join(f"{name} {cost:.0f}" for name, cost in sorted(whole.items(), key=lambda item: item[1]))
    words = f"a value of K takes, in dense cells, {reason}"
    fill = survey.fill if CLUSTERED.name in costs else None
    return Plan(kind, centre, words, layout.partition(profile, X), costs, fill, whole)


def once(plan: Plan, X: Data, room: float = np.inf) -> Plan:
    """Return the plan for rows X that are read once, or by their numbers alone: an index or an order of the rows does
    not pay for its making. Dense rows may take ``room`` bytes."""
    layout, large = LAYOUTS[plan.kind], sp.issparse(X) and 8 * X.shape[0] * X.shape[1] > room
    return _as(plan, layout.plain or (plan.kind if layout.in_order else CSR.name if large else DENSE.name))


def gathered(plan: Plan, X: Data, room: float = np.inf, free: bool = False) -> Plan:
    """Return :func:`once`'s plan for many values of rows that are read by their numbers. Dense rows become entries
    where entries are read sooner. free: no layout was asked for, so that an index's rows become entries too, if no
    column is worth storing whole."""
    other = once(plan, X, room)
    sooner = plan.whole.get(CSR.name, np.inf) < SOONER * plan.whole.get(DENSE.name, 0.0)
    of_index = free and plan.kind == INVERTED.name and HYBRID.name not in plan.costs
    entries = of_index if other.kind == HYBRID.name else other.kind == DENSE.name and sooner
    return _as(plan, CSR.name) if entries else other


def cheaper(plan: Plan, X: Data) -> Plan:
    """Return the plan, or that of :func:`once` where its values cost less by the estimates: a layout that was asked for
    need not suit the checks in float64."""
    return min(plan, once(plan, X, 0.0), key=lambda one: plan.costs.get(one.kind, np.inf))


def streamed(plan: Plan, X: Data, room: float = np.inf) -> Plan:
    """Return the plan for rows X that are laid out anew in every pass: splitting rows takes longer than it saves."""
    return _as(plan, CSR.name) if LAYOUTS[plan.kind].splits else once(plan, X, room)


def _as(plan: Plan, kind: str) -> Plan:
    """Return the plan of another layout; entries keep the order of the columns, and none is stored whole."""
    partition = plan.partition
    if partition and kind == CSR.name:
        partition = replace(partition, dense=0)
    return replace(plan, kind=kind, partition=partition)


def build(stream: Stream, X: Data, plan: Plan, dtype: str, ids: Sequence[int] | NDArray[np.int32] = ()) -> Rows:
    """Put X (n, d), dense or CSR, on the device as ``plan`` says, in ``dtype``.

    ids: which of the caller's rows these are, for errors; else they are all of them. Raises ValueError where the memory
    budget does not hold it or a row is too large for the dtype, DeviceError where the device does not.
    """
    if stream.profile.lacks(dtype):
        raise ValueError(f"dtype 'float64' needs a device with double precision, {stream.info} has none; use 'float32'")
    centre = plan.centre
    if stream.profile.wide == "pair" and (X.dtype != np.float32 or centre.any()):  # such a device has no doubles
        X, plan = centred(X, centre).astype(np.float32), replace(plan, centre=np.zeros_like(centre))
    try:
        return LAYOUTS[plan.kind].build(stream, X, plan, dtype)
    except RowTooLargeError as error:
        raise RowTooLargeError(int(ids[error.row]) if len(ids) else error.row, dtype) from None


def row_bytes(plan: Plan, X: Data, itemsize: int) -> int:
    """Return the bytes of a row of X as it is laid out, about."""
    return LAYOUTS[plan.kind].row_bytes(plan, X, itemsize)


def _costs(survey: Survey, offered: Sequence[str], auto: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Return the estimate of a value by layout, and the same with the value's share of laying out its row. A fit takes
    about one product with each row, so as many values of K share that. auto: estimate clusters only where that share
    leaves hope, since the estimate takes as long as laying out rows."""
    costs: dict[str, float] = {}
    whole: dict[str, float] = {}
    for name in sorted(offered, key=lambda name: name == CLUSTERED.name):
        share = LAYOUTS[name].price(survey) / survey.n
        if auto and name == CLUSTERED.name and share > min(whole.values(), default=np.inf):
            continue
        cost = LAYOUTS[name].cost(survey)
        if cost is not None:
            costs[name], whole[name] = cost, cost + share
    return costs, whole


def _density(X: Data) -> NDArray[np.float64]:
    """Return the share of a sample of the rows in which each feature is not 0."""
    step = max(1, X.shape[0] // _SAMPLE)
    sample: Any = X[::step] if step > 1 else X
    if sp.issparse(sample) and X.shape[1] > MAX_FEATURES:
        return np.bincount(sample.indices, minlength=X.shape[1]) / max(sample.shape[0], 1)
    cells = sample.toarray() if sp.issparse(sample) else sample
    return np.asarray((cells != 0).mean(axis=0))


def _full_columns(X: Data, density: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which columns have no zero: a sparse layout shifts them at no cost."""
    full: NDArray[np.bool_] = density == 1
    candidates = np.flatnonzero(full)
    if not candidates.size:
        return full
    if sp.issparse(X):
        full[candidates] = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])[candidates] == X.shape[0]
    else:
        full[candidates] = (X[:, candidates] != 0).all(axis=0)
    return full


def _mean(X: Data, columns: NDArray[np.bool_]) -> NDArray[np.float64]:
    if not columns.any():
        return np.zeros(0)
    if sp.issparse(X):
        return (np.bincount(X.indices, X.data, minlength=X.shape[1]) / X.shape[0])[columns]  # (in float64)
    if (step := X.shape[0] // _MEANT) > 1:  # (any point near the rows will do; single ones far out would move it)
        some = X[::step]
        with np.errstate(over="ignore"):
            sizes = np.einsum("ij,ij->i", some, some)
        X = some if sizes.max() <= _FAR * np.median(sizes) else X
    mean = X.mean(axis=0, dtype=np.float64) if columns.all() else X[:, columns].mean(axis=0, dtype=np.float64)
    return np.asarray(mean)
