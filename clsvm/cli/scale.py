"""Define ``clsvm scale``, which scales the features of a data file to one interval, as LIBSVM's svm-scale does.

A value v of a feature with minimum ``low`` and maximum ``high`` is scaled to the interval from ``lower`` to ``upper``:

    lower + (upper - lower) * (v - low) / (high - low)

Flags and files are those of svm-scale 3.24. A range file has a line ``x``, a line ``lower upper``, and a line
``index min max`` for each feature. If targets are scaled, the lines ``y``, ``lower upper`` and ``min max`` come first.
Functions import NumPy when they run.

Source: LIBSVM's README, and the files that svm-scale 3.24 reads and writes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple, NoReturn

import typer

from clsvm import files
from clsvm.cli import common, flags
from clsvm.cli.common import Array, warn
from clsvm.cli.flags import Option

_CELLS = 1 << 18  # about this many values are scaled and written at a time
_SHOWN = 10  # a warning names at most this many features


class Ranges(NamedTuple):
    """Hold the minimum and maximum of each feature, and the interval to which all features are scaled.

    Scaled rows omit features that are not listed, and features whose ``low`` and ``high`` are equal.

    Attributes
    ----------
    lower
        value to which the minimum of each feature is scaled.
    upper
        value to which the maximum of each feature is scaled.
    features
        column numbers (f,) of the listed features, from 0, ascending.
    low
        minimum (f,) of each listed feature.
    high
        maximum (f,) of each listed feature.
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


def _limits(words: tuple[str, str] | None) -> tuple[float, float] | None:
    """Return the lower and upper limit of scaled targets that -y gives, or None without -y."""
    try:
        return None if words is None else (float(words[0]), float(words[1]))
    except ValueError:
        raise ValueError(f"got {' '.join(words or ())!r}, expected two numbers, such as 0 1") from None


def _check_limits(flags: str, lower: float, upper: float) -> None:
    """Raise BadParameter, which names ``flags``, unless both limits are finite and the upper one is larger."""
    if not -math.inf < lower < upper < math.inf:
        expected = "expected two finite numbers, the second the larger"
        raise typer.BadParameter(f"got {lower:g} and {upper:g}, {expected}", param_hint=flags)


