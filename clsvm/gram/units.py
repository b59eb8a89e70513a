"""Find the matrix units (tensor cores) of a device, and decide whether the products of a fit use them.

A trial product, once for each OpenCL context, tests that a program for the matrix units builds and that its results are
precise.
"""

from typing import Any, NamedTuple

import numpy as np

from clsvm.errors import BuildError
from clsvm.gram import layouts
from clsvm.gram.products import Gram, Operator, Store, Update
from clsvm.gram.programs import UNITS, Units
from clsvm.kernels import make
from clsvm.opencl.stream import Stream

# Matrix units (tensor cores) are tested on a kernel matrix between ROWS rows and WORKING rows of FEATURES features.
# ROWS and WORKING are not multiples of the block sizes of a work-group, so that incomplete blocks are tested too.
ROWS, WORKING, FEATURES = 190, 130, 37

# The test allows an error of (Units.error + ROUNDED) * |x| |y| in an inner product <x, y> of 37 features.
# ROUNDED is for the float32 additions.
ROUNDED = 2.0**-21


class Found(NamedTuple):
    """Hold the matrix units (tensor cores) of a device.

    Attributes
    ----------
    units
        the matrix units, or None if the device has none that work.
    why
        the reason in words if ``units`` is None, else "".
    """

    units: Units | None
    why: str


_FOUND: dict[tuple[Any, ...], Found] = {}  # results of find_units, by OpenCL context and device profile


def find_units(stream: Stream) -> Found:
    """Test the kinds of matrix units (tensor cores) that the device may have, and return the first precise kind."""
    context, profile, _ = stream.setting
    key = context, profile.name, profile.lanes, UNITS
    if key not in _FOUND:
        _FOUND[key] = _try_units(stream)
    return _FOUND[key]


def _try_units(stream: Stream) -> Found:
    words = f"no matrix units are known of {stream.info.platform}"
    for one in UNITS if "wide" in stream.profile.tiles else ():
        if one.platform not in stream.info.platform:
            continue
        try:
            error = measure_units(stream, one)
        except BuildError as failed:  # the compiler does not know the instructions of these matrix units
            words = f"{one.name} was not built: {str(failed).strip().splitlines()[0][:200]}"
            continue
        if error <= one.error + ROUNDED:
            return Found(one, "")
        words = f"{one.name} is wrong by {error:.2g} times the norms"
    return Found(None, words)


def measure_units(stream: Stream, one: Units) -> float:
    """Measure rounding errors of a kind of matrix units, and return the largest relative error.

    The matrix units compute inner products <x, y> of random rows. The error of <x, y> is divided by |x| |y|.

    For each row y they also compute the sum of w_x <x, y> over rows x, with random weights w_x. The sum is compared
    with the same weighted sum of the computed <x, y>, added in float64. Its error is divided by the sum of
    |w_x| |x| |y|.

    one: the kind of matrix units.

    Raises BuildError and DeviceError.
    """
    rng, linear = np.random.default_rng(0), make("linear")
    X = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    expected = X[:WORKING].astype(np.float64) @ X.T
    sizes = np.sqrt(np.square(X, dtype=np.float64).sum(axis=1))
    weights = rng.normal(size=WORKING)
    with stream.scratch():
        plan = layouts.choose(stream.profile, X, linear.spec, "dense")
        gram = Gram(stream, layouts.build(stream, X, plan, "float32"), linear)
        gram.use(one)
        gram.min_tiles, n_pad, position = 0, gram.rows.n_pad, gram.rows.position
        panel, count = gram.panel(WORKING), stream.upload(np.array([WORKING], np.int32))
        gram.gather(panel, stream.upload(position[:WORKING]), count)
        D = np.zeros((1, panel.capacity))
        D[0, :WORKING] = weights
        out, c = stream.buffer(4 * WORKING * n_pad), stream.wide(np.zeros((1, n_pad)))
        store = Store((out,), WORKING, n_pad, gram.slot(panel.capacity))
        gram.accumulate(panel, count, store, Update(1, n_pad, c, stream.wide(D), panel.capacity))
        stored = stream.read(out, np.float32, (WORKING, n_pad))[:, position].astype(np.float64)
        sums = stream.read_wide(c, n_pad)[position]
    off = np.abs(stored - expected) / (sizes[:WORKING, None] * sizes)
    apart = np.abs(sums - weights @ stored) / (sizes * (np.abs(weights) @ sizes[:WORKING]))
    return float(np.nan_to_num(np.maximum(off.max(axis=0), apart), nan=np.inf).max())


def choose_units(gram: Operator, precision: str, many: bool = False) -> tuple[Units | None, str]:
    """Decide whether the products of a fit use matrix units (tensor cores).

    Return two items. The first is the matrix units, or None if the fit uses none. The second is a text that says how
    kernel values are computed. A fit uses matrix units only with precision="fast". ``many`` says that many solves share
    the rows. Such a fit uses no matrix units, because some of its solves may need more precision.
    """
    dtype = gram.rows.dtype
    if precision != "fast" or dtype != "float32":
        return None, dtype
    if not gram.resident:
        return None, "float32: K is given, is stored whole, or is of rows that pass through the device"
    if many:
        return None, "float32: many solves share the rows"
    unit, words = find_units(gram.stream)
    words = unit.why_not(gram.kernel.spec, gram.rows, gram.stream.profile) if unit else words
    return (unit, unit.name) if unit and not words else (None, f"float32: {words}")
