"""Define ``clsvm scale``, which scales the features of a data file to one interval, as LIBSVM's svm-scale does.

A value v of a feature with minimum ``low`` and maximum ``high`` is scaled to the interval from ``lower`` to ``upper``:

    lower + (upper - lower) * (v - low) / (high - low)

Flags and files are those of svm-scale 3.24. The range file of -s and -r has a line ``x``, a line ``lower upper``, and a
line ``index min max`` for each feature. If targets are scaled, the lines ``y``, ``lower upper`` and ``min max`` come
first. Functions import NumPy when they run.

Source: LIBSVM's README, and the files that svm-scale 3.24 reads and writes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, NamedTuple, NoReturn

import typer

from clsvm import files
from clsvm.cli import common, flags
from clsvm.cli.common import Array, warn
from clsvm.cli.flags import Option

_ROWS = 1000  # this many rows are written at a time
_SHOWN = 10  # a warning names at most this many features


class Ranges(NamedTuple):
    """Hold the minimum and maximum of each feature, and the interval to which all features are scaled.

    Scaled rows have only features that are in ``features`` and whose ``low`` and ``high`` differ.

    Attributes
    ----------
    lower
        value to which the minimum of each feature is scaled.
    upper
        value to which the maximum of each feature is scaled.
    features
        column numbers (f,) of f features, from 0, ascending.
    low
        minimum (f,) of each of these features.
    high
        maximum (f,) of each of these features.
    target
        lower, upper, low and high for the targets; None leaves targets unscaled.
    """

    lower: float
    upper: float
    features: Array
    low: Array
    high: Array
    target: tuple[float, ...] | None

    def varied(self) -> Ranges:
        """Return the ranges without the constant features, whose ``low`` and ``high`` are equal."""
        varying = self.low != self.high
        return self._replace(features=self.features[varying], low=self.low[varying], high=self.high[varying])


def _check_limits(flags: str, lower: float, upper: float) -> None:
    """Raise BadParameter unless both limits are finite and ``upper`` is larger. The message names ``flags``."""
    if not -math.inf < lower < upper < math.inf:
        expected = "expected two finite numbers, the second the larger"
        raise typer.BadParameter(f"got {lower:g} and {upper:g}, {expected}", param_hint=flags)


@flags.command(
    "Scale each feature of FILE by its minimum and maximum and print the rows as svmlight text.",
    flags.data("Data"),
    Option("lower", "-l", -1.0, "Scaled minimum of each feature."),
    Option("upper", "-u", 1.0, "Scaled maximum of each feature."),
    Option("target", "-y", None, "Also scale targets, to these limits.", tuple[float, float], "LOWER UPPER"),
    Option("save", "-s", None, "Write minima and maxima to this file.", str, "RANGES", flags.to_write),
    Option(
        "restore", "-r", None, "Scale by a file of -s or svm-scale; its limits replace -l and -u.", str, "RANGES",
        flags.to_read,
    ),
    cls=flags.LibsvmCommand,
)  # fmt: skip
def scale(args: Any) -> None:
    """Run ``clsvm scale``: scale the features of a data file, and print the rows as svmlight text."""
    _check_limits("-l, -u", args.lower, args.upper)
    if args.target is not None:
        _check_limits("-y", *args.target)
    file, save, restore = args.file, args.save, args.restore
    if save is not None and restore is not None:
        raise typer.BadParameter("expected one of -s and -r, got both", param_hint="-s")
    import numpy as np

    from clsvm.models import svmlight

    common.check_files([file, restore], [save])
    restored = None if restore is None else _read(restore)
    X, y = svmlight.read_problem(file)
    features, low, high = _extremes(X)
    target = None if args.target is None else (*args.target, float(y.min()), float(y.max()))
    ranges = Ranges(args.lower, args.upper, features, low, high, target).varied()
    if restored is not None:
        unknown = np.setdiff1d(ranges.features, restored.features, assume_unique=True)
        if len(unknown):
            shown = ", ".join(map(str, (unknown[:_SHOWN] + 1).tolist()))
            warn(f"features {shown}{', ...' * (len(unknown) > _SHOWN)} of {file} are left out: not in {restore}")
        ranges = restored.varied()._replace(target=restored.target or target)
    lines, written = _lines(file, X, y, ranges), 0
    text = "".join(islice(lines, _ROWS))  # raises if scaling overflows, before the range file is written
    common.write_file(save, _written(ranges))
    while text:
        _print(text.encode())
        written += text.count(":")
        text = "".join(islice(lines, _ROWS))
    if written > X.nnz:
        hint = "" if restore is not None else "; where no value is negative, -l 0 keeps zeros as they are"
        warn(f"{written} values are not zero, {X.nnz} were in {file}{hint}")


def _print(text: bytes) -> None:
    """Write all of ``text`` to stdout, although one write may take only a part. Raises OSError that names stdout."""
    remaining = memoryview(text)
    try:
        while remaining:
            remaining = remaining[sys.stdout.buffer.write(remaining) :]
        sys.stdout.buffer.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from None


def _extremes(X: Array) -> tuple[Array, Array, Array]:
    """Return the indices of the nonempty columns of the CSR matrix X, and the minimum and maximum of each of them.

    A column is nonempty if at least one row of X stores a value in it. The indices ascend. In a nonempty column, values
    that are not stored count as 0.
    """
    import numpy as np
    from scipy import sparse

    features, column = np.unique(X.indices, return_inverse=True)
    if not len(features):
        return features, np.zeros(0), np.zeros(0)
    compact = sparse.csr_matrix((X.data, column, X.indptr), shape=(X.shape[0], len(features))).tocsc()
    low, high = (reduced.toarray().reshape(-1) for reduced in (compact.min(axis=0), compact.max(axis=0)))
    return features, low, high


def _scaled(values: Any, low: Any, high: Any, lower: float, upper: float) -> Array:
    """Scale values linearly: low becomes exactly lower, and high exactly upper. Return nan for values that overflow."""
    import numpy as np

    with np.errstate(all="ignore"):
        between = lower + (upper - lower) * (values - low) / (high - low)
        finite = np.isfinite((upper - lower) * (high - low)) & np.isfinite(between)
    exact = np.where(values == low, lower, np.where(values == high, upper, between))
    return np.where(finite | (low == high) & (values == low), exact, np.nan)


def _lines(file: str, X: Array, y: Array, ranges: Ranges) -> Iterator[str]:
    """Yield a line ``label index:value ...`` of scaled values for each row, with svm-scale's number of digits.

    The values of X that are not stored are 0, and are scaled too. A line leaves out scaled values of 0. Raises
    ValueError before the first line if scaling overflows. ``ranges`` must have only features that vary.
    """
    import numpy as np

    lower, upper, features, low, high, target = ranges
    labels = y if target is None else _scaled(y, target[2], target[3], target[0], target[1])
    column = np.searchsorted(features, X.indices)
    # For a column index above all ``features``, searchsorted returns len(features). The -1 appended there is no index.
    is_known = np.append(features, -1)[column] == X.indices  # whether the entry's column index is in ``features``
    ends, column = np.concatenate([[0], np.cumsum(is_known)])[X.indptr], column[is_known]
    entries = _scaled(X.data[is_known], low[column], high[column], lower, upper)
    of_zero = _scaled(0.0, low, high, lower, upper)
    wrong = np.append(column[np.isnan(entries)], np.flatnonzero(np.isnan(of_zero)))
    if len(wrong) or np.isnan(labels).any():
        got = f"feature {features[wrong[0]] + 1}" if len(wrong) else "the targets"
        raise ValueError(f"{file}: scaling overflows: got {got}, expected values that scale to finite numbers")
    always = np.flatnonzero(of_zero)
    for label, (begin, end) in zip(labels.tolist(), pairwise(ends.tolist()), strict=True):
        at = np.union1d(always, column[begin:end])
        values = of_zero[at]
        values[np.searchsorted(at, column[begin:end])] = entries[begin:end]
        cells = zip((features[at] + 1).tolist(), values.tolist(), strict=True)
        yield f"{label:.17g} " + "".join(f"{number}:{value:g} " for number, value in cells if value) + "\n"


def _written(ranges: Ranges) -> Iterator[str]:
    """Yield the lines of the range file that holds ``ranges``."""
    if ranges.target is not None:
        yield "y\n{:.17g} {:.17g}\n{:.17g} {:.17g}".format(*ranges.target)
    yield f"x\n{ranges.lower:.17g} {ranges.upper:.17g}"
    for feature, low, high in zip(*(part.tolist() for part in ranges[2:5]), strict=True):
        yield f"{feature + 1} {low:.17g} {high:.17g}"


def _fail(path: str, line: tuple[int, list[bytes]], expected: str) -> NoReturn:
    got = b" ".join(line[1])[:40].decode("utf-8", "replace")
    raise ValueError(f"{path}, line {line[0]}: got {got!r}, expected {expected}")


def _numbers(path: str, line: tuple[int, list[bytes]], expected: str) -> list[float]:
    """Return the numbers in one line of a range file, for example index, minimum and maximum of a feature.

    Raises ValueError that names the line, unless the last two numbers are finite and in ascending order.

    line: line number in the file, and the words of the line.
    expected: a word for each number that the line must have, such as "index min max".
    """
    try:
        values = [float(word) for word in line[1]]
    except ValueError:
        values = []
    if len(values) != len(expected.split()) or not -math.inf < values[-2] <= values[-1] < math.inf:
        _fail(path, line, f"{expected!r}, finite and ascending")
    return values


def _read(path: str) -> Ranges:
    """Read a range file that ``clsvm scale -s`` or svm-scale wrote. Raises ValueError if it is malformed."""
    import numpy as np

    from clsvm.models.svmlight import MAX_INDEX

    with files.text_stream(open(path, "rb"), path, "a file of ranges") as stream:
        every = [line.split() for line in stream]
    lines = [(number, words) for number, words in enumerate(every, 1) if words]
    lines.append((len(every) + 1, []))  # marks the end: if the file ends too early, the error names this line
    target, at = None, 0
    if lines[0][1] == [b"y"]:
        target = *_numbers(path, lines[1], "lower upper"), *_numbers(path, lines[2], "min max")
        at = 3
    if lines[at][1] != [b"x"]:
        _fail(path, lines[at], "'x'")
    lower, upper = _numbers(path, lines[at + 1], "lower upper")
    _check_limits("-r", lower, upper)
    spans = [_numbers(path, line, "index min max") for line in lines[at + 2 : -1]]
    numbers, low, high = np.array(spans).reshape(-1, 3).T
    if not ((np.diff(numbers, prepend=0) >= 1) & (numbers <= MAX_INDEX) & (numbers == np.rint(numbers))).all():
        got = ", ".join(f"{number:.17g}" for number in numbers[:_SHOWN])
        raise ValueError(f"{path}: got the feature numbers {got}, expected ascending integers from 1 to {MAX_INDEX}")
    return Ranges(lower, upper, numbers.astype(np.int64) - 1, low, high, target)
