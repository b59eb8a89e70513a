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
    "signs, zeros and exponents": b"+1 +1:+.5 003:-2.\n-1e0 2:1E3 3:25e-2\n",
    "comments": b"# a: b_c\n1 1:0.5 3:-2 # a: c\n\n-1 2:1000 3:0.25#x",
}
FROM_4 = "expected index:value with an index from 4 to 2147483647 and a finite value"
FAULTS = {
    "no value": (b"1 3:1 4: \n", f"got '4:', {FROM_4}"),
    "two values": (b"1 3:1 4: 2:3\n", f"got '4:2:3', {FROM_4}"),
    "a blank before a colon": (b"1 3:1 4 :2\n", f"got '4', {FROM_4}"),
    "no number": (b"1 3:1 4:x\n", f"got '4:x', {FROM_4}"),
    "hexadecimal": (b"1 3:1 4:0x1\n", f"got '4:0x1', {FROM_4}"),
    "an underscore": (b"1 3:1 4:1_0 # a_b\n", f"got '4:1_0', {FROM_4}"),
    "beyond doubles": (b"1 3:1 4:1e999\n", f"got '4:1e999', {FROM_4}"),
    "a byte order mark": (b"\xef\xbb\xbf1 1:1\n", "got label '\\ufeff1', expected a finite number"),
    "no label": (b"1:2 2:2\n", "got label '1:2', expected a finite number"),
    "no text": (b"\x00\xff\xfe\x01\n", "got label"),
    "two signs": (b"1 3:1 ++4:1\n", f"got '++4:1', {FROM_4}"),
    "a negative index": (b"1 3:1 -4:1\n", f"got '-4:1', {FROM_4}"),
    "index 0": (
        b"1 0:1\n",
        "got '0:1', expected index:value with an index from 1 to 2147483647 and a finite value (col",
    ),
    "an index too high": (b"1 3:1 2147483648:1\n", f"got '2147483648:1', {FROM_4}"),
    "an index of many digits": (b"1 3:1 " + b"7" * 5000 + b":1\n", f"got '{'7' * 40}', {FROM_4}"),
    "descending indices": (b"1 3:1 2:1\n", f"got '2:1', {FROM_4}"),
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


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_numbers_and_blanks(
    holding: Callable[[bytes], str], form: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(svmlight, "_BLOCK", block)
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
    with pytest.raises(ValueError, match=f"^{re.escape(path)}, line 4: {re.escape(words)}"):
        svmlight.read_problem(path)


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
    found = load_model(holding(text.replace(b":", b":\t ").replace(b"\n", b"\r\n")))
    assert found.kernel == model.kernel
    np.testing.assert_array_equal(found.predict(X), model.predict(X))
    for damaged in (text[:-1], text[:-40], b"", b"P", b"PK"):
        with pytest.raises(ValueError, match=r"got .*, expected "):
            load_model(holding(damaged))
