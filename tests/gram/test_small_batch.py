"""Predictions for few rows: the values of any other call, with nothing made anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from clsvm import kernels
from clsvm.errors import RowTooLargeError
from clsvm.gram import layouts, responses, small_batch
from clsvm.gram.partition import Partition
from clsvm.models.model import KernelModel
from clsvm.opencl import devices
from clsvm.opencl.contexts import of_thread
from clsvm.opencl.launch import Kernel
from clsvm.opencl.stream import Stream


@pytest.fixture(autouse=True)
def _held(device: str) -> None:
    with Stream(device) as stream:
        if stream.profile.wide != "double" or stream.simulated:
            pytest.skip("few rows go the way of many here")


def make(kind: str = "dense", m: int = 200, d: int = 21, k: int = 2, problems: int = 1, **more: Any) -> KernelModel:
    rng = np.random.default_rng(7)
    return KernelModel(
        kernel=kernels.make("rbf", gamma=1 / d),
        support_vectors=rng.normal(size=(m, d)),
        dual_coef=rng.normal(size=(problems, m)),
        intercept=rng.normal(size=k * (k - 1) // 2 if problems == k - 1 else problems),
        classes=np.arange(k),
        n_support=np.bincount(np.arange(m) % k, minlength=k).astype(np.int32),
        plan=layouts.Plan(kind, rng.normal(size=d) if kind == "dense" else np.zeros(d), ""),
        **more,
    )


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every buffer that is made since."""
    made: list[int] = []
    buffer = Stream.buffer

    def counted(stream: Stream, nbytes: int) -> Any:
        made.append(nbytes)
        return buffer(stream, nbytes)

    monkeypatch.setattr(Stream, "buffer", counted)
    return made


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["dense", "clustered"])
@pytest.mark.parametrize(("k", "problems"), [(2, 1), (5, 4), (3, 3)])
def test_the_bits_of_many_rows(device: str, profile: str, dtype: str, kind: str, k: int, problems: int) -> None:
    """Whatever rows came before."""
    with Stream(device) as stream:
        if stream.profile.lacks(dtype):
            pytest.skip("the host computes these values")
    model = make(kind, k=k, problems=problems, dtype=dtype)
    for given in (np.asarray, np.float32, sp.csr_matrix):
        X = given(np.random.default_rng(2).normal(size=(small_batch.MOST + 40, 21)))
        whole = model.decision_function(X, device)
        for rows in (slice(0, small_batch.MOST), slice(5, 22), slice(30, 31), slice(90, 91), slice(40, 48)):
            np.testing.assert_array_equal(model.decision_function(X[rows], device), whole[rows])


