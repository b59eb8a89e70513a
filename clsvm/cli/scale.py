"""``clsvm scale``: the features of a data file brought to one range, with the flags and the files of svm-scale.

Source: LIBSVM's README and what its svm-scale 3.24 reads and writes. A range file holds what was scaled from where to
where: ``x``, a line ``lower upper`` and a line ``index min max`` for each feature; for targets, above it, ``y``, a line
``lower upper`` and a line ``min max``. NumPy is imported where it is used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from clsvm.cli.common import READ, TEXT, WRITTEN, apart, reporting, require, warn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from scipy import sparse

    Floats = NDArray[np.float64]

_CELLS = 1 << 18  # values that are scaled and written at a time
_HIGHEST = 2**31 - 1  # of feature numbers: LIBSVM's are C ints
_SHOWN = 10  # features that a warning names


class Ranges(NamedTuple):
    """From where to where: all features to ``lower`` ... ``upper``, each from its ``low`` ... ``high``.

    features: (f,) column numbers from 0, ascending; low, high: (f,). Where they are equal, and in columns that are not
    listed, nothing is written. target: its lower, upper, low, high, or None: it stays.
    """

    lower: float
    upper: float
    features: NDArray[np.int64]
    low: Floats
    high: Floats
    target: tuple[float, float, float, float] | None


def scale(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(callback=READ, help=f"Data, {TEXT}.")],
    lower: Annotated[float, typer.Option("-l", help="What a feature's minimum becomes.")] = -1.0,
    upper: Annotated[float, typer.Option("-u", help="What a feature's maximum becomes.")] = 1.0,
    target: Annotated[
        tuple[str, str] | None,
        typer.Option("-y", metavar="LOWER UPPER", help="Scale the targets too, to these. Default: they stay."),
    ] = None,
    save: Annotated[
        str | None, typer.Option("-s", metavar="RANGES", callback=WRITTEN, help="Write minima and maxima there.")
    ] = None,
    restore: Annotated[
        str | None,
        typer.Option(
            "-r",
            metavar="RANGES",
            callback=READ,
            help="Scale as a file of -s or svm-scale says; its limits replace others.",
        ),
    ] = None,
) -> None:
    """``clsvm scale``: svm-scale's flags."""
    require("-l", lower, True, "a finite number")
    require("-u", upper, upper > lower, f"a number above {lower:g}, the lower limit")
    limits = None if target is None else _pair(target)
    if save is not None and restore is not None:
        raise typer.BadParameter("expected one of -s and -r, got both", param_hint="-s")
    with reporting(ctx):
        import numpy as np

        from clsvm import files
        from clsvm.models import svmlight

        apart([name for name in (file, restore) if name], [save] if save else [])
        if save is not None:
            files.check_writable(save)
        restored = None if restore is None else _read(restore)
        X, y = svmlight.read_problem(file)
        features, low, high = _extremes(X)
        varied = low != high
        goal = None if limits is None else (*limits, float(y.min()), float(y.max()))
        ranges = Ranges(lower, upper, features[varied], low[varied], high[varied], goal)
        if restored is not None:
            strange = np.setdiff1d(ranges.features, restored.features, assume_unique=True)
            if len(strange):
                warn(f"{restore} does not have {_named(strange)} of {file}: left out")
            ranges = restored if restored.target is not None else restored._replace(target=goal)
        live = ranges.low != ranges.high
        ranges = ranges._replace(features=ranges.features[live], low=ranges.low[live], high=ranges.high[live])
        labels = _labels(file, y, ranges)
        _check(file, ranges, features, low, high)
        if save is not None:
            _write(ranges, save)
        written = 0
        for text, values in _rows(X, labels, ranges):
            _print(text)
            written += values
        if written > X.nnz:
            hint = "" if restore is not None else "; where no value is negative, -l 0 keeps zeros as they are"
            warn(f"{written} values are not zero, {X.nnz} were in {file}{hint}")


def _pair(words: tuple[str, str]) -> tuple[float, float]:
    """The value of -y."""
    try:
        lower, upper = float(words[0]), float(words[1])
    except ValueError:
        got = " ".join(words)
        raise typer.BadParameter(f"got {got!r}, expected two numbers, such as 0 1", param_hint="-y") from None
    require("-y", lower, True, "two finite numbers")
    require("-y", upper, upper > lower, f"a second number above {lower:g}, the first")
    return lower, upper


def _print(text: bytes) -> None:
    """All of it: where Python's output is unbuffered, a write may take a part only. Raises OSError naming stdout."""
    rest = memoryview(text)
    try:
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from None


