"""Standard input and output as files of the commands, each of which is read once, and the order of labels."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clsvm.cli import scale
from tests.cli.test_cli import ROOT
from tests.conftest import Command, Result, noisy
from tests.models.test_libsvm import write_text

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/stdin"), reason="standard input has no name here")


@pytest.fixture
def rows(tmp_path: Path) -> bytes:
    """Write the rows ``data``; return what it holds."""
    return write_text(tmp_path / "data", *noisy(60, 3)).read_bytes()


@pytest.fixture
def fed(command: Command) -> Iterator[Callable[..., Result]]:
    """Run a command of this process with some bytes (64 KiB at most) in a pipe as standard input."""
    before = os.dup(0)

    def run(content: bytes, *words: str) -> Result:
        ends = os.pipe()
        os.write(ends[1], content)
        os.close(ends[1])
        os.dup2(ends[0], 0)
        os.close(ends[0])
        return command(*words)

    yield run
    os.dup2(before, 0)
    os.close(before)


def test_a_pipeline(command: Command, rows: bytes, tmp_path: Path, fed: Callable[..., Result]) -> None:
    """A model from rows of standard input to standard output, which is then a model of standard input."""
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)])
    program = [sys.executable, "-c", "from clsvm.cli.app import main; main()", "train", "-q", "-", "-"]
    made = subprocess.run(program, input=rows, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": path})
    assert command("train", "-q", "data", "m").code == 0
    assert made.stdout == (tmp_path / "m").read_bytes()
    assert fed(made.stdout, "predict", "data", "-", "by_pipe") == command("predict", "data", "m", "by_file")
    assert (tmp_path / "by_pipe").read_bytes() == (tmp_path / "by_file").read_bytes()


def test_what_reads_a_file_reads_standard_input(
    command: Command, rows: bytes, tmp_path: Path, fed: Callable[..., Result]
) -> None:
    assert command("train", "-q", "data", "m").code == 0
    search = ("grid", "-log2c", "0,0,1", "-log2g", "null", "-out", "null")
    for words in (("predict", "-", "m"), (*search, "-"), ("falkon", "predict", "-", "m")):
        assert fed(rows, *words) == command(*(word if word != "-" else "data" for word in words))
    assert fed(rows, "falkon", "train", "-", "f").code == 0
    assert fed(rows, "train", "-q", "-", "-w1", "2") == (0, "", "")
    assert (tmp_path / "stdin.model").is_file()


def test_scale(
    command: Command, rows: bytes, tmp_path: Path, fed: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[bytes] = []
    monkeypatch.setattr(scale, "_print", printed.append)
    assert command("scale", "-s", "ranges", "data").code == 0
    assert fed(rows, "scale", "-").code == 0
    assert fed((tmp_path / "ranges").read_bytes(), "scale", "-r", "-", "data").code == 0
    assert printed == [printed[0]] * 3


def test_faults_of_pipes_have_lines(rows: bytes, fed: Callable[..., Result]) -> None:
    result = fed(rows + b"1 1:x\n", "train", "-", "m")
    assert (result.code, "error: /dev/stdin, line 61: got '1:x', expected index:value" in result.err) == (1, True)