@pytest.mark.parametrize("most", [64, 192, 300, 520])
def test_the_bits_of_several_panels(device: str, profile: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups share a panel, or are cut by its end: for few rows and for many."""
    model, X = make(m=700, k=6, problems=5), np.random.default_rng(2).normal(size=(small_batch.MOST + 9, 21))
    whole = model.decision_function(X, device)
    monkeypatch.setattr(responses, "PANEL", most * 21 * 4)
    cut = make(m=700, k=6, problems=5)
    np.testing.assert_array_equal(cut.decision_function(X, device), whole)
    np.testing.assert_array_equal(cut.decision_function(X[:3], device), whole[:3])
    with Stream(device) as stream:
        kept = cut._kept.get(stream)
    assert len(kept._loads) > 1
    assert len({piece.group for load in kept._loads for piece in load}) == 6
    assert sum(piece.size for load in kept._loads for piece in load) == 700


def test_one_launch_for_all_groups(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, X = make(m=700, k=6, problems=5), np.random.default_rng(2).normal(size=(1, 21))
    held: list[int] = []
    prepare = Kernel.held
    monkeypatch.setattr(Kernel, "held", lambda self, *given: held.append(1) or prepare(self, *given))
    model.decision_function(X, device)
    assert len(held) == 3  # the row, its norm, the sums


def test_later_calls_make_no_buffer(device: str, buffers: list[int]) -> None:
    model, X = make(), np.random.default_rng(2).normal(size=(9, 21))
    first = model.decision_function(X, device)
    assert buffers
    buffers.clear()
    np.testing.assert_array_equal(model.decision_function(X[:4], device), first[:4])
    assert not buffers


def test_coefficients_are_those_of_the_call(device: str) -> None:
    model, X = make(), np.random.default_rng(2).normal(size=(3, 21))
    before = model.decision_function(X, device)
    model.dual_coef[:] *= 2
    np.testing.assert_allclose(
        model.decision_function(X, device) - model.intercept, 2 * (before - model.intercept), rtol=1e-12
    )


def test_a_row_that_is_too_large_is_named_and_leaves_nothing(device: str) -> None:
    model = replace(make(), dtype="float64")
    X = np.random.default_rng(2).normal(size=(6, 21))
    expected = model.decision_function(X, device)
    large = X.copy()
    large[4, 3] = 1e200
    with pytest.raises(RowTooLargeError, match="row 4"):
        model.decision_function(large, device)
    np.testing.assert_array_equal(model.decision_function(X[:1], device), expected[:1])
    np.testing.assert_array_equal(model.decision_function(X, device), expected)


@pytest.mark.parametrize("limit", [None, "100kB"])
def test_a_predictor_takes_a_small_share_of_memory(device: str, limit: str | None, buffers: list[int]) -> None:
    model, X = make(m=20), np.random.default_rng(2).normal(size=(2, 21))
    values = model.decision_function(X, device, limit)
    buffers.clear()
    np.testing.assert_array_equal(model.decision_function(X, device, limit), values)
    assert bool(buffers) == (limit is not None)


@pytest.mark.parametrize("kind", ["dense", "csr", "hybrid"])
def test_sums_of_entries_are_those_of_the_layout(device: str, kind: str) -> None:
    """Their bits depend on it."""
    partition = Partition(np.random.default_rng(3).permutation(21).astype(np.int32), 7) if kind == "hybrid" else None
    model = replace(make(), kernel=kernels.make("laplacian", gamma=0.1))
    model = replace(model, plan=layouts.Plan(kind, np.zeros(21), "", partition))
    X = np.random.default_rng(2).normal(size=(small_batch.MOST + 1, 21))
    np.testing.assert_array_equal(model.decision_function(X[:2], device), model.decision_function(X, device)[:2])


def test_few_predictors_of_a_thread(device: str, buffers: list[int]) -> None:
    models, X = [make() for _ in range(small_batch.PREDICTORS + 1)], np.random.default_rng(2).normal(size=(2, 21))
    values = [model.decision_function(X, device) for model in models]
    with Stream(device) as stream:
        assert len(of_thread("small batches")[stream.queue, (1, 1)]) <= small_batch.PREDICTORS
    for model, expected in zip(models, values, strict=True):
        np.testing.assert_array_equal(model.decision_function(X, device), expected)


def test_nothing_is_built_while_a_call_holds_its_stream(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork waits for the builder first."""
    model, X = make(d=23), np.random.default_rng(2).normal(size=(small_batch.MOST, 23))
    held: dict[str, list[bool]] = {"built": [], "prepared": []}
    kernel, prepare, respond = Stream.kernel, Kernel.held, small_batch.SmallBatchPredictor.responses
    streams: list[Stream] = []
    monkeypatch.setattr(
        small_batch.SmallBatchPredictor,
        "responses",
        lambda self, stream, *given: streams.append(stream) or respond(self, stream, *given),
    )
    monkeypatch.setattr(
        Stream, "kernel", lambda self, *given: held["built"].append(self.lock._is_owned()) or kernel(self, *given)
    )

    def prepared(self: Kernel, *given: Any) -> Any:
        held["prepared"].append(any(stream.lock._is_owned() for stream in streams[-1:]))
        return prepare(self, *given)

    monkeypatch.setattr(Kernel, "held", prepared)
    model.decision_function(X[:2], device)
    assert not any(held["built"])
    before = len(held["prepared"])
    model.decision_function(X, device)
    assert held["built"]
    groups = -(-small_batch.MOST // devices.default_profile(devices.find(device)).lanes)
    assert (len(held["prepared"]) > before) == (groups > 1)  # for another number of lane groups
    assert before > 0
    assert not any(held["prepared"])
