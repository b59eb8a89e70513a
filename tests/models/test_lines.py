"""Svmlight text as LIBSVM's programs read it, from a file and from a pipe, which can be read once."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clsvm import SVC, load_model
from clsvm.models import libsvm, npz, svmlight
from clsvm.models.model import KernelModel
from tests.conftest import noisy

PLAIN = b"1 1:0.5 3:-2\n-1 2:1000 3:0.25\n"
FORMS = {
    "plain": PLAIN,
    "blanks after a colon": b"1 1: 0.5 3:  -2\n-1 2: 1000 3: .25\n",
    "tabs": b"1\t1:\t0.5\t\t3: \t-2\n-1\t2:1000\t3:0.25\t\n",
    "blanks and line ends of Windows": b"  1  1:0.5  3:-2  \r\n-1 2:1000 3:0.25 \r\n",
    "a byte order mark": svmlight.BOM + PLAIN,
    "signs, zeros and exponents": b"+1 +1:+.5 003:-2.\n-1e0 2:1E3 3:25e-2\n",
    "hexadecimal": b"0x1 1:0x.8 3:-0X1p1\n-0x1p0 2:0x3e8 3: 0x1p-2\n",
    "comments": b"# a_b: 0x1\n1 1:0.5 3:-2 # a_b: c 0x\n\n-1 2:1000 3:0.25#x",
}
FAULTS = {
    "no value": (b"1 1: \n", "got value '' of index 1"),
    "two values": (b"1 1: 2:3\n", "got value '2:3' of index 1"),
    "a blank before a colon": (b"1 1 :2\n", "got '1', expected index:value"),
    "an underscore": (b"1 1:1_0\n", "got value '1_0' of index 1"),
    "an underscore in an index": (b"1 1_0:1\n", "got '1_0:1', expected index:value"),
    "an underscore in a label": (b"1_0 1:1\n", "got label '1_0'"),
    "no label": (b"1:2 2:2\n", "got label '1:2', expected a finite number"),
    "no text": (b"\x00\xff\xfe\x01\n", "got label"),
    "no hexadecimal number": (b"1 1:0x\n", "got value '0x' of index 1"),
    "a hexadecimal number beyond doubles": (b"1 1:0x1p9999\n", "got value 'inf' of index 1"),
    "two signs": (b"1 ++1:1\n", "got '++1:1', expected index:value"),
    "a negative index": (b"1 -3:1\n", "got '-3:1', expected index:value"),
    "index 0": (b"1 0:1\n", "got index '0', expected 1 to 2147483647 (columns are numbered from 1; zero_based=False"),
    "an index too high": (b"1 2147483648:1\n", "got index '2147483648', expected 1 to 2147483647"),
    "an index of many digits": (b"1 " + b"7" * 5000 + b":1\n", "got index '7777"),
    "descending indices": (b"1 3:1 2:1\n", "got index 2 after 3, expected ascending indices"),
}


@pytest.fixture(params=["file", "pipe"])
def holding(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], str]:
    """Give the name of a file, or of a pipe, that holds some bytes."""
    if request.param == "pipe" and not os.path.isdir("/dev/fd"):
        pytest.skip("pipes have no names here")

    def hold(content: bytes) -> str:
        if request.param == "file":
            (tmp_path / "data").write_bytes(content)
            return str(tmp_path / "data")
        ends = os.pipe()
        request.addfinalizer(lambda: os.close(ends[0]))
        os.write(ends[1], content)  # (64 KiB at most)
        os.close(ends[1])
        return f"/dev/fd/{ends[0]}"

    return hold


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_numbers_and_blanks(holding: Callable[[bytes], str], form: str) -> None:
    X, y = svmlight.read_problem(holding(FORMS[form]))
    assert (X.toarray().tolist(), y.tolist()) == ([[0.5, 0, -2], [0, 1000, 0.25]], [1, -1])


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_with_their_lines(
    holding: Callable[[bytes], str], fault: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many lines are looked at together."""
    monkeypatch.setattr(svmlight, "_BLOCK", block)
    line, words = FAULTS[fault]
    path = holding(b"# a comment\n" + PLAIN + line + PLAIN)
    if fault == "a hexadecimal number beyond doubles" and not os.path.isfile(path):
        pytest.skip("what is no number of ours is found after the last row: a pipe's line is not known")
    with pytest.raises(ValueError, match=f"^{re.escape(path)}, line 4: {re.escape(words)}"):
        svmlight.read_problem(path)


def test_blocks_end_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(FORMS["a byte order mark"] + FORMS["hexadecimal"] + FORMS["comments"])
    for block in range(1, 40):
        monkeypatch.setattr(svmlight, "_BLOCK", block)
        X, y = svmlight.read_problem(tmp_path / "data")
        assert X.toarray().tolist() == [[0.5, 0, -2], [0, 1000, 0.25]] * 3
        assert y.tolist() == [1, -1] * 3


def model_of(k: int) -> tuple[KernelModel, np.ndarray]:
    X, y = noisy(60, 3)
    y = y if k == 2 else np.arange(60) % k
    return SVC(C=0.5).fit(X, y).model_, X


@pytest.mark.parametrize("k", [2, 3])
def test_models_from_a_pipe(holding: Callable[[bytes], str], tmp_path: Path, k: int) -> None:
    model, X = model_of(k)
    for save in (libsvm.save_model, npz.save_model):
        save(model, tmp_path / "m")
        text = (tmp_path / "m").read_bytes()
        np.testing.assert_array_equal(load_model(holding(text)).predict(X), model.predict(X))
    libsvm.save_model(model, tmp_path / "m")
    text = (tmp_path / "m").read_bytes()
    gamma = model.kernel.params["gamma"]
    odd = text.replace(f"gamma {gamma:.17g}".encode(), f"gamma {gamma.hex()}".encode()).replace(b":", b":\t ")
    assert float.hex(gamma).encode() in odd
    found = load_model(holding(svmlight.BOM + odd.replace(b"\n", b"\r\n")))
    assert found.kernel == model.kernel
    np.testing.assert_array_equal(found.predict(X), model.predict(X))
    for damaged in (text[:-1], text[:-40], text.replace(b"gamma ", b"gamma 1_")):
        with pytest.raises(ValueError, match=r"line \d+: got "):
            load_model(holding(damaged))
    for nothing in (b"", b"P", b"PK"):
        with pytest.raises(ValueError, match="got "):
            load_model(holding(nothing))
