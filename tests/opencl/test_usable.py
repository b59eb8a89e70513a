"""Whether fits work on a device: the fit itself, and the process of its own that a broken runtime may end."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clsvm import small_fit as program
from clsvm.errors import BuildError, DeviceError
from clsvm.opencl import devices, runtime

Written = Callable[[str], None]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """Return a function that writes the trial's program; nothing is remembered of earlier trials."""

    def write(text: str) -> None:
        (tmp_path / "a_trial.py").write_text(text)
        devices._info.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(devices, "PROGRAM", "a_trial")
    monkeypatch.setattr(runtime, "folders", lambda: iter([tmp_path]))
    yield write
    devices._info.cache_clear()


def test_a_fit_is_right(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = devices.find(device).index
    known = devices.identity(devices.visible(os.getpid())[index])
    assert program.main(index, known) == devices.PASSED
    assert program.main(index, ["another", *known[1:]]) == program.main(99, known) == ""
    scores = program.SVC.decision_function
    monkeypatch.setattr(program.SVC, "decision_function", lambda self, X: scores(self, X) + 0.1)
    assert program.main(index, known) == "failed: a small fit had wrong decision values"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BuildError("card", "unknown target", ""), "building for card failed: unknown target --- source ---"),
        (RuntimeError("clEnqueue failed: INVALID\nmore"), "clEnqueue failed: INVALID more"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_fit_that_fails_says_its_cause(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    def fails(*given: Any, **named: Any) -> np.ndarray:
        raise error

    monkeypatch.setattr(program.SVC, "fit", fails)
    known = devices.identity(devices.visible(os.getpid())[0])
    assert program.main(0, known) == f"failed: a small fit failed: {words}"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os; os.abort()", "a small fit ended its process with SIGABRT"),
        ("import os, sys; print('LLVM ERROR', file=sys.stderr, flush=True); os.kill(os.getpid(), 11)",
         "a small fit ended its process with SIGSEGV (LLVM ERROR)"),
        ("import os; print('chatter\\nfailed: no luck', flush=True); os.abort()", "no luck"),
    ],
)  # fmt: skip
def test_a_runtime_that_ends_the_process_is_not_usable(device: str, written: Written, text: str, words: str) -> None:
    written(text)
    info = devices.devices()[int(device)]
    assert (info.usable, info.reason) == (False, words)
    assert devices.find(int(device)).usable  # (the one that is named is taken as it is)
    written("print('passed')")  # a failure is not remembered
    assert devices.devices()[int(device)].usable


@pytest.mark.skipif(len(devices.devices()) < 2, reason="takes a choice of devices")
def test_a_choice_of_devices_is_among_usable_ones(written: Written, tmp_path: Path) -> None:
    written("import sys; print('failed: no luck' if sys.argv[1] == '0' else 'passed')")
    assert devices.find("cpu").index > 0
    for mark in tmp_path.glob("fits-*"):
        mark.unlink()
    written("print('failed: no luck')")
    with pytest.raises(DeviceError, match=r"^no luck; no OpenCL device that 'cpu' names is usable; pip install"):
        devices.find("cpu")


@pytest.mark.parametrize("inside", [False, True])
def test_one_trial_is_enough(device: str, written: Written, monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    """A fit that passed is remembered, and the program that makes it makes no trial itself."""
    if inside:
        monkeypatch.setenv(devices.TRIAL, "1")
    else:
        written("print('passed')")
        assert devices.devices()[int(device)].usable
    written("print('failed: it is not asked')")
    assert devices.devices()[int(device)].usable


def test_a_process_that_says_nothing_is_not_held_against_a_device(
    device: str, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("raise ImportError", ""):
        written(text)
        assert devices.devices()[int(device)].usable
    written("import time; time.sleep(60)")
    monkeypatch.setattr(devices, "SECONDS", 0.2)
    assert devices.devices()[int(device)].reason == "a small fit did not end within 0.2 seconds"
