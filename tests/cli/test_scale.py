"""``clsvm scale``: what it prints and keeps, by hand and byte for byte as svm-scale where that is installed."""

import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.cli.test_cli import ROOT, shell
from tests.conftest import Command, Result

pytestmark = pytest.mark.full

DATA = "1 1:1 3:0.1 5:3\n-1 1:2 2:5 4:0 5:3\n0.1 3:1e-3 5:3 7:7\n"
SCALED = "1 2:-1 3:1 7:-1 \n-1 1:1 2:1 3:-1 7:-1 \n0.10000000000000001 1:-1 2:-1 3:-0.98 7:1 \n"
needs_libsvm = pytest.mark.skipif(
    not shutil.which("svm-scale"), reason="LIBSVM's svm-scale is not installed (Debian: libsvm-tools)"
)


@pytest.fixture
def clsvm(command: Command, tmp_path: Path) -> Command:
    """Run a command in a folder that holds the data."""
    (tmp_path / "data").write_text(DATA)
    return command


# By hand


def test_features_go_to_the_limits_and_constant_ones_go(clsvm: Command) -> None:
    """Feature 4 holds a written zero, 5 is constant, 6 is in no row; absent values are 0."""
    code, out, err = clsvm("scale", "data")
    assert (code, out) == (0, SCALED)
    assert (
        err == "clsvm: warning: 11 values are not zero, 10 were in data; "
        "where no value is negative, -l 0 keeps zeros as they are\n"
    )


def test_ends_are_exact_and_targets_have_all_digits(clsvm: Command, tmp_path: Path) -> None:
    """-0.1 + (0.2 + 0.1) * 1 is not 0.2; targets that are all the same go to the lower limit."""
    (tmp_path / "data").write_text("1\n2\n3\n")
    expected = "-0.10000000000000001 \n0.050000000000000017 \n0.20000000000000001 \n"
    assert clsvm("scale", "-y", "-0.1", "0.2", "data") == Result(0, expected, "")
    (tmp_path / "data").write_text("7 1:1\n7 1:2\n")
    assert clsvm("scale", "-y", "-5", "-2", "data") == Result(0, "-5 1:-1 \n-5 1:1 \n", "")


def test_ranges_are_kept_and_used_again(clsvm: Command, tmp_path: Path) -> None:
    """Without limits of the command line."""
    first = clsvm("scale", "-y", "0.1", "0.3", "-l", "0", "-u", "0.1", "-s", "ranges", "data")
    head = "y\n0.10000000000000001 0.29999999999999999\n-1 1\nx\n0 0.10000000000000001\n"
    assert (tmp_path / "ranges").read_text() == f"{head}1 0 2\n2 0 5\n3 0 0.10000000000000001\n7 0 7\n"
    assert clsvm("scale", "-r", "ranges", "-l", "5", "-u", "6", "-y", "7", "8", "data").out == first.out


def test_features_without_a_range_are_left_out_with_a_warning(clsvm: Command, tmp_path: Path) -> None:
    """A constant one (5) is left out anyway; one that is only in the ranges (9) is 0 in every row."""
    (tmp_path / "ranges").write_text("x\n0 1\n3 0 0.2\n7 2 2\n9 -1 3\n")
    code, out, err = clsvm("scale", "-r", "ranges", "data")
    assert (code, out) == (0, "1 3:0.5 9:0.25 \n-1 9:0.25 \n0.10000000000000001 3:0.005 9:0.25 \n")
    assert err == "clsvm: warning: features 1, 2 of data are left out: not in ranges\n"


