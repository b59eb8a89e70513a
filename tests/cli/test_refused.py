"""What commands refuse: wrong command lines, with exit code 2, and what fails, with exit code 1; nothing is done."""

import lzma
import re
from pathlib import Path

import pytest

from tests.conftest import Command

USAGE = {
    "": "",
    "train": "file",
    "spam": "spam",
    "train -z 1 F": "-z",
    "train F -c": "-c",
    "train -c x F": "valid",
    "train -c 0 F": "C must be > 0, got 0",
    "train -g -1 F": "greater than or equal to 0",
    "train -h 2 F": "less than or equal to 1",
    "train -s 5 F": "got 5, expected 0 C-SVC, 1 nu-SVC, 2 one-class",
    "train -s 3 --crammer-singer F": "for classes (-s 0), got -s 3",
    "train -s 2 --no-bias F": "has an offset",
    "train -t spam F": "0 linear",
    "train -t rbf --element x*y F": "without --kernel and --element",
    "train --kernel exp(-a*sqdist) F": "at 'a', column 6 of 'exp(-a*sqdist)'",
    "train -t 2 --param alpha=1 F": "kernel rbf has no parameter alpha",
    "train --param gamma=1 -g 2 F": "got gamma here and by -g",
    "train -t 2 --param gamma=x F": "got 'gamma=x', expected name=number",
    "train --kernel dot -r 1 F": "parameter coef0 does not occur in 'dot'",
    "train -b 1 --crammer-singer F": "pairs of classes",
    "train -v 1 F": "greater than or equal to 2",
    "train -v 3 -b 1 F": "-v counts labels by decision values",
    "train -v 3 --report a.json F": "goes without -v",
    "train --resume a F": "no such option: --resume",
    "train -w 1 F": "integer label",
    "train -w1 0 F": "above 0",
    "train F -w1": "weight after it",
    "train --dtype float16 F": "float64",
    "predict F": "model",
    "predict -c 1 F M": "-c",
    "sample spam": "breast_cancer, digits",
    "falkon train F --machine svm": "got 'svm', expected one of classes, logistic, numbers, log-cosh",
    "falkon train F --centers 0": "n_centers must be >= 1",
    "falkon train F --gamma -1": "greater than or equal to 0",
    "grid F -log2c 1,2": "expected begin,end,step or null",
    "grid F -log2g 1,5,-1": "a step that leads from 1 to 5",
    "grid F -log2c 0,1,1e-9": "in less than 10000 values",
    "grid F -c 1": "no such option: -c",
    "grid F -g 1": "no such option: -g",
    "grid F -s 3": "less than or equal to 0",
    "grid F -b 1": "less than or equal to 0",
    "grid F -log2c null -log2g null": "expected a range for one of them",
    "kernels show": "expected one of them",
    "kernels show rbf --param gamma=1 --param gamma=2": "got gamma twice",
    "kernels show 1/c*dot --param c=0": "for c=0, a part of",
    f"kernels show dot*c --param c=1{'0' * 400}": "c",
    "kernels show --element 1/(x-y)": "at x = y = 0, expected a finite value",
    "kernels show rbf --kernel rbf": "KERNEL and --kernel both give a kernel function",
    "kernels emit --kernel rbf --product spam": "rows, update, both",
    "kernels emit --kernel chi2 --layout clustered": "expected one of dense, csr",
    "kernels emit --kernel rbf --profile spam": "cpu",
    "kernels emit --kernel rbf --profile cpu --device 0": "got both",
    "scale": "missing argument 'file'",
    "scale -l 2 F": "-l, -u: got 2 and 1, expected two finite numbers, the second the larger",
    "scale -l -inf F": "-l, -u: got -inf and 1, expected two finite numbers",
    "scale -y 1 0 F": "-y: got 1 and 0, expected two finite numbers, the second the larger",
    "scale -y 1 F": "should be a valid number",
    "scale -r a -s b F": "-s: expected one of -s and -r, got both",
    "scale F F": "unexpected extra argument",
}
FAILURES = {
    "train none m": "none: No such file",
    "train . m": "Is a directory",
    "train bad m": r"bad, line 2: got '1:x', expected index:value with an index from 1 to 2147483647 and a finite",
    "train cut.xz m": r"cut\.xz, line \d+: got a damaged or truncated stream",
    "train one m": "class",
    "train --memory-limit 2XB good m": "memory_limit must be a positive number of bytes or text like '2GB', got '2XB'",
    "train --checkpoint one good m": "one",
    "train --device no-such-device good m": "no-such-device",
    "train --device 0, good m": "device must have a name on each side of a comma, got '0,'",
    "predict good good": "good: got '1 1:1' in line 1, expected a key",
    "predict good cut": "cut: got a damaged file .*, expected one that clsvm wrote",
    "train -t chi2 good m": "kernel chi2 is for rows without negative values, got -1",
    "sample digits --folder none": "there is no such folder",
    "tune --device 0,0": "expected one device, got several: '0,0'",
    "falkon train good --memory-limit 900": "memory_limit of 900 bytes is too small",
    "grid one": "got the label 1 alone",
    "scale none": "none: No such file",
    "scale -s none/ranges good": "none/ranges: there is no such folder",
    "scale -s ranges bad": "bad, line 2: got '1:x', expected index:value",
    "scale -r /dev/zero good": "/dev/zero: got zero bytes in a long line, expected a file of ranges",
}


@pytest.mark.parametrize("words", USAGE)
def test_wrong_command_lines(command: Command, tmp_path: Path, words: str) -> None:
    result = command(*words.split())
    assert result.code == 2
    said = " ".join(re.sub("[│╭╰─╮╯]", " ", result.err or result.out).split())
    assert USAGE[words].lower() in re.sub("'(-.)'", r"\1", said).lower()  # (flags stand in quotes or not)
    assert "Traceback" not in result.err
    assert not result.out or not words
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", FAILURES)
def test_failures(command: Command, tmp_path: Path, words: str) -> None:
    for file, text in {"good": "1 1:1\n-1 1:-1\n", "bad": "1 1:1\n-1 1:x\n", "one": "1 1:1\n1 1:2\n"}.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "cut.xz").write_bytes(lzma.compress(b"1 1:1\n-1 1:2\n" * 1000)[:-20])
    (tmp_path / "cut").write_bytes(b"PK\x03\x04 and nothing more")
    before = sorted(tmp_path.iterdir())
    result = command(*words.split())
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("clsvm: error: ")
    assert re.search(FAILURES[words], result.err)
    assert not re.search("Traceback|unexpected", result.err)
    assert sorted(tmp_path.iterdir()) == before, "nothing is left behind"
