"""Decision values of finished models: what stays on the device between calls, and that no value depends on it, on the
memory or on the batch; few rows, with nothing made anew."""

import copy
import gc
import os
import pickle
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import clsvm
from clsvm import SVC, kernels
from clsvm.gram import exact, layouts, responses
from clsvm.gram.partition import Partition
from clsvm.gram.responses import MAX_BATCH, Support
from clsvm.models.model import KernelModel
from clsvm.opencl import memory
from clsvm.opencl.contexts import Kernel, thread_dict
from clsvm.opencl.stream import Stream
from tests.conftest import calls_of, noisy

KINDS = ("dense", "clustered", "csr", "hybrid", "inverted")
Builds = list[int]


def sparse_rows(n: int, d: int, seed: int, kind: str = "dense") -> Any:
    """Rows with two thirds of their entries zero but none in column 0, as the layout takes them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 1 / 3)
    X[:, 0] += 100
    return sp.csr_matrix(X) if kind == "csr" else X


def planned(kind: str, d: int, centre: float = 0.0) -> layouts.Plan:
    partition = Partition(np.random.default_rng(3).permutation(d).astype(np.int32), d // 3)
    splits = layouts.LAYOUTS[kind].splits
    return layouts.Plan(kind, np.where(np.arange(d) == 0, centre, 0.0), "", partition if splits else None)


def make_model(kind: str = "dense", m: int = 300, d: int = 30, problems: int = 1, k: int = 2) -> KernelModel:
    """A model of some problems; of pairs of k > 2 classes where these are k - 1."""
    rng = np.random.default_rng(5)
    return KernelModel(
        kernel=kernels.make("rbf", gamma=2 / d),
        support_vectors=sparse_rows(m, d, 6, kind),
        dual_coef=rng.normal(size=(problems, m)),
        intercept=rng.normal(size=k * (k - 1) // 2 if problems == k - 1 else problems),
        classes=np.arange(10, 10 + k),
        n_support=np.bincount(np.arange(m) % k, minlength=k).astype(np.int32),
        plan=planned(kind, d, 100.0),
    )


def on_host(model: KernelModel, X: Any) -> np.ndarray:
    X, Y = (A.toarray() if sp.issparse(A) else A for A in (X, model.support_vectors))
    return model.kernel(X, Y) @ model.dual_coef.T + model.intercept


def few_are_quick(device: str) -> bool:
    """Whether few rows have a predictor of their own there."""
    with Stream(device) as stream:
        return stream.profile.wide == "double" and not stream.simulated


@pytest.fixture
def quick(device: str) -> None:
    if not few_are_quick(device):
        pytest.skip("few rows go the way of many here")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    """How many rows each call of layouts.build has laid out since."""
    seen: Builds = []
    build = layouts.build
    monkeypatch.setattr(layouts, "build", lambda stream, X, *rest: seen.append(X.shape[0]) or build(stream, X, *rest))
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
            support = Support(stream, kernel, plan, vectors, "float32", (), keep=True)
            assert bool(support.buffers) == (limit is None)
            found.append(support.responses(stream, X, coefficients))
            assert stream.peak <= stream.limit
    assert_array_equal(*found)


@pytest.mark.parametrize("kind", KINDS)
def test_later_calls_lay_out_their_rows_alone(device: str, profile: str, kind: str, builds: Builds) -> None:
    model, X = make_model(kind), sparse_rows(70, 30, 1, kind)
    first = model.decision_function(X, device)
    assert builds == [300, 70]
    builds.clear()
    assert_array_equal(model.decision_function(X, device), first)
    for i in 0, 37, 69:  # whatever the batch
        assert_array_equal(model.decision_function(X[i : i + 1], device), first[i : i + 1])
    assert builds == ([70] if kind in ("dense", "clustered") and few_are_quick(device) else [70, 1, 1, 1])
    assert_allclose(first, on_host(model, X)[:, 0], atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_float64_model_on_every_device(device: str, profile: str, kind: str) -> None:
    """Also one without double precision, where the host computes its values; in little memory, too."""
    model = replace(make_model(kind), dtype="float64")
    X = sparse_rows(70, 30, 1, kind)
    for limit in (None, None, "150kB"):
        values = model.decision_function(X, device, limit)
        assert_allclose(values, on_host(model, X)[:, 0], rtol=1e-10, atol=1e-12)


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
            assert_array_equal(model.decision_function(X, device, limit), whole)
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
    problems=st.integers(1, 4),
    element=st.booleans(),
)
@example(kind="csr", m=70, cuts=[2], limit=10**5, problems=1, element=True)
@example(kind="clustered", m=200, cuts=[2], limit=None, problems=10, element=False)
def test_no_batch_and_no_memory_changes_a_bit(
    device: str, kind: str, m: int, cuts: list[int], limit: int | None, problems: int, element: bool
) -> None:
    """Of element-wise sums, too, which start from numbers of the layout's own over CSR rows."""
    model, X = make_model(kind, m, 20, problems, max(2, problems)), sparse_rows(40, 20, 1, kind)
    if element and kind in ("dense", "csr", "hybrid"):
        model = replace(model, kernel=kernels.make("laplacian", gamma=0.1))
    whole, expected = model.decision_function(X, device), on_host(model, X)
    assert whole.dtype == np.float64
    assert whole.flags.c_contiguous
    close = 5e-4 if model.kernel.name == "laplacian" else 2e-4
    assert_allclose(whole, expected[:, 0] if problems == 1 else expected, atol=close)
    best = expected[:, 0] > 0 if problems == 1 else expected.argmax(axis=1)
    assert_array_equal(model.predict(X, device), model.classes[best.astype(int)])
    pieces = [model.decision_function(X[a:b], device, limit) for a, b in pairwise([0, *sorted(cuts), 40])]
    assert_array_equal(np.concatenate(pieces), whole)