def test_very_many_features_cost_nothing(clsvm: Command, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("1 1:1 2147483647:2\n2 9:4\n")
    clsvm("scale", "data")  # imports
    tracemalloc.start()
    try:
        result = clsvm("scale", "-s", "ranges", "data")
        again = clsvm("scale", "-r", "ranges", "data")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.out == again.out == "1 1:1 9:-1 2147483647:1 \n2 1:-1 9:1 2147483647:-1 \n"
    assert peak < 20 << 20


def test_a_reader_that_goes_ends_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("".join(f"{i} 1:{i} 2:{i}\n" for i in range(20000)))
    code = "import clsvm.cli.scale; clsvm.cli.scale._ROWS = 10; from clsvm.cli.app import main; main()"
    process = shell("scale", tmp_path / "data", cwd=ROOT, code=code)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "0 1:-1 2:-1 \n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_an_error(unbuffered: str, tmp_path: Path) -> None:
    """A limit on the file's size stands for the disk: without buffers a write there takes a part and says so."""
    resource = pytest.importorskip("resource")
    (tmp_path / "data").write_text("".join(f"{i} 1:{i} 2:{i}\n" for i in range(2000)))
    code = (
        "import clsvm.opencl.devices, resource; "  # (which has looked at its caches, then)
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (9999, {resource.RLIM_INFINITY})); "
        "from clsvm.cli.app import main; main()"
    )
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.run(
            [sys.executable, "-c", code, "scale", tmp_path / "data"],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=out,
            stderr=subprocess.PIPE,
        )
    assert (process.returncode, process.stderr) == (1, b"clsvm: error: stdout: File too large\n")


# As svm-scale


NUMBERS = st.integers(-3, 3) | st.floats(-1e3, 1e3).map(lambda v: round(v, 6)) | st.sampled_from([1e30, -1e-30, 0.1])
ROWS = st.lists(
    st.tuples(NUMBERS, st.dictionaries(st.integers(1, 8), NUMBERS, max_size=8)), min_size=1, max_size=6
).map(
    lambda rows: "".join(
        " ".join([f"{label + 0.0!r}", *(f"{i}:{v + 0.0!r}" for i, v in sorted(row.items()))]) + "\n"
        for label, row in rows
    )
)
# Debian's svm-scale rounds the limits of its command line to float32; those of a range file are float64 in both.
LIMITS = st.sampled_from([("-1", "1"), ("0", "1"), ("-0.25", "0.7578125"), ("-5", "-2"), ("1e0", "1e3"), ("-1", "0")])


def peer(*words: str | Path, cwd: Path) -> Result:
    done = subprocess.run(["svm-scale", *map(str, words)], cwd=cwd, capture_output=True, text=True)
    return Result(done.returncode, done.stdout, done.stderr)


def same(ours: Result, theirs: Result) -> None:
    """Codes, texts, and what the warnings count: features without a range, values that are not zero."""
    assert ours[:2] == theirs[:2]
    stray = re.findall(r"feature index (\d+)", theirs.err)
    said = re.search(r"features ([\d, ]+) of \S+ are left out", ours.err)
    assert (said[1].split(", ") if said else []) == stray
    counts = re.findall(r"#nonzeros (\d+)", theirs.err)
    told = re.search(r"(\d+) values are not zero, (\d+) were", ours.err)
    assert ([told[2], told[1]] if told else []) == counts


@needs_libsvm
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(train=ROWS, test=ROWS, x=LIMITS, y=st.none() | LIMITS)
@example(train="1\n2\n", test="1 1:1\n", x=("-1", "1"), y=None)
@example(train="1 1:2\n3 2:1 4:-1\n", test="1 3:1\n2 4:5\n", x=("0", "1"), y=("0", "1"))
def test_as_svm_scale(
    command: Command, tmp_path: Path, train: str, test: str, x: tuple[str, str], y: tuple[str, str] | None
) -> None:
    """Scaled and kept; then restored from one's own and from the other's file, other rows among them."""
    (tmp_path / "train").write_text(train)
    (tmp_path / "test").write_text(test)
    flags = ["-l", x[0], "-u", x[1], *(("-y", *y) if y else ())]
    same(command("scale", *flags, "train"), peer(*flags, "train", cwd=tmp_path))
    same(command("scale", *flags, "-s", "ours", "train"), peer(*flags, "-s", "theirs", "train", cwd=tmp_path))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    ends = (tmp_path / "ours").read_text().splitlines()[2].split() if y else [0, 1]
    if ends[0] == ends[1]:
        return  # (svm-scale divides by zero where the file's targets are all the same)
    target = [] if y else ["-y", "0", "9"]
    for data in ("train", "test"):
        same(command("scale", "-r", "theirs", *target, data), peer("-r", "ours", *target, data, cwd=tmp_path))


