"""Errors of expressions evaluated in a type, inner value by value."""

from __future__ import annotations

import numpy as np
import pytest

from clsvm.kernels import BUILTIN, Kernel, make
from clsvm.kernels.expression import INVALID, Extent, between, compare, inner_products

EPS = {dtype: float(np.finfo(dtype).eps) for dtype in ("float32", "float64")}
wide = pytest.mark.skipif(np.finfo(np.longdouble).max == np.finfo(np.float64).max, reason="long double is double here")


def test_a_value_and_its_error() -> None:
    tree = Kernel("xx * yy / (xx + yy)").spec.expression.tree
    values = {"xx": np.array([3.0, 1e30, 1e-30]), "yy": np.array([5.0, 1e30, 1e-30])}
    value, error, left = compare(tree, values, "float32")
    np.testing.assert_allclose(value.astype(float), [15 / 8, 5e29, 5e-31])
    assert left.tolist() == [False, True, True]
    assert error[0] < 1e-6
    assert error[1] == INVALID  # inf
    assert error[2] == pytest.approx(5e-31)  # 0
    value, error, left = compare(tree, values, "float64")
    assert not left.any()
    assert (error / np.abs(value) < 1e-15).all()
    value, error, _ = compare(Kernel("1 / dot").spec.expression.tree, {"dot": np.array([0.0, 2.0])}, "float32")
    assert np.isinf(value[0])
    assert error.tolist() == [0, 0]  # (what is not finite anyway is no error)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=wide)])
def test_digits_that_cancel_inside(dtype: str) -> None:
    """The value is off by what an inner value is rounded by."""
    large = 0.1 / EPS[dtype]
    found = Kernel("(dot + c) - c", c=large).evaluation(Extent(1.0, 0.5), Extent(1.0, 0.5), dtype, 3)
    assert 1e-3 < found.error < 0.2
    assert found.outside == 0


@wide
def test_float64s_range() -> None:
    kernel = Kernel("dot / sqrt(xx * yy)")
    for size, holds in ((1.0, True), (1e100, True), (1e160, False), (1e-100, True), (1e-160, False)):
        found = kernel.evaluation(Extent(size, size / 2), Extent(size), "float64", 3)
        assert (found.outside < 1e-12) == holds, size
        assert found.largest == pytest.approx(1)
    kernel = Kernel("dot / ((xx * yy) ** 20) ** (1 / 40)")
    for dtype in EPS:  # an inner value is beyond both
        found = kernel.evaluation(Extent(1e16, 1e15), Extent(1e16, 1e15), dtype, 3)
        assert found.largest == pytest.approx(1)
        assert found.outside == pytest.approx(1)


@pytest.mark.parametrize("name", BUILTIN)
def test_evaluation_of_the_built_in_ones_adds_little_to_rounding(name: str) -> None:
    """Fits to ordinary rows keep their bounds, and so their paths."""
    kernel = make(name)
    for least, largest in ((1e-3, 1e-2), (0.5, 4.0), (1.0, 800.0), (1e4, 1e6)):
        extent = Extent(largest, least, largest**0.5, least**0.5 / 10)
        for dtype, eps in EPS.items():
            found = kernel.evaluation(extent, extent, dtype, 30)
            assert found.error <= 1.5 * eps * kernel.rounding(largest, eps, least)
            assert found.outside <= 1e-20 * found.largest


def test_entries_of_an_element_wise_kernel() -> None:
    kernel = Kernel.elementwise("x * x * y * y / (1 + x * x * y * y)", "exp(-s)")
    ordinary, far = Extent(4.0, 1.0, 2.0, 0.1), Extent(4.0, 1.0, 1e10, 1e9)
    assert kernel.evaluation(ordinary, ordinary, "float32", 5).error < 1e-6
    assert kernel.evaluation(far, far, "float32", 5).outside == INVALID
    assert kernel.evaluation(far, far, "float64", 5).error < 1e-14


def test_extents() -> None:
    one, other = Extent(4.0, 2.0, 3.0, 1.0), Extent(5.0, 0.0, 2.0, 0.5)
    assert one.union(other) == other.union(one) == Extent(5.0, 2.0, 3.0, 0.5)
    assert between(0.0, 3.0).tolist() == [3.0] * len(between(0.0, 3.0))
    norms = between(1e-300, 1e300)
    assert (norms[0], norms[-1]) == (1e-300, 1e300)
    given = inner_products(one, other, np.longdouble)
    assert {values.dtype for values in given.values()} == {np.dtype(np.longdouble)}
    assert np.broadcast_shapes(*(values.shape for values in given.values())) == given["dot"].shape
    assert (given["sqdist"] >= 0).all()
    assert (np.abs(given["dot"]) <= np.sqrt(given["xx"] * given["yy"]) * (1 + 1e-12)).all()
