"""``clsvm warm-up``: every kind of work runs, and a later process builds nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clsvm import Kernel
from clsvm import warm_up as tool
from tests.conftest import Command

KINDS = ["few rows", "two classes", "two classes, float32", "two classes, large C", "several classes"]
KINDS += ["rows of 0 and 1", "sparse rows", "rows with zeros", "texts", "regression", "one class"]
NYSTROEM = ["Nystroem regression", "Nystroem classes"]
FIRST = """
import sys
from clsvm import warm_up as tool
jobs = [*tool.works("rbf", sys.argv[1])][:1]
tool.works = lambda *_: jobs
tool.warm_up(device=sys.argv[1])
"""
LATER = """
import sys
import numpy as np
from pyopencl import cache
from clsvm import SVC
found, retrieve = [], cache.retrieve_from_cache
cache.retrieve_from_cache = lambda *words: found.append(retrieve(*words)) or found[-1]
X = np.random.default_rng(1).normal(size=(200, 7))
SVC(C=2.0, gamma=0.3, device=sys.argv[1]).fit(X, X[:, 0] > 0).predict(X)
print(len(found), found.count(None))
"""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all kinds of work have few rows."""
    monkeypatch.setattr(tool, "ROWS", 320)
    monkeypatch.setattr(tool, "FEW", 60)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kernel", ["rbf", Kernel("exp(-gamma * sqdist) + c * dot", gamma=0.1, c=0.5)])
def test_every_kind_of_work(kernel: Kernel | str, device: str) -> None:
    told: list[tuple[str, float]] = []
    found = tool.warm_up(kernel, device, lambda words, done: told.append((words, done)))
    assert [one.name for one in found] == KINDS + NYSTROEM == [words for words, _ in told]
    assert all(one.first > 0 and one.second > 0 for one in found)
    assert [done for _, done in told] == [number / len(found) for number in range(len(found))]


def test_a_later_process_builds_nothing(tmp_path: Path, device: str) -> None:
    def run(code: str, folder: str) -> str:
        own = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / folder)}
        done = subprocess.run([sys.executable, "-c", code, device], env=own, capture_output=True, text=True, check=True)
        return done.stdout

    programs, missed = run(LATER, "empty").split()
    assert programs == missed  # nothing is kept yet
    run(FIRST, "warm")
    assert run(LATER, "warm").split() == [programs, "0"]


def test_the_command(command: Command, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    jobs = [work for work in tool.works("rbf", device) if work.name == "few rows"]
    kernels = []
    monkeypatch.setattr(tool, "works", lambda kernel, device: kernels.append(kernel) or jobs)
    done = command("warm-up", "--device", device)
    assert (done.code, done.err) == (0, "")
    assert "few rows" in done.out
    off = "pyopencl's cache is off: later processes may have to build the programs again"
    assert done.out.splitlines()[-1] == ("later processes load these programs" if tool.kept() else off)
    assert command("warm-up", "--device", device, "--element", "abs(x - y)", "--kernel", "exp(-s)").code == 0
    assert [repr(kernel)[:13] for kernel in kernels] == ["Kernel('rbf',", "Kernel.elemen"]
    refused = command("warm-up", "--kernel", "dot +")
    assert (refused.code, refused.out) == (2, "")
    assert "--kernel" in refused.err