# Bad input


LIMITS_LINE, SPAN_LINE = (
    "expected 'lower upper', finite and ascending",
    "expected 'index min max', finite and ascending",
)
BROKEN = {
    "empty": ("", ", line 1: got '', expected 'x'"),
    "not text": ("".join(map(chr, range(128, 256))) * 9, ", line 1: got "),
    "no limits": ("x\n", f", line 2: got '', {LIMITS_LINE}"),
    "no x": ("y\n0 1\n0 1\n1 0 2\n", ", line 4: got '1 0 2', expected 'x'"),
    "targets' limits": ("y\n1 0\n", f", line 2: got '1 0', {LIMITS_LINE}"),
    "targets' ends": ("y\n0 1\n", ", line 3: got '', expected 'min max', finite and ascending"),
    "text": ("x\n0 1\n\n1 0 z\n", f", line 4: got '1 0 z', {SPAN_LINE}"),
    "four numbers": ("x\n0 1\n1 0 1 2\n", f", line 3: got '1 0 1 2', {SPAN_LINE}"),
    "not finite": ("x\n0 1\n1 0 inf\n", f", line 3: got '1 0 inf', {SPAN_LINE}"),
    "turned": ("x\n0 1\n1 3 2\n", f", line 3: got '1 3 2', {SPAN_LINE}"),
    "number 0": ("x\n0 1\n0 3 4\n", ": got the feature numbers 0, expected ascending integers from 1 to 2147483647"),
    "not whole": ("x\n0 1\n1.5 3 4\n", ": got the feature numbers 1.5, expected ascending"),
    "too high": ("x\n0 1\n2147483648 3 4\n", ": got the feature numbers 2147483648, expected ascending"),
    "twice": ("x\n0 1\n4 3 4\n4 1 2\n", ": got the feature numbers 4, 4, expected ascending"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_range_file(name: str, clsvm: Command, tmp_path: Path) -> None:
    text, message = BROKEN[name]
    (tmp_path / "ranges").write_bytes(text.encode("latin-1"))
    code, out, err = clsvm("scale", "-r", "ranges", "data")
    assert (code, out) == (1, "")
    assert err.startswith(f"clsvm: error: ranges{message}")
    assert len(err) < 300


OVERFLOWS = {
    "span": ("0 3:-1e308\n0 3:1e308\n", "", [], "feature 3"),
    "limits": ("0 3:1\n0 3:2\n", "", ["-l", "-1e308", "-u", "1e308"], "feature 3"),
    "beyond": ("0 1:0 3:1e10\n", "x\n0 1\n3 0 1e-300\n", [], "feature 3"),
    "zero": ("0 1:0\n", "x\n0 1e300\n4 1e10 1.0000000001e10\n", [], "feature 4"),
    "targets": ("-1e308\n1e308\n", "", ["-y", "0", "1"], "the targets"),
    "targets that were equal": ("3\n4\n", "y\n0 1\n3 3\nx\n0 1\n", [], "the targets"),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_values_that_overflow(name: str, clsvm: Command, tmp_path: Path) -> None:
    data, ranges, flags, what = OVERFLOWS[name]
    (tmp_path / "data").write_text(data)
    (tmp_path / "ranges").write_text(ranges)
    result = clsvm("scale", *flags, *(["-r", "ranges"] if ranges else []), "data")
    message = f"data: scaling overflows: got {what}, expected values that scale to finite numbers"
    assert result == (1, "", f"clsvm: error: {message}\n")
