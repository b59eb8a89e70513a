"""Machines of several classes over several devices: pieces from a queue, the same bits by any of them, one report. And
large members on a device with memory of its own: what they share goes there once."""

import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, make_blobs, make_classification

from clsvm import SVC, NuSVC
from clsvm.distribute import run_pieces
from clsvm.fit import driver, host, prepare
from clsvm.fit.run import FitContext
from clsvm.gram import exact
from clsvm.gram.layouts.lanes import DeviceRows
from clsvm.opencl.stream import Stream
from clsvm.solvers import batch
from clsvm.threads import check_interrupt
from tests.conftest import calls_of, halves

X, Y = load_digits(return_X_y=True)
X = (X[:700] / 16).astype(np.float32)
Y = Y[:700]
SAME = "status", "converged", "steps", "violation", "device", "dtype", "selection", "exact_rows", "rows_computed"


def fitted(device: Any, machine: Any = SVC, rows: Any = X, **given: Any) -> Any:
    return machine(**{"device": device, "gamma": 0.1} | given).fit(rows, Y)


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.dual_coef_, other.dual_coef_)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("clsvm")]


@pytest.mark.parametrize(
    ("machine", "given"),
    [(SVC, {"C": 10}), (SVC, {"multi_class": "ovr"}), (NuSVC, {"nu": 0.1}), (SVC, {"tol": 1e-9, "kernel": "linear"})],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_the_same_bits_by_any_devices(device: str, machine: Any, given: dict[str, Any], sparse: bool) -> None:
    rows = sp.csr_matrix(X) if sparse else X
    alone, two, three = (fitted(where, machine, rows, **given) for where in (device, [device] * 2, [device] * 3))
    same(two, alone)
    same(three, alone)
    one, report = alone.fit_report_, two.fit_report_
    for name in SAME:
        assert getattr(report, name) == getattr(one, name), name
    assert report.rows_computed > 0
    assert report.dual == pytest.approx(one.dual, rel=1e-12)


def test_more_members_than_the_host_takes(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them count for that, not those of a piece."""
    monkeypatch.setattr(host, "SEVERAL", 20)
    same(fitted([device] * 2, C=10), fitted(device, C=10))


@pytest.mark.parametrize("way", ["ovo", "ovr"])
def test_members_by_decomposition(device: str, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Those that no device takes whole: of all rows a part for each device, others one after another. They find what
    those before them computed of K, and checked: sums are made in another order."""
    monkeypatch.setattr(batch, "max_rows", lambda stream: 100)
    calls = calls_of(monkeypatch, driver, "_solve_same_rows")
    one, two = fitted(device, multi_class=way), fitted([device] * 2, multi_class=way)
    np.testing.assert_allclose(two.dual_coef_, one.dual_coef_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(two.intercept_, one.intercept_, rtol=1e-9)
    asked = [len(places) for (*_, places, _), *_ in calls]
    assert sorted(asked) == ([5, 5, 10] if way == "ovr" else [1] * 90)
    words = f"{len(one.intercept_)} by decomposition"
    assert words in one.fit_report_.selection
    assert words in two.fit_report_.selection
    assert two.fit_report_.outer_steps == one.fit_report_.outer_steps > 0


def test_the_report_adds_up(device: str) -> None:
    """Parts are a mean of the devices, so they and the rest are the whole; a budget holds on each."""
    limit = 3_000_000
    report = fitted([device] * 2, memory_limit=limit).fit_report_
    seconds = dict(report.seconds)
    total = seconds.pop("total")
    assert sum(seconds.values()) == pytest.approx(total)
    assert min(seconds.values()) > -1e-3
    assert 0 < report.bytes_held <= limit
    assert report.layout.count("float32") == 1
    for where in (device, [device] * 2):
        late = fitted(where, max_time=1e-9).fit_report_
        assert not late.converged
        assert late.violation == np.inf
        assert late.gap > 0.01
        assert "max_time was over" in late.status


def test_rows_are_laid_out_once_on_each(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    laid = calls_of(monkeypatch, driver.prepare, "products")
    fitted([device] * 2)
    count = sum(call.given[4] == "float32" for call in laid)
    assert 1 <= count <= 2  # (one device may be done before the other begins)


def test_lists_of_one_and_parts_of_a_device(device: str) -> None:
    alone = fitted(device)
    same(fitted([device]), alone)
    same(fitted((device,), multi_class="ovr"), fitted(device, multi_class="ovr"))
    one, listed, named = (
        SVC(device=where, gamma=0.1).fit(X, Y > 4) for where in (device, [device], f"{device}, {device}")
    )
    same(one, listed)
    assert named.fit_report_.layout.startswith("2 shards of 350 to 350 rows")  # (as the commands name several)
    np.testing.assert_array_equal(named.predict(X), one.predict(X))
    if not (parts := halves(device)):
        pytest.skip("a device without parts")
    same(fitted(parts), alone)


def test_progress_is_one_device_s(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    fitted([device] * 2, verbose=True)
    said = capfd.readouterr().err.splitlines()
    assert [line.startswith("clsvm: violation") for line in said] == [True]


@pytest.mark.parametrize("way", ["ovo", "ovr"])
def test_ctrl_c_ends_all_soon(device: str, way: str) -> None:
    """Fits that would take minutes end where a device next answers, or the host next looks."""
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(6000, 8)), random.integers(0, 3, size=6000)
    machine = SVC(device=[device] * 2, C=1e5, tol=1e-9, gamma=0.05, max_time=120, multi_class=way)
    threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        machine.fit(rows, labels)
    assert time.perf_counter() - began < 30
    assert not hasattr(machine, "model_")


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
def test_ctrl_c_that_another_thread_gets() -> None:
    """The system may hand a signal to any thread: the caller's, which waits for a worker, looks by itself."""

    def work(worker: str, pieces: Iterator[int]) -> Any:
        end = time.perf_counter() + 20
        while time.perf_counter() < end:
            check_interrupt()
            time.sleep(0.001)
        finished.append(worker)
        yield

    finished: list[str] = []
    threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        list(run_pieces(["one", "two"], range(3), work))
    assert not finished


def test_an_error_ends_all(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, ended = threading.Event(), list[str]()

    def broken(*given: Any) -> Any:
        if first.is_set():
            raise OSError("the second device broke")
        first.set()
        try:
            while True:
                check_interrupt()
                time.sleep(0.001)
        except KeyboardInterrupt:
            check_interrupt()  # (what tidies up is left alone)
            ended.append("the first one")
            raise

    monkeypatch.setattr(batch, "solve", broken)
    with pytest.raises(OSError, match="the second device broke"):
        fitted([device] * 2)
    assert ended == ["the first one"]


def test_pieces_keep_devices_at_work() -> None:
    """Some pieces for each device, none of fewer members than it takes at a time while there are enough of these."""
    sizes = 5, 9, 7, 3, 8, 2, 6, 4
    assert driver._small_pieces(sizes, [*range(8)], 1, 4) == [[1, 4, 2, 6, 0, 7, 3, 5]]
    assert driver._small_pieces(sizes, [*range(8)], 2, 1) == [[1], [4], [2], [6], [0], [7], [3], [5]]
    assert driver._small_pieces(sizes, [*range(8)], 2, 3) == [[1, 4, 2], [6, 0, 7], [3, 5]]
    assert driver._small_pieces(sizes, [*range(8)], 2, 300) == [[1, 4, 2, 6], [0, 7, 3, 5]]
    assert driver._small_pieces(sizes, [3], 2, 300) == [[3]]


def test_one_worker_works_in_the_caller_s_thread() -> None:
    def work(worker: str, pieces: Iterator[int]) -> Any:
        for _ in pieces:
            seen.append(threading.current_thread())
            check_interrupt()
            yield

    seen: list[threading.Thread] = []
    assert len(list(run_pieces(["one"], range(3), work))) == 3
    assert set(seen) == {threading.current_thread()}


def test_who_is_faster_does_more() -> None:
    """And all pieces are done once."""
    slow, done = threading.Event(), list[tuple[str, int]]()

    def work(worker: str, pieces: Iterator[int]) -> Generator[None]:
        for piece in pieces:
            if worker == "slow":
                slow.wait(10)
            done.append((worker, piece))
            yield
            if len(done) == 19:
                slow.set()

    assert len(list(run_pieces(["slow", "fast"], range(20), work))) == 20
    assert sorted(piece for _, piece in done) == list(range(20))
    assert sum(worker == "fast" for worker, _ in done) >= 18


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that does not share the host's memory, and members of which none is small."""
    before = Stream.__init__

    def begun(self: Stream, *given: Any, **named: Any) -> None:
        before(self, *given, **named)
        self.unified = False

    monkeypatch.setattr(Stream, "__init__", begun)
    monkeypatch.setattr(host, "MOST", 20)
    monkeypatch.setattr(batch, "max_rows", lambda stream: 0)
    monkeypatch.setattr(exact, "HOST", 0)


def fitted_from_the_host(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], X: Any, y: Any) -> Any:
    with monkeypatch.context() as alone:
        alone.setattr(prepare, "SHARED", 0.0)
        return SVC(**asked).fit(X, y)


def alike(found: Any, expected: Any, X: Any) -> None:
    assert found.fit_report_.converged
    assert found.fit_report_.dual == pytest.approx(expected.fit_report_.dual, rel=1e-6)
    np.testing.assert_allclose(found.decision_function(X), expected.decision_function(X), atol=2e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", ["rbf", "linear", "laplacian"])
def test_pairs_are_laid_out_from_rows_on_the_device(
    device: str, kernel: str, dtype: Any, apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host copies no member's rows, and the machine is the same."""
    X, y = make_blobs(500, 6, centers=4, cluster_std=4.0, random_state=0)
    X, asked = X.astype(dtype), {"kernel": kernel, "tol": 1e-5, "device": device}
    expected = fitted_from_the_host(monkeypatch, asked, X, y)

    def none(*_: Any, **__: Any) -> None:
        raise AssertionError("all rows of a member came to the host")

    monkeypatch.setattr(FitContext, "rows", none)
    if kernel != "laplacian":  # (whose rows' sizes are sums that the host makes)
        monkeypatch.setattr(DeviceRows, "__array__", none)
    found = SVC(**asked).fit(X, y)
    alike(found, expected, X)
    assert found.fit_report_.layout.startswith("dense")


@pytest.mark.parametrize(
    ("kernel", "form"), [("rbf", np.asarray), ("linear", sp.csr_matrix), ("laplacian", np.asarray)]
)
def test_a_fit_goes_on_from_rows_on_the_device(
    device: str, kernel: str, form: Any, apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate in float64 too, of rows and support vectors that are laid out from there."""
    X, y = make_classification(900, 70, flip_y=0.2, random_state=0)
    X = form(X)
    asked = {"kernel": kernel, "C": 0.1, "tol": 1e-4, "device": device}
    expected = fitted_from_the_host(monkeypatch, asked, X, y)
    whole: list[int] = []
    monkeypatch.setattr(DeviceRows, "__array__", lambda self, *_, **__: whole.append(len(self)) or self.X[self.numbers])
    found = SVC(**asked).fit(X, y)
    alike(found, expected, X)
    assert found.fit_report_.exact_rows
    assert not whole or kernel == "laplacian"  # (whose rows' sizes are sums that the host makes)


def test_little_memory_holds_no_copy(device: str, apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fit had within memory_limit it has still: a copy of X is kept where there is room beside everything."""
    X, y = make_blobs(3000, 4, centers=2, cluster_std=4.0, random_state=0)
    made = calls_of(monkeypatch, DeviceRows, "__init__")
    for limit in (290_000, 315_000, 600_000):
        assert SVC(device=device, memory_limit=limit).fit(X.astype(np.float32), y).fit_report_.converged
    assert not made
    report = SVC(device=device, memory_limit=20_000_000).fit(X, y).fit_report_
    assert made
    assert report.bytes_held <= 20_000_000