def _named(columns: NDArray[np.int64]) -> str:
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    words = ", ".join(str(column + 1) for column in columns[:_SHOWN].tolist())
    return f"feature{'s' * (len(columns) > 1)} {words}{more}"


def _extremes(X: sparse.csr_matrix) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Columns, ascending, all that have a value in X among them; their minima and maxima, absent values being 0."""
    import numpy as np
    from scipy import sparse

    if X.shape[1] > X.nnz:
        features, place = np.unique(X.indices, return_inverse=True)
    else:
        features, place = np.arange(X.shape[1]), X.indices
    if not len(features):
        return features, np.zeros(0), np.zeros(0)
    compact = sparse.csr_matrix((X.data, place, X.indptr), shape=(X.shape[0], len(features))).tocsc()
    low, high = (reduced.toarray().reshape(-1) for reduced in (compact.min(axis=0), compact.max(axis=0)))
    return features, low, high


def _scaled(values: Any, low: Any, high: Any, lower: float, upper: float) -> Floats:
    """Values from low ... high to lower ... upper; exactly these at the ends."""
    import numpy as np

    with np.errstate(all="ignore"):
        between = lower + (upper - lower) * (values - low) / (high - low)
    return np.where(values == low, lower, np.where(values == high, upper, between))


def _labels(file: str, y: Floats, ranges: Ranges) -> Floats:
    import numpy as np

    if ranges.target is None:
        return y
    lower, upper, low, high = ranges.target
    labels = _scaled(y, low, high, lower, upper)
    if not (math.isfinite((upper - lower) * (high - low)) and np.isfinite(labels).all()):
        worst = y[np.argmin(np.isfinite(labels))]
        raise ValueError(
            f"{file}: got target {worst:g}, expected targets that scale from {low:g} ... {high:g} to finite numbers"
        )
    return labels


def _check(file: str, ranges: Ranges, features: NDArray[np.int64], low: Floats, high: Floats) -> None:
    """Raise ValueError where a value overflows; ``low`` and ``high`` are the extremes of the data by ``features``."""
    import numpy as np

    reached = np.zeros((2, len(ranges.features)))
    _, here, there = np.intersect1d(ranges.features, features, assume_unique=True, return_indices=True)
    reached[:, here] = low[there], high[there]
    with np.errstate(all="ignore"):
        fine = np.isfinite((ranges.upper - ranges.lower) * (ranges.high - ranges.low))
    fine &= np.isfinite(_scaled(reached, ranges.low, ranges.high, ranges.lower, ranges.upper)).all(axis=0)
    if not fine.all():
        worst = int(np.argmin(fine))
        ends = f"{ranges.low[worst]:g} ... {ranges.high[worst]:g}"
        values = f"{reached[0, worst]:g} ... {reached[1, worst]:g}"
        raise ValueError(
            f"{file}: got {values} in feature {ranges.features[worst] + 1}, "
            f"expected values that scale from {ends} to finite numbers"
        )


def _rows(X: sparse.csr_matrix, labels: Floats, ranges: Ranges) -> Iterator[tuple[bytes, int]]:
    """Text of some rows, and how many values are in it; ``low`` and ``high`` of ``ranges`` differ everywhere.

    A column where 0 stays 0 is worked on as the sparse one that it is; the others are full.
    """
    import numpy as np

    lower, upper, features = ranges.lower, ranges.upper, ranges.features
    of_zero = _scaled(0.0, ranges.low, ranges.high, lower, upper)
    is_full = of_zero != 0
    full = np.flatnonzero(is_full)
    number = np.cumsum(is_full) - 1  # of a full column among its like
    listed = np.append(features, -1)  # what searchsorted finds last is nothing
    cells = X.indptr + np.arange(X.shape[0] + 1) * len(full)
    begin = 0
    while begin < X.shape[0]:
        end = max(begin + 1, int(np.searchsorted(cells, cells[begin] + _CELLS, "right")) - 1)
        part = slice(X.indptr[begin], X.indptr[end])
        row = np.repeat(np.arange(end - begin), np.diff(X.indptr[begin : end + 1]))
        column = np.searchsorted(features, X.indices[part])
        known = listed[column] == X.indices[part]
        row, column, values = row[known], column[known], X.data[part][known]
        values = _scaled(values, ranges.low[column], ranges.high[column], lower, upper)
        inside = is_full[column]
        dense = np.tile(of_zero[full], (end - begin, 1))
        dense[row[inside], number[column[inside]]] = values[inside]
        dense_row, dense_column = np.nonzero(dense)
        thin = ~inside & (values != 0)
        row = np.concatenate([row[thin], dense_row])
        column = np.concatenate([column[thin], full[dense_column]])
        values = np.concatenate([values[thin], dense[dense_row, dense_column]])
        order = np.argsort(row * len(features) + column, kind="stable")  # two sorted runs, which it merges
        ends = np.cumsum(np.bincount(row, minlength=end - begin))
        yield _text(labels[begin:end], ends, features[column[order]] + 1, values[order]), len(values)
        begin = end


def _text(labels: Floats, ends: NDArray[np.int64], numbers: NDArray[np.int64], values: Floats) -> bytes:
    """Lines ``label index:value ...``, in svm-scale's digits; ``ends`` says where each row's values end."""
    words: list[float] = [0] * (2 * len(values))
    words[::2], words[1::2] = numbers.tolist(), values.tolist()
    lines, begin = [], 0
    for label, end in zip(labels.tolist(), ends.tolist(), strict=True):
        lines.append(f"{label:.17g} " + "%d:%g " * (end - begin) % tuple(words[2 * begin : 2 * end]) + "\n")
        begin = end
    return "".join(lines).encode()


def _write(ranges: Ranges, path: str) -> None:
    from clsvm import files

    with files.atomic_write(path) as stream:
        if ranges.target is not None:
            stream.write("y\n{:.17g} {:.17g}\n{:.17g} {:.17g}\n".format(*ranges.target).encode())
        stream.write(f"x\n{ranges.lower:.17g} {ranges.upper:.17g}\n".encode())
        for feature, low, high in zip(*(part.tolist() for part in ranges[2:5]), strict=True):
            stream.write(f"{feature + 1} {low:.17g} {high:.17g}\n".encode())


def _read(path: str) -> Ranges:
    """A file of -s or svm-scale; a fault in it is a ValueError with the line."""
    from clsvm import files
    from clsvm.models.lines import unmarked

    with files.bounded(open(path, "rb"), path, "a file of ranges") as stream:
        return _ranges(_Lines(path, unmarked(stream)))


def _ranges(lines: _Lines) -> Ranges:
    """Return the ranges that the lines of a range file give. Raises ValueError that names the line."""
    import numpy as np

    lines.advance()
    target = None
    if lines.words == [b"y"]:
        ends = lines.pair("the targets' lower and upper limit", True)
        target = *ends, *lines.pair("the targets' minimum and maximum", False)
        lines.advance()
    if lines.words != [b"x"]:
        lines.fail(lines.shown(), "x" if target else "x or y")
    lower, upper = lines.pair("the features' lower and upper limit", True)
    found: list[tuple[int, float, float]] = []
    last = 0
    while lines.advance():
        index, low, high = lines.numbers("a feature's number, minimum and maximum", 3)
        if not (index == int(index) and last < index <= _HIGHEST):
            lines.fail(f"feature {index:.17g}" + f" after {last}" * bool(last), f"{last + 1} to {_HIGHEST}, ascending")
        if low > high:
            lines.fail(f"minimum {low:g} above maximum {high:g}", "a minimum and a maximum")
        last = int(index)
        found.append((last - 1, low, high))
    features = np.array([one[0] for one in found], dtype=np.int64)
    spans = np.array([one[1:] for one in found]).reshape(-1, 2)
    return Ranges(lower, upper, features, spans[:, 0], spans[:, 1], target)


class _Lines:
    """The lines of a range file that are not blank; ``number`` and ``words`` are those of the present one."""

    def __init__(self, path: str, lines: Iterable[bytes]) -> None:
        self.path, self.number, self.words = path, 0, list[bytes]()
        self._lines = enumerate(lines, 1)
        self._end = 0

    def advance(self) -> bool:
        for number, line in self._lines:
            self._end = number
            if words := line.split():
                self.number, self.words = number, words
                return True
        self.number, self.words = self._end + 1, []
        return False

    def fail(self, got: str, expected: str) -> NoReturn:
        raise ValueError(f"{self.path}, line {self.number}: got {got}, expected {expected}")

    def shown(self) -> str:
        return repr(b" ".join(self.words)[:40].decode("utf-8", "replace")) if self.words else "the end of the file"

    def numbers(self, what: str, count: int) -> list[float]:
        from clsvm.models.lines import number

        try:
            values = [number(word) for word in self.words]
        except ValueError:
            values = []
        if len(values) != count or not all(map(math.isfinite, values)):
            self.fail(self.shown(), what)
        return values

    def pair(self, what: str, apart: bool) -> tuple[float, float]:
        self.advance()
        first, second = self.numbers(what, 2)
        if second < first or (apart and second == first):
            self.fail(f"{first:g} and {second:g}", f"{what}, the second the larger")
        return first, second