@flags.command(
    "Scale each feature of FILE by its minimum and maximum and print the rows as svmlight text.",
    flags.data("Data"),
    Option("lower", "-l", -1.0, "Scaled minimum of each feature."),
    Option("upper", "-u", 1.0, "Scaled maximum of each feature."),
    Option("target", "-y", None, "Also scale targets, to these limits.", tuple[str, str], "LOWER UPPER", read=_limits),
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
            warn(f"{restore} does not have {_named(unknown)} of {file}: left out")
        ranges = restored.varied()._replace(target=restored.target or target)
    labels = _labels(file, y, ranges)
    _check(file, ranges, features, low, high)
    common.write_file(save, _written(ranges))
    written = 0
    for text, values in _rows(X, labels, ranges):
        _print(text)
        written += values
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


def _named(columns: Array) -> str:
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    words = ", ".join(str(column + 1) for column in columns[:_SHOWN].tolist())
    return f"feature{'s' * (len(columns) > 1)} {words}{more}"


def _extremes(X: Array) -> tuple[Array, Array, Array]:
    """Return the column numbers of the CSR matrix X in ascending order, and each column's minimum and maximum.

    Values that are not stored count as 0. If X has more columns than stored values, empty columns are left out.
    """
    import numpy as np
    from scipy import sparse

    if X.shape[1] > X.nnz:
        features, column = np.unique(X.indices, return_inverse=True)
    else:
        features, column = np.arange(X.shape[1]), X.indices
    if not len(features):
        return features, np.zeros(0), np.zeros(0)
    compact = sparse.csr_matrix((X.data, column, X.indptr), shape=(X.shape[0], len(features))).tocsc()
    low, high = (reduced.toarray().reshape(-1) for reduced in (compact.min(axis=0), compact.max(axis=0)))
    return features, low, high


def _scaled(values: Any, low: Any, high: Any, lower: float, upper: float) -> Array:
    """Scale values linearly, so that low becomes lower and high becomes upper, both exactly."""
    import numpy as np

    with np.errstate(all="ignore"):
        between = lower + (upper - lower) * (values - low) / (high - low)
    return np.where(values == low, lower, np.where(values == high, upper, between))


def _labels(file: str, y: Array, ranges: Ranges) -> Array:
    import numpy as np

    if ranges.target is None:
        return y
    lower, upper, low, high = ranges.target
    labels = _scaled(y, low, high, lower, upper)
    if not (math.isfinite((upper - lower) * (high - low)) and np.isfinite(labels).all()):
        worst = y[np.argmin(np.isfinite(labels))]
        expected = f"expected targets that scale from the range {low:g} ... {high:g} to finite numbers"
        raise ValueError(f"{file}: scaling overflows: got target {worst:g}, {expected}")
    return labels


def _check(file: str, ranges: Ranges, features: Array, low: Array, high: Array) -> None:
    """Raise ValueError if scaling a value of the file overflows.

    ``low`` and ``high`` are the minimum and maximum of each of the file's ``features``.
    """
    import numpy as np

    extremes = np.zeros((2, len(ranges.features)))
    _, index, file_index = np.intersect1d(ranges.features, features, assume_unique=True, return_indices=True)
    extremes[:, index] = low[file_index], high[file_index]
    with np.errstate(all="ignore"):
        finite = np.isfinite((ranges.upper - ranges.lower) * (ranges.high - ranges.low))
    finite &= np.isfinite(_scaled(extremes, ranges.low, ranges.high, ranges.lower, ranges.upper)).all(axis=0)
    if not finite.all():
        worst = int(np.argmin(finite))
        got = f"got {extremes[0, worst]:g} ... {extremes[1, worst]:g} in feature {ranges.features[worst] + 1}"
        ends = f"{ranges.low[worst]:g} ... {ranges.high[worst]:g}"
        expected = f"expected values that scale from the feature's range {ends} to finite numbers"
        raise ValueError(f"{file}: scaling overflows: {got}, {expected}")


def _rows(X: Array, labels: Array, ranges: Ranges) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of scaled rows as svmlight text, each with the number of values that it has.

    Scaling may turn zeros of X into other values. Each row first gets these values in all columns where this happens.
    Then the row's stored values replace them. Zeros of the result are not written. ``ranges`` has no constant features.
    """
    import numpy as np

    lower, upper, features = ranges.lower, ranges.upper, ranges.features
    of_zero = _scaled(0.0, ranges.low, ranges.high, lower, upper)
    full = np.flatnonzero(of_zero)
    listed = np.append(features, -1)  # column numbers above the last feature are compared with -1, which is no column
    cells = X.indptr + np.arange(X.shape[0] + 1) * len(full)
    begin = 0
    while begin < X.shape[0]:
        end = max(begin + 1, int(np.searchsorted(cells, cells[begin] + _CELLS, "right")) - 1)
        part, count = slice(X.indptr[begin], X.indptr[end]), end - begin
        row = np.repeat(np.arange(count), np.diff(X.indptr[begin : end + 1]))
        column = np.searchsorted(features, X.indices[part])
        is_known = listed[column] == X.indices[part]
        row, column, values = row[is_known], column[is_known], X.data[part][is_known]
        values = _scaled(values, ranges.low[column], ranges.high[column], lower, upper)
        background = np.arange(count)[:, None] * len(features) + full
        keys = np.concatenate([row * len(features) + column, background.ravel()])
        values = np.concatenate([values, np.tile(of_zero[full], count)])
        # stored values come first, so np.unique drops the scaled zero at the position of a stored value
        keys, first = np.unique(keys, return_index=True)
        values = values[first]
        row, column = np.divmod(keys[values != 0], max(len(features), 1))
        ends = np.cumsum(np.bincount(row, minlength=count))
        yield _text(labels[begin:end], ends, features[column] + 1, values[values != 0]), len(row)
        begin = end


def _text(labels: Array, ends: Array, numbers: Array, values: Array) -> bytes:
    """Return lines ``label index:value ...`` with as many digits as svm-scale prints.

    ``numbers`` holds the feature numbers of all rows, from 1, one row after another. ``values`` holds the values. For
    each row ``ends`` has the position after its last value.
    """
    words: list[float] = [0] * (2 * len(values))
    words[::2], words[1::2] = numbers.tolist(), values.tolist()
    lines, begin = [], 0
    for label, end in zip(labels.tolist(), ends.tolist(), strict=True):
        lines.append(f"{label:.17g} " + "%d:%g " * (end - begin) % tuple(words[2 * begin : 2 * end]) + "\n")
        begin = end
    return "".join(lines).encode()


def _written(ranges: Ranges) -> Iterator[str]:
    """Yield the lines of the range file that holds ``ranges``."""
    if ranges.target is not None:
        yield "y\n{:.17g} {:.17g}\n{:.17g} {:.17g}".format(*ranges.target)
    yield f"x\n{ranges.lower:.17g} {ranges.upper:.17g}"
    for feature, low, high in zip(*(part.tolist() for part in ranges[2:5]), strict=True):
        yield f"{feature + 1} {low:.17g} {high:.17g}"


class _Line(NamedTuple):
    """Hold the words of a line of a range file, with the file's path and the line's number.

    A line without words stands for the end of the file.
    """

    path: str
    number: int
    words: list[bytes]

    def fail(self, got: str, expected: str) -> NoReturn:
        raise ValueError(f"{self.path}, line {self.number}: got {got}, expected {expected}")

    def shown(self) -> str:
        return repr(b" ".join(self.words)[:40].decode("utf-8", "replace")) if self.words else "the end of the file"

    def numbers(self, what: str, count: int, equal: bool = False) -> list[float]:
        """Return the ``count`` finite numbers of the line. Raises ValueError that says ``what`` was expected.

        The last number must not be smaller than the one before. The two may be equal only if ``equal`` is true.
        """
        from clsvm.models.svmlight import number

        try:
            values = [number(word) for word in self.words]
        except ValueError:
            values = []
        if len(values) != count or not all(map(math.isfinite, values)):
            self.fail(self.shown(), what)
        low, high = values[-2:]
        if high < low or (high == low and not equal):
            order = "the last not the smaller" if equal else "the last the larger"
            self.fail(f"{low:g} and {high:g}", f"{what}, {order}")
        return values


def _read(path: str) -> Ranges:
    """Read a range file that ``clsvm scale -s`` or svm-scale wrote. Raises ValueError that names a malformed line."""
    import numpy as np

    from clsvm.models.svmlight import MAX_INDEX, without_bom

    with files.bounded(open(path, "rb"), path, "a file of ranges") as stream:
        every = [line.split() for line in without_bom(stream)]
    filled = (_Line(path, number, words) for number, words in enumerate(every, 1) if words)
    lines = chain(filled, repeat(_Line(path, len(every) + 1, [])))
    target, line = None, next(lines)
    if line.words == [b"y"]:
        limits = next(lines).numbers("the targets' lower and upper limit", 2)
        target = *limits, *next(lines).numbers("the targets' minimum and maximum", 2, equal=True)
        line = next(lines)
    if line.words != [b"x"]:
        line.fail(line.shown(), "x" if target else "x or y")
    lower, upper = next(lines).numbers("the features' lower and upper limit", 2)
    spans, last = list[list[float]](), 0
    while (line := next(lines)).words:
        spans.append(line.numbers("a feature's number, minimum and maximum", 3, equal=True))
        number = spans[-1][0]
        if not (number == int(number) and last < number <= MAX_INDEX):
            line.fail(f"feature {number:.17g}" + f" after {last}" * bool(last), f"{last + 1} to {MAX_INDEX}, ascending")
        last = int(number)
    numbers, low, high = np.array(spans).reshape(-1, 3).T
    return Ranges(lower, upper, numbers.astype(np.int64) - 1, low, high, target)