def test_threads_share_what_is_kept(device: str, builds: Builds) -> None:
    model, X = make_model("clustered"), sparse_rows(70, 30, 1)
    expected = make_model("clustered").decision_function(X, device)
    start = threading.Barrier(4)

    def work(_: int) -> list[np.ndarray]:
        start.wait(60)
        return [model.decision_function(X, device) for _ in range(20)]

    for _ in range(2):  # at first all find nothing laid out
        builds.clear()
        with ThreadPoolExecutor(4) as threads:
            got = [values for some in threads.map(work, range(4)) for values in some]
        assert len(got) == 80
        for values in got:
            assert_array_equal(values, expected)
    assert set(builds) == {70}


def test_copies_begin_anew(device: str, builds: Builds) -> None:
    """Nothing of the device is in a pickle: it is the same before and after use."""
    model, X = make_model(), sparse_rows(70, 30, 1)
    before = pickle.dumps(model)
    values = model.decision_function(X, device)
    assert pickle.dumps(model) == before
    for other in pickle.loads(before), copy.deepcopy(model), replace(model):
        builds.clear()
        assert_array_equal(other.decision_function(X, device), values)
        assert builds == [300, 70]
        assert other._kept.nbytes == model._kept.nbytes > 0
    assert replace(model, dual_coef=-model.dual_coef).decision_function(X, device)[0] != values[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_lays_out_its_own(device: str, builds: Builds) -> None:
    """The parent's buffers are not for a child to release. A runtime that does not work after a fork says so."""
    model, X = make_model(), sparse_rows(70, 30, 1)
    values = model.decision_function(X, device)
    builds.clear()
    process = os.fork()
    if not process:
        signal.alarm(60)
        wrong = True
        try:
            assert model._kept.nbytes == 0
            assert all(np.array_equal(model.decision_function(X, device), values) for _ in range(2))
            wrong = builds != [300, 70, 70]
        except clsvm.DeviceError as error:
            wrong = "fork" not in str(error)
        finally:
            os._exit(int(wrong))
    assert os.waitpid(process, 0)[1] == 0
    assert_array_equal(model.decision_function(X, device), values)
    assert builds == [70]


def test_given_back_with_the_model_and_when_asked(device: str, builds: Builds) -> None:
    model, X = make_model(), sparse_rows(70, 30, 1)
    values = model.decision_function(X, device)
    nbytes = model._kept.nbytes
    assert clsvm.release_memory() >= nbytes > 300 * 30 * 4
    assert model._kept.nbytes == 0 == clsvm.release_memory()
    builds.clear()
    assert_array_equal(model.decision_function(X, device), values)
    assert builds == [300, 70]
    assert model._kept.nbytes == nbytes
    kept = weakref.ref(model._kept), weakref.ref(model._kept._state[1])
    assert kept[0]() in memory.live_caches
    del model
    gc.collect()
    assert [one() for one in kept] == [None, None]


def test_given_back_when_another_needs_the_memory(device: str) -> None:
    model, other, X = make_model(), make_model(m=200), sparse_rows(5, 30, 1)
    values = model.decision_function(X, device)
    nbytes = model._kept.nbytes
    with Stream(device, 10 * nbytes) as stream:
        stream.buffer(8 * nbytes)
        assert model._kept.nbytes == nbytes  # there is room for both
        stream.buffer(2 * nbytes)
        assert model._kept.nbytes == 0
    assert_array_equal(model.decision_function(X, device), values)
    other.decision_function(X, device, 8 * nbytes)
    assert model._kept.nbytes
    assert other._kept.nbytes
    model.decision_function(X, device, 10 * nbytes)
    with Stream(device, 10 * nbytes) as stream:
        assert model._kept.get(stream)
        stream.buffer(9 * nbytes - 64)
        assert model._kept.nbytes == nbytes  # not to the call that reads it
        with pytest.raises(ValueError, match=f"{10 * nbytes - 64} are in use"):
            stream.buffer(128)


def test_support_vectors_on_a_device_are_read_only(device: str) -> None:
    X, y = noisy(200, 6)
    estimator = SVC(device=device).fit(X, y)
    estimator.decision_function(X)
    with pytest.raises(ValueError, match="read-only"):
        estimator.support_vectors_[0] = 0  # the device would not see it
    assert estimator.fit(X, y).support_vectors_.flags.writeable


def test_no_rows_and_no_support_vectors(device: str) -> None:
    for model, shape in ((make_model(problems=3, k=3), (0, 3)), (make_model(), (0,))):
        assert model.decision_function(np.zeros((0, 30)), device).shape == shape
    empty = make_model(m=0)
    assert_array_equal(empty.decision_function(np.zeros((4, 30)), device), np.repeat(empty.intercept, 4))


@pytest.mark.parametrize("share", [0.9, 0.4])
@pytest.mark.parametrize("kind", ["csr", "hybrid", "inverted", "dense"])
def test_half_of_k_among_rows_and_support_vectors(
    profile: str, kind: str, share: float, monkeypatch: pytest.MonkeyPatch, stream: Stream
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
    if stream.profile.lacks("float64"):
        pytest.skip("the device has no doubles")
    expected = exact.responses(stream, kernel, plan, X[rows], X[support], b)
    found = exact.symmetric_sums(stream, kernel, plan, X, rows, support, b)
    held = stream.allocated
    assert exact.symmetric_sums(stream, kernel, plan, X, rows[:200], support, b) is None
    stream.limit = held + 400
    assert exact.symmetric_sums(stream, kernel, plan, X, rows, support, b) is None
    assert stream.allocated == held
    assert (found is None) == (share < exact.SUPPORT_SHARE)
    if found is not None:
        assert not np.array_equal(found, expected)
        assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["csr", "dense"])
def test_ranges_of_support_vectors_for_idle_units(profile: str, kind: str, stream: Stream) -> None:
    rng, kernel, plan = np.random.default_rng(8), kernels.make("rbf", gamma=0.1), layouts.Plan(kind, np.zeros(60), "")
    X, b = sp.csr_matrix(rng.normal(size=(2200, 60)) * (rng.random((2200, 60)) < 0.3)), rng.normal(size=(3, 2100))
    found = []
    for stream.compute_units in (1, 64):
        found.append(exact.responses(stream, kernel, plan, X[:100], X[100:], b))
        assert_allclose(found[-1], b @ kernel(X[100:], X[:100]), rtol=1e-12, atol=1e-12)
    assert np.array_equal(*found) == (profile.startswith("cpu") or profile == "gpu-pair" or kind == "csr")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["dense", "clustered"])
