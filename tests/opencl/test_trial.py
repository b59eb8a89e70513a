"""Whether fits work on a device: the fit itself, and the process of its own that a broken runtime may end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clsvm import trial as program
from clsvm.errors import BuildError, DeviceError
from clsvm.opencl import caches, devices, trial

Written = Callable[[str], None]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """Return a function that writes the trial's program; nothing is remembered of earlier trials."""

    def write(text: str) -> None:
        (tmp_path / "a_trial.py").write_text(text)
        devices._info.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(trial, "PROGRAM", "a_trial")
    monkeypatch.setattr(caches, "folders", lambda: iter([tmp_path]))
    yield write
    devices._info.cache_clear()


def test_a_fit_is_right(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = devices.find(device).index
    known = trial.identity(devices.visible(os.getpid())[index])
    assert program.main(index, known) == trial.PASSED
    assert program.main(index, ["another", *known[1:]]) == program.main(99, known) == ""
    right = program.kernel_matrix
    monkeypatch.setattr(program, "kernel_matrix", lambda *a, **k: right(*a, **k) + 0.01)
    assert program.main(index, known) == "failed: a small fit had wrong kernel values"
    monkeypatch.setattr(program, "kernel_matrix", right)
    scores = program.SVC.decision_function
    monkeypatch.setattr(program.SVC, "decision_function", lambda self, X: scores(self, X) + 0.1)
    assert program.main(index, known) == "failed: a small fit had wrong decision values"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BuildError("card", "failed: again\n\nerror: unknown target CPU\nfailed", ""), "error: unknown target CPU"),
        (RuntimeError("clEnqueue failed: INVALID\nmore"), "clEnqueue failed: INVALID"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_fit_that_fails_says_its_cause(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    def fails(*given: Any, **named: Any) -> np.ndarray:
        raise error

    monkeypatch.setattr(program, "kernel_matrix", fails)
    known = trial.identity(devices.visible(os.getpid())[0])
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
    with pytest.raises(DeviceError) as caught:
        devices.find(int(device))
    assert str(caught.value).startswith(f"{words}; no OpenCL device that '{device}' names is usable; pip install")
    assert f"not usable: {words}" in str(caught.value)
    written("print('passed')")  # a failure is not remembered
    assert devices.find(int(device)).usable


def test_a_fit_that_passed_is_remembered(device: str, written: Written) -> None:
    written("print('passed')")
    assert devices.find(int(device)).usable
    written("print('failed: it is not asked')")
    assert devices.find(int(device)).usable


def test_a_process_that_says_nothing_is_not_held_against_a_device(
    device: str, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("raise ImportError", ""):
        written(text)
        assert devices.find(int(device)).usable
    written("import time; time.sleep(60)")
    monkeypatch.setattr(trial, "_SECONDS", 0.2)
    with pytest.raises(DeviceError, match=r"^a small fit did not end within 0\.2 seconds"):
        devices.find(int(device))


def test_the_program_makes_no_trial_itself(device: str, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trial.INSIDE, "1")
    written("print('failed: it is not asked')")
    assert devices.find(int(device)).usable
