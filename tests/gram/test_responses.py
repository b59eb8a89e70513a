"""Finished models: what stays on the device between calls, and that no decision value depends on it."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import threading
import weakref
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import clsvm
from clsvm import SVC, kernels
from clsvm.gram import exact, layouts
from clsvm.gram.partition import Partition
from clsvm.gram.responses import Support
from clsvm.kernels import Kernel
from clsvm.models.model import KernelModel
from clsvm.opencl import devices, memory
from clsvm.opencl.stream import Stream
from tests.conftest import noisy

KINDS = ("dense", "clustered", "csr", "hybrid", "inverted")
Builds = list[int]


def sparse_rows(n: int, d: int, seed: int, kind: str) -> Any:
    """Rows with two thirds of their entries zero but none in column 0, as the layout takes them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 1 / 3)
    X[:, 0] += 100
    return sp.csr_matrix(X) if kind == "csr" else X


def make_model(kind: str = "dense", m: int = 300, d: int = 30, problems: int = 1, k: int = 2) -> KernelModel:
    rng = np.random.default_rng(5)
    partition = Partition(np.random.default_rng(3).permutation(d).astype(np.int32), d // 3)
    return KernelModel(
        kernel=kernels.make("rbf", gamma=2 / d),
        support_vectors=sparse_rows(m, d, 6, kind),
        dual_coef=rng.normal(size=(problems, m)),
        intercept=rng.normal(size=problems),
        classes=np.arange(10, 10 + k),
        n_support=np.bincount(np.arange(m) % k, minlength=k).astype(np.int32),
        plan=layouts.Plan(
            kind, np.where(np.arange(d) == 0, 100.0, 0.0), "", partition if layouts.LAYOUTS[kind].splits else None
        ),
    )


def on_host(model: KernelModel, X: Any) -> np.ndarray:
    X, Y = (A.toarray() if sp.issparse(A) else A for A in (X, model.support_vectors))
    return model.kernel(X, Y) @ model.dual_coef.T + model.intercept


def few_are_quick(device: str) -> bool:
    """Whether few rows have a predictor of their own there."""
    with Stream(device) as stream:
        return stream.profile.wide == "double" and not stream.simulated


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    """How many rows each call of layouts.build has laid out since."""
    seen: Builds = []
    build = layouts.build

    def counted(stream: Any, X: Any, *rest: Any) -> Any:
        seen.append(X.shape[0])
        return build(stream, X, *rest)

    monkeypatch.setattr(layouts, "build", counted)
    return seen


@pytest.mark.parametrize(("d", "problems"), [(4, 1), (4, 10), (20, 10), (200, 1)])
def test_support_vectors_that_pass_by(device: str, d: int, problems: int) -> None:
    """Narrow rows have sums and places that take more than they do: within the limit, and the same bits."""
    rng, kernel = np.random.default_rng(0), kernels.make("rbf", gamma=1 / d)
    vectors, X = rng.normal(size=(32000 // d, d)), rng.normal(size=(120000 // d, d))
    coefficients, found = rng.normal(size=(problems, len(vectors))), []
    for limit in (None, 8 * 48000):
        with Stream(device, limit) as stream:
            plan = layouts.choose(stream.profile, X, kernel.spec, "dense")
            support = Support(stream, kernel, plan, vectors, "float32")
            assert bool(support.buffers) == (limit is None)
            found.append(support.responses(stream, X, coefficients))
            assert stream.peak <= stream.limit
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("kind", KINDS)
def test_later_calls_lay_out_their_rows_alone(device: str, profile: str, kind: str, builds: Builds) -> None:
    model, X = make_model(kind), sparse_rows(70, 30, 1, kind)
    first = model.decision_function(X, device)
    assert builds == [300, 70]
    builds.clear()
    np.testing.assert_array_equal(model.decision_function(X, device), first)
    for i in 0, 37, 69:  # whatever the batch
        np.testing.assert_array_equal(model.decision_function(X[i : i + 1], device), first[i : i + 1])
    assert builds == ([70] if kind in ("dense", "clustered") and few_are_quick(device) else [70, 1, 1, 1])
    np.testing.assert_allclose(first, on_host(model, X)[:, 0], atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_float64_model_on_every_device(device: str, profile: str, kind: str) -> None:
    """Also one without double precision, where the host computes its values."""
    model = replace(make_model(kind), dtype="float64")
    X = sparse_rows(70, 30, 1, kind)
    for _ in range(2):
        np.testing.assert_allclose(model.decision_function(X, device), on_host(model, X)[:, 0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_little_memory_changes_no_bit(device: str, profile: str, kind: str, builds: Builds) -> None:
    """Everything kept in one piece, in several, or nothing kept at all."""
    model, X = make_model(kind, m=700, d=400), sparse_rows(90, 400, 1, kind)
    whole = model.decision_function(X, device)
    most = model._kept.nbytes
    assert most > (700 * 400 * 4 if kind == "dense" else model.support_vectors.nnz * 6)
    for limit, kept in (8 * most, True), (5 * most, kind == "dense"), (3 * most, False), (1_000_000, False):
        for _ in range(2):
            builds.clear()
            np.testing.assert_array_equal(model.decision_function(X, device, limit), whole)
        assert (model._kept.nbytes > 0) == (sum(builds) == 90) == kept, limit
        assert model._kept.nbytes <= limit // 4
    with pytest.raises(ValueError, match="memory_limit of 20000 bytes is too small"):
        model.decision_function(X, device, "20kB")


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(KINDS),
    m=st.integers(1, 200),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    limit=st.sampled_from([None, 10**6, 10**5]),
    problems=st.integers(1, 3),
)
def test_no_batch_and_no_memory_changes_a_bit(
    device: str, kind: str, m: int, cuts: list[int], limit: int | None, problems: int
) -> None:
    model, X = make_model(kind, m, 20, problems, max(2, problems)), sparse_rows(40, 20, 1, kind)
    whole = model.decision_function(X, device)
    places = [0, *sorted(cuts), 40]
    pieces = [model.decision_function(X[a:b], device, limit) for a, b in pairwise(places)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_threads_share_what_is_kept(device: str, builds: Builds) -> None:
    model, X = make_model("clustered"), sparse_rows(70, 30, 1, "clustered")
    expected = make_model("clustered").decision_function(X, device)
    start = threading.Barrier(4)
    got: list[np.ndarray] = []

    def work() -> None:
        start.wait(60)
        got.extend(model.decision_function(X, device) for _ in range(20))

    def run() -> None:
        got.clear()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(got) == 80
        for values in got:
            np.testing.assert_array_equal(values, expected)

    run()  # all find nothing laid out
    builds.clear()
    run()
    assert set(builds) == {70}


def test_copies_begin_anew(device: str, builds: Builds) -> None:
    """Nothing of the device is in a pickle: it is the same before and after use."""
    model, X = make_model(), sparse_rows(70, 30, 1, "dense")
    before = pickle.dumps(model)
    values = model.decision_function(X, device)
    assert pickle.dumps(model) == before
    for other in pickle.loads(before), copy.deepcopy(model), replace(model):
        builds.clear()
        np.testing.assert_array_equal(other.decision_function(X, device), values)
        assert builds == [300, 70]
        assert other._kept.nbytes == model._kept.nbytes > 0
    assert replace(model, dual_coef=-model.dual_coef).decision_function(X, device)[0] != values[0]


def _in_child(model: KernelModel, X: np.ndarray, device: str, builds: Builds, pipe: Any) -> None:
    builds.clear()
    assert model._kept.nbytes == 0  # the parent's buffers are not for a child to release
    try:
        values = [model.decision_function(X, device) for _ in range(2)]
        pipe.send((values, list(builds)))
    except clsvm.DeviceError as error:
        pipe.send(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_lays_out_its_own(device: str, builds: Builds) -> None:
    model, X = make_model(), sparse_rows(70, 30, 1, "dense")
    values = model.decision_function(X, device)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_in_child, args=(model, X, device, builds, there))
    child.start()
    there.close()
    assert here.poll(60)
    answer = here.recv()
    child.join(60)
    assert child.exitcode == 0
    if isinstance(answer, str):
        assert "fork" in answer
    else:
        np.testing.assert_array_equal(answer[0], [values, values])
        assert answer[1] == [300, 70, 70]
    builds.clear()
    np.testing.assert_array_equal(model.decision_function(X, device), values)
    assert builds == [70]


def test_given_back_with_the_model(device: str) -> None:
    model = make_model()
    model.decision_function(sparse_rows(5, 30, 1, "dense"), device)
    kept = weakref.ref(model._kept), weakref.ref(model._kept._state[1])
    assert kept[0]() in memory.keeping
    del model
    gc.collect()
    assert kept[0]() is None
    assert kept[1]() is None


def test_given_back_when_asked(device: str, builds: Builds) -> None:
    model, X = make_model(), sparse_rows(70, 30, 1, "dense")
    values = model.decision_function(X, device)
    nbytes = model._kept.nbytes
    assert clsvm.release_memory() >= nbytes > 300 * 30 * 4
    assert model._kept.nbytes == 0 == clsvm.release_memory()
    builds.clear()
    np.testing.assert_array_equal(model.decision_function(X, device), values)
    assert builds == [300, 70]
    assert model._kept.nbytes == nbytes


def test_given_back_when_another_needs_the_memory(device: str) -> None:
    model, other, X = make_model(), make_model(m=200), sparse_rows(5, 30, 1, "dense")
    values = model.decision_function(X, device)
    nbytes = model._kept.nbytes
    with Stream(device, 10 * nbytes) as stream:
        stream.buffer(8 * nbytes)
        assert model._kept.nbytes == nbytes  # there is room for both
        stream.buffer(2 * nbytes)
        assert model._kept.nbytes == 0
    np.testing.assert_array_equal(model.decision_function(X, device), values)
    other.decision_function(X, device, 8 * nbytes)
    assert model._kept.nbytes
    assert other._kept.nbytes
    Z, y = noisy(400, 10)
    SVC(device=device, memory_limit="120kB").fit(Z, y)
    assert model._kept.nbytes == other._kept.nbytes == 0
    model.decision_function(X, device, 10 * nbytes)
    with Stream(device, 10 * nbytes) as stream:
        assert model._kept.get(stream)
        stream.buffer(9 * nbytes - 64)
        assert model._kept.nbytes == nbytes  # not to the call that reads it
        with pytest.raises(ValueError, match=f"{10 * nbytes - 64} are in use"):
            stream.buffer(128)


def test_kernel_objects_belong_to_a_thread(device: str) -> None:
    """Their arguments are theirs, so another thread's would do its work."""
    made: list[Any] = []

    def work() -> None:
        with Stream(device) as stream:
            text = "kernel void nothing(global float *x) {}"
            made.extend(stream.kernel(text, (), "nothing")._kernel for _ in range(2))

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    here, again, there, there_again = made
    assert here is again
    assert there is there_again
    assert here is not there


def test_another_setting_lays_out_anew(device: str, monkeypatch: pytest.MonkeyPatch, builds: Builds) -> None:
    model, X = make_model(), sparse_rows(70, 30, 1, "dense")
    values = model.decision_function(X, device)
    for limit in "100MB", None, 10**8:
        builds.clear()
        np.testing.assert_array_equal(model.decision_function(X, device, limit), values)
        assert builds == [300, 70]
    monkeypatch.setenv("CLSVM_PROFILE", "gpu")
    builds.clear()
    np.testing.assert_allclose(model.decision_function(X, device, 10**8), values, atol=1e-9)
    assert builds == [300, 70]


def test_the_estimator_s_attributes_are_copies_of_no_consequence(device: str) -> None:
    X, y = noisy(200, 6)
    estimator = SVC(device=device).fit(X, y)
    values = estimator.decision_function(X)
    with pytest.raises(ValueError, match="read-only"):
        estimator.support_vectors_[0] = 0  # the device would not see it
    estimator.dual_coef_ = np.zeros_like(estimator.dual_coef_)
    estimator.support_vectors_ = np.zeros_like(estimator.support_vectors_)
    np.testing.assert_array_equal(estimator.decision_function(X), values)
    estimator.model_.intercept[0] += 1  # of the host, as it stands
    np.testing.assert_allclose(estimator.decision_function(X), values + 1, atol=1e-12)
    estimator.fit(X, -y)
    np.testing.assert_allclose(estimator.decision_function(X), -values, atol=5e-3)
    assert estimator.fit(X, y).support_vectors_.flags.writeable


@pytest.mark.parametrize(("problems", "k"), [(1, 2), (2, 2), (3, 3), (10, 10)])
@pytest.mark.parametrize("kind", ["clustered", "csr"])
def test_decision_values_of_several_problems(device: str, kind: str, problems: int, k: int) -> None:
    model, X = make_model(kind, problems=problems, k=k), sparse_rows(33, 30, 1, kind)
    expected = on_host(model, X)
    for _ in range(2):
        values = model.decision_function(X, device)
        assert values.dtype == np.float64
        assert values.flags.c_contiguous
        np.testing.assert_allclose(values, expected[:, 0] if problems == 1 else expected, atol=2e-4)
    best = expected[:, 0] > 0 if problems == 1 else expected.argmax(axis=1)
    np.testing.assert_array_equal(model.predict(X, device), model.classes[best.astype(int)])


def test_no_rows_and_no_support_vectors(device: str) -> None:
    model = make_model(problems=3, k=3)
    assert model.decision_function(np.zeros((0, 30)), device).shape == (0, 3)
    assert make_model().decision_function(np.zeros((0, 30)), device).shape == (0,)
    empty = make_model(m=0)
    np.testing.assert_array_equal(empty.decision_function(np.zeros((4, 30)), device), np.repeat(empty.intercept, 4))


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_element_wise_kernels_and_float64(device: str, kind: str) -> None:
    """Their sums over CSR rows start from numbers of the layout's own; and float64 is as float32, only finer."""
    laplacian = Kernel.elementwise("abs(x - y)", "exp(-gamma * s)", gamma=0.1)
    for kernel, dtype, error in (laplacian, "float32", 2e-4), (kernels.make("rbf", gamma=0.1), "float64", 1e-11):
        model = replace(make_model(kind), kernel=kernel, dtype=dtype)
        if dtype == "float64" and not devices.find(device).fp64:
            continue
        X = sparse_rows(20, 30, 1, kind)
        first = model.decision_function(X, device)
        np.testing.assert_array_equal(model.decision_function(X, device), first)
        np.testing.assert_array_equal(model.decision_function(X, device, "150kB"), first)
        np.testing.assert_allclose(first, on_host(model, X)[:, 0], atol=error)


@pytest.mark.parametrize("share", [0.9, 0.4])
@pytest.mark.parametrize("kind", ["csr", "hybrid", "inverted", "dense"])
def test_half_of_k_among_rows_and_support_vectors(
    device: str, profile: str, kind: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same to rounding where most rows are support vectors; not where few are, where many rows would be computed
    for nothing, or where they take too much memory."""
    monkeypatch.setattr(exact, "HOST", 0)
    rng, kernel = np.random.default_rng(8), kernels.make("rbf", gamma=0.1)
    X = sp.csr_matrix(rng.normal(size=(400, 60)) * (rng.random((400, 60)) < np.r_[np.full(5, 0.8), np.full(55, 0.05)]))
    partition = Partition(np.arange(60, dtype=np.int32), 5 if layouts.LAYOUTS[kind].splits else 0)
    plan = layouts.Plan(kind, np.zeros(60), "", partition if kind != "dense" else None)
    rows, support = np.flatnonzero(rng.random(400) < 0.95), np.flatnonzero(rng.random(400) < share)
    b = rng.normal(size=(3, len(support)))
    with Stream(device) as stream:
        if stream.profile.lacks("float64") or stream.profile.wide == "pair":
            pytest.skip("the device has no doubles")
        expected = exact.responses(stream, kernel, plan, X[rows], X[support], b)
        found = exact.by_half(stream, kernel, plan, X, rows, support, b)
        held = stream.held
        assert exact.by_half(stream, kernel, plan, X, rows[:200], support, b) is None
        stream.limit = held + 400
        assert exact.by_half(stream, kernel, plan, X, rows, support, b) is None
        assert stream.held == held
    assert (found is None) == (share < exact.HALVED)
    if found is not None:
        assert not np.array_equal(found, expected)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