@pytest.mark.parametrize(("k", "problems"), [(2, 1), (5, 4), (3, 3)])
def test_few_rows_have_the_bits_of_many(
    device: str, profile: str, quick: None, dtype: str, kind: str, k: int, problems: int
) -> None:
    """Whatever rows came before."""
    model = replace(make_model(kind, d=21, k=k, problems=problems), dtype=dtype)
    for form in (np.asarray, np.float32, sp.csr_matrix):
        X = form(sparse_rows(MAX_BATCH + 40, 21, 2))
        whole = model.decision_function(X, device)
        for rows in (slice(0, MAX_BATCH), slice(5, 22), slice(30, 31), slice(90, 91), slice(40, 48)):
            assert_array_equal(model.decision_function(X[rows], device), whole[rows])


@pytest.mark.parametrize("k", [6, 20])
@pytest.mark.parametrize("most", [64, 192, 300, 520])
def test_the_bits_of_several_panels(
    device: str, profile: str, most: int, k: int, monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    """Groups share a panel, or are cut by its end: for few rows and for many, by a launch each or by one for all."""
    model, X = make_model(m=700, d=21, k=k, problems=k - 1), sparse_rows(MAX_BATCH + 9, 21, 2)
    whole = model.decision_function(X, device)
    monkeypatch.setattr(responses, "PANEL", most * 21 * 4)
    cut = make_model(m=700, d=21, k=k, problems=k - 1)
    assert_array_equal(cut.decision_function(X, device), whole)
    assert_array_equal(cut.decision_function(X[:3], device), whole[:3])
    pieces = cut._kept.get(stream).pieces
    assert len(pieces) > 1
    assert len({piece.group for some in pieces for piece in some}) == k
    assert sum(piece.size for some in pieces for piece in some) == 700


def test_few_rows_take_one_launch_for_all_groups(device: str, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    held = calls_of(monkeypatch, Kernel, "prepared")
    make_model(m=700, k=6, problems=5).decision_function(sparse_rows(1, 30, 2), device)
    assert len(held) == 3  # the row, its norm, the sums


@pytest.mark.parametrize("limit", [None, "100kB"])
def test_later_calls_of_few_rows_make_no_buffer(
    device: str, quick: None, limit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A predictor takes a small share of the memory. Coefficients are those of the call."""
    model, X, buffers = make_model(m=20), sparse_rows(9, 30, 2), calls_of(monkeypatch, Stream, "buffer")
    first = model.decision_function(X, device, limit)
    assert buffers
    buffers.clear()
    assert_array_equal(model.decision_function(X[:4], device, limit), first[:4])
    assert bool(buffers) == (limit is not None)
    model.dual_coef[:] *= 2
    twice = model.decision_function(X, device, limit) - model.intercept
    assert_allclose(twice, 2 * (first - model.intercept), rtol=1e-12)


def test_a_row_that_is_too_large_is_refused_and_leaves_nothing(device: str, quick: None) -> None:
    model, X = replace(make_model(), dtype="float64"), sparse_rows(6, 30, 2)
    expected, large = model.decision_function(X, device), X.copy()
    large[4, 3] = 1e200
    with pytest.raises(ValueError, match="squared norm of a row is too large for float64"):
        model.decision_function(large, device)
    large[4, 3] = np.nan
    with pytest.raises(ValueError, match="X must have no missing or infinite values"):
        model.decision_function(large, device)
    for n in (1, 6):
        assert_array_equal(model.decision_function(X[:n], device), expected[:n])


def test_few_predictors_of_a_thread(device: str, quick: None) -> None:
    models, X = [make_model() for _ in range(responses.PREDICTORS + 1)], sparse_rows(2, 30, 2)
    values = [model.decision_function(X, device) for model in models]
    with Stream(device) as stream:
        assert len(thread_dict("small batches")[stream.queue, 1, 1]) <= responses.PREDICTORS
    for model, expected in zip(models, values, strict=True):
        assert_array_equal(model.decision_function(X, device), expected)


def test_nothing_is_built_while_a_call_holds_its_stream(
    device: str, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork waits for the builder first."""
    model, X, build, held = make_model(d=23), sparse_rows(MAX_BATCH, 23, 2), Stream.kernel, list[bool]()
    monkeypatch.setattr(
        Stream, "kernel", lambda self, *given: held.append(self.lock._is_owned()) or build(self, *given)
    )
    model.decision_function(X[:2], device)
    model.decision_function(X, device)  # (another number of lane groups)
    assert held
    assert not any(held)
