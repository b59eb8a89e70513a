"""Choose the layout in which a device stores rows of X, and store rows on the device.

:func:`choose` estimates the cost of a kernel value in each layout, and returns a :class:`Plan` with the chosen layout.
:func:`build` stores rows as a plan says. Other functions return a plan with another layout, for example
for rows that are read only once.

LAYOUTS holds one record for each layout. A new layout needs a module in this folder, kernel templates, its record in
LAYOUTS, and its name and help texts in clsvm/parameters.py. docs/design/additions.md lists further places, such as
functions that name single layouts.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data, centred
from clsvm.gram import partition
from clsvm.gram.layouts.bits import BITS, binary
from clsvm.gram.layouts.csr import CSR, HYBRID, INVERTED
from clsvm.gram.layouts.lanes import CLUSTERED, DENSE
from clsvm.gram.layouts.record import WORKING, Layout, Plan, Rows, Survey
from clsvm.kernels.records import Spec
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (DENSE, BITS, CSR, CLUSTERED, HYBRID, INVERTED)}
# gathered_plan takes the layout "csr" if a value of K costs less than SOONER times as much as in the layout "dense".
SOONER = 0.8
_SAMPLE = 2048  # number of rows from which the density of columns is estimated
# Dense rows are centred by the mean of a sample of about this many rows, or of all rows if the sample has an outlier.
_MEANT = 8192
_FAR = 1e4  # a row is an outlier if its squared norm exceeds this multiple of the median squared norm


def names(spec: Spec) -> tuple[str, ...]:
    """Return the names of the layouts that a kernel function can use."""
    return tuple(layout.name for layout in LAYOUTS.values() if layout.elementwise or not spec.element)


def choose(
    profile: Profile, X: Data, spec: Spec, kind: str = "auto", working: int | str = "auto", all_rows: bool = False
) -> Plan:
    """Return the plan by which a device stores rows X (n, d) in the layout ``kind``.

    If ``kind`` is "auto", the layout of least estimated cost is chosen. ``profile`` has the costs of operations on the
    device. ``working`` is the expected number of right-hand rows U of a product K(X, U); "auto" means WORKING = 512.
    ``all_rows`` says that no rows except rows of X will be stored by this plan. The layout "bits" needs ``all_rows``,
    because it stores only the entries 0 and 1, and rows outside X may have other entries.

    If K depends on x - y alone, the mean of the rows is subtracted from each row before it is stored. Without the
    subtraction, float32 would compute |x - y|^2 poorly for rows far from 0. Sparse layouts subtract the mean only from
    columns without a zero. The layout "bits" subtracts nothing.

    Raises ValueError if the kernel function cannot use the layout, or if the layout cannot hold these rows.
    """
    asked = WORKING if working == "auto" else int(working)
    density = _density(X)
    survey = Survey(profile, X, density[density > 0], min(asked, max(1, X.shape[0])), all_rows and binary(X))
    offered = names(spec)
    if kind != "auto" and kind not in offered:
        raise ValueError(f"layout must be 'auto' or one of {', '.join(offered)} for this kernel function, got {kind!r}")
    if kind == BITS.name and not survey.binary:
        got = "rows with other entries" if all_rows else "a Falkon model or rows in shards"
        raise ValueError(f"layout='bits' is for SVMs over rows of 0 and 1 on one device, got {got}")
    costs, whole = _costs(survey, offered, kind == "auto")
    if kind == "auto":
        kind = min(whole, key=lambda name: whole[name])
    layout = LAYOUTS[kind]
    if X.shape[1] > layout.most:
        words = f"layout={kind!r} holds rows of at most {layout.most} columns, got {X.shape[1]}"
        raise ValueError(f"{words}: 'csr', 'hybrid' and 'inverted' hold more")
    centre = np.zeros(X.shape[1])
    if spec.of_distance and X.shape[0] and not layout.binary:
        full = _full_columns(X, density) if layout.sparse else np.ones(X.shape[1], bool)
        if full.any():
            centre[full] = _mean(X, full)
    reason = ", ".join(f"{name} {cost:.0f}" for name, cost in sorted(whole.items(), key=lambda item: item[1]))
    words = f"a value of K takes, in dense multiply-adds, {reason}"
    return Plan(kind, centre, words, layout.partition(profile, X), costs, whole)


def single_pass_plan(plan: Plan, X: Data, limit: float = np.inf) -> Plan:
    """Return ``plan`` with a layout for rows X (n, d) that are read only once.

    Two layouts would take longer to build than they save: "hybrid" replaces "inverted", and "dense" replaces
    "clustered". The layout "bits" stores only 0 and 1, but X may have other entries, so "dense" replaces "bits". If X
    is sparse and would take more than ``limit`` bytes as dense float64 rows, these replacements use "csr" in place of
    "dense". Other layouts are kept.
    """
    layout, large = LAYOUTS[plan.kind], sp.issparse(X) and 8 * X.shape[0] * X.shape[1] > limit
    stays = layout.in_order and not layout.binary
    return _as(plan, layout.plain or (plan.kind if stays else CSR.name if large else DENSE.name))


def unrestricted_plan(plan: Plan) -> Plan:
    """Return ``plan`` with a layout that can store any numbers, because rows to predict may contain any numbers.

    A layout is a format in which a device stores rows, and ``plan`` names it. Only the layout "bits" is restricted: it
    stores only the numbers 0 and 1. "bits" is replaced by the layout of least estimated cost among "dense", "csr" and
    "clustered". A plan with any layout except "bits" is returned unchanged.
    """
    if not LAYOUTS[plan.kind].binary:
        return plan
    others = [name for name in plan.costs if not (LAYOUTS[name].binary or LAYOUTS[name].splits)]
    return _as(plan, min(others, key=lambda name: plan.costs[name]))


def gathered_plan(plan: Plan, X: Data, limit: float = np.inf, free: bool = False) -> Plan:
    """Return ``plan`` with a layout for many kernel products, each of which uses only some of the rows X (n, d).

    A layout is a format in which a device stores rows. The returned layout is the layout that :func:`single_pass_plan`
    returns for rows that are read only once. In two cases, the returned layout is "csr" instead:

    - :func:`single_pass_plan` returns "dense", but the estimated cost of a kernel value in the layout "csr" is less
      than SOONER = 0.8 times the cost in the layout "dense". The dictionary plan.whole has both costs. The costs
      include a share of the cost of storing the rows.
    - ``plan`` has the layout "inverted", ``free`` is true, and no column of X is worth storing densely. ``free`` says
      that the user left the choice of the layout to the library.

    :func:`single_pass_plan` replaces some layouts by "dense". If X is sparse and would take more than ``limit`` bytes
    as dense float64 rows, :func:`single_pass_plan` replaces these layouts by "csr".
    """
    other = single_pass_plan(plan, X, limit)
    sooner = plan.whole.get(CSR.name, np.inf) < SOONER * plan.whole.get(DENSE.name, 0.0)
    of_index = free and plan.kind == INVERTED.name and HYBRID.name not in plan.costs
    entries = of_index if other.kind == HYBRID.name else other.kind == DENSE.name and sooner
    return _as(plan, CSR.name) if entries else other


def cheaper_plan(plan: Plan, X: Data) -> Plan:
    """Return ``plan`` or the plan of :func:`single_pass_plan`, whichever computes kernel values at less estimated cost.

    Checks in float64 use the returned plan, since the layout that the user chose for a fit may be slow.
    """
    return min(plan, single_pass_plan(plan, X, 0.0), key=lambda one: plan.costs.get(one.kind, np.inf))


def streamed_plan(plan: Plan, X: Data, limit: float = np.inf) -> Plan:
    """Return ``plan`` with a layout for rows X (n, d) that are copied to the device again in each of many passes.

    "csr" replaces the layouts "hybrid" and "inverted", because separating dense from sparse columns takes longer than
    it saves. "dense" replaces the layouts "clustered" and "bits", as in :func:`single_pass_plan`. But if X is sparse
    and would take more than ``limit`` bytes as dense float64 rows, "csr" replaces "clustered" and "bits". The layouts
    "dense" and "csr" are kept.
    """
    return _as(plan, CSR.name) if LAYOUTS[plan.kind].splits else single_pass_plan(plan, X, limit)


def _as(plan: Plan, kind: str) -> Plan:
    """Return ``plan`` with its layout (the storage format of rows on the device) replaced by ``kind``.

    A plan for sparse rows may have a partition: an order of the columns, of which the first few are stored densely. If
    ``kind`` is "csr", the returned plan keeps this order, and no column is stored densely.
    """
    if plan.partition and kind == CSR.name:
        plan = replace(plan, partition=replace(plan.partition, dense=0))
    return replace(plan, kind=kind)


def build(stream: Stream, X: Data, plan: Plan, dtype: str) -> Rows:
    """Store the rows of an array or CSR matrix X (n, d) on the device in ``dtype``, in the layout of ``plan``.

    Raises ValueError if the device lacks the dtype, if the memory budget cannot hold the rows, or if a row's squared
    norm exceeds the range of the dtype. Raises DeviceError if the device fails.
    """
    if stream.profile.lacks(dtype):
        raise ValueError(f"dtype 'float64' needs a device with double precision, {stream.info} has none; use 'float32'")
    centre = plan.centre
    # If the device has no doubles, the host subtracts the vector ``centre`` from the rows before it sends them.
    if stream.profile.wide == "pair" and (X.dtype != np.float32 or centre.any()):
        X, plan = centred(X, centre).astype(np.float32), replace(plan, centre=np.zeros_like(centre))
    return LAYOUTS[plan.kind].build(stream, X, plan, dtype)


def row_bytes(plan: Plan, X: Data, itemsize: int) -> int:
    """Return the approximate size in bytes of a row of X in the plan's layout."""
    return LAYOUTS[plan.kind].row_bytes(plan, X, itemsize)


def _costs(survey: Survey, offered: Sequence[str], auto: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Estimate costs of a kernel value in each layout, and return them as two dictionaries by layout name.

    The first dictionary has the cost of computing a kernel value. The second dictionary has the total cost, which is
    the cost of computing plus a share of the cost of converting a row to the layout. A fit of n rows converts each row
    once, and computes about n kernel values with the row. The share is therefore 1 / n. ``offered`` holds the names of
    the layouts. A layout is left out of both dictionaries if the library must not choose it.

    ``auto`` says that the library chooses the layout. The layout "clustered" is then left out of both dictionaries if
    its share of the conversion alone is higher than the total cost of another layout. "clustered" then cannot have the
    least total cost, and its cost of computing would take long to estimate.
    """
    costs: dict[str, float] = {}
    whole: dict[str, float] = {}
    for name in sorted(offered, key=lambda name: name == CLUSTERED.name):
        share = LAYOUTS[name].setup_cost(survey) / survey.n
        if auto and name == CLUSTERED.name and share > min(whole.values(), default=np.inf):
            continue
        cost = LAYOUTS[name].cost(survey)
        if cost is not None:
            costs[name], whole[name] = cost, cost + share
    return costs, whole


def _density(X: Data) -> NDArray[np.float64]:
    """Return the share (d,) of sampled rows in which each feature of X (n, d) is not 0."""
    step = X.shape[0] // _SAMPLE
    sample = X[::step] if step > 1 else X
    return partition.counts(sample) / max(1, sample.shape[0])


def _full_columns(X: Data, density: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask (d,) of the columns without a zero, whose mean can be subtracted without adding entries."""
    full: NDArray[np.bool_] = density == 1
    if full.any():
        full[full] = partition.counts(X[:, full]) == X.shape[0]
    return full


def _mean(X: Data, columns: NDArray[np.bool_]) -> NDArray[np.float64]:
    if sp.issparse(X):
        return (np.bincount(X.indices, X.data, minlength=X.shape[1]) / X.shape[0])[columns]  # bincount sums in float64
    if (step := X.shape[0] // _MEANT) > 1:  # to save time, take a sample's mean, unless the sample has an outlier
        some = X[::step]
        with np.errstate(over="ignore"):
            sizes = np.einsum("ij,ij->i", some, some)
        X = some if sizes.max() <= _FAR * np.median(sizes) else X
    return np.asarray((X if columns.all() else X[:, columns]).mean(axis=0, dtype=np.float64))
