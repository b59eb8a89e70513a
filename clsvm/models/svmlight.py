"""Data in svmlight text, LIBSVM's format: one row a line, columns numbered from 1.

A fault in a file is a ValueError of the form ``FILE, line N: got ..., expected ...``; what the system refuses is an
OSError.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from clsvm import arrays
from clsvm.files import NotTextError, PathLike, bounded
from clsvm.models.model import KernelModel
from clsvm.system import available, explained

MARK = b"\xef\xbb\xbf"  # UTF-8's byte order mark, which some editors write at the beginning of a file
_BLOCK = 1 << 17  # bytes that are looked at together
_GAP = re.compile(rb":[ \t]+(?=[^ \t\r\n])")
_HEXADECIMAL = re.compile(rb"(?<![^\s:])[-+]?0[xX][0-9a-fA-F.]+(?:[pP][-+]?\d+)?(?!\S)")
T = TypeVar("T", int, float)
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)  # what a damaged stream raises
WORD = re.compile(rb"\S+")
HIGHEST = 2**31 - 1  # of feature numbers and labels: LIBSVM's are C ints
_ROWS = "X", "X_train"  # the rows in an archive of several arrays
_SCIPY = {"format", "shape", "data"}  # what scipy.sparse.save_npz writes, beside the indices
_ARCHIVE_DAMAGE = (zipfile.BadZipFile, ValueError, EOFError, KeyError, OverflowError, struct.error)


class Lines:
    """The lines of a binary stream, each with single words ``index:value`` and decimal numbers.

    number: how many lines stand above the first one. Iterate once. :meth:`at` says where the iteration stands.
    """

    def __init__(self, stream: BinaryIO, number: int = 0) -> None:
        self._stream, self._above = stream, number
        self._block, self._text = b"", io.BytesIO()

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._blocks())  # (no Python code runs for each line)

    def _blocks(self) -> Iterator[Iterable[bytes]]:
        while block := self._stream.read(_BLOCK):
            self._above += self._block.count(b"\n")
            self._block = block = block + self._stream.readline()
            if not self._above:
                block = block.removeprefix(MARK)
            self._text = io.BytesIO(plain(block).replace(b"_", b"__"))  # (Python's float refuses two underscores)
            yield self._text

    def read(self) -> bytes:
        """Return all lines. scikit-learn takes an object with this method for an open file."""
        return b"".join(self)

    def at(self) -> tuple[int, bytes]:
        """Return the number of the last line that was iterated over, and the line as it stands in the stream."""
        count = self._text.getvalue()[: self._text.tell()].count(b"\n")
        count += self._text.tell() == len(self._text.getvalue()) and not self.complete
        line = next(iter(self._block.split(b"\n", count)[max(0, count - 1) : count]), b"")
        return self._above + count, line.removeprefix(MARK)

    @property
    def complete(self) -> bool:
        """Return whether the last block ends with a line break."""
        return self._block.endswith(b"\n")


def unmarked(stream: BinaryIO) -> Iterator[bytes]:
    """Return the lines of a file, the first one without a byte order mark."""
    first = stream.readline().removeprefix(MARK)
    return chain([first] if first else [], stream)


def plain(text: bytes) -> bytes:
    """Return text without white space between colons and values, and with decimal in place of hexadecimal numbers."""
    octets = np.frombuffer(text, np.uint8)
    if ((octets[:-1] == ord(":")) & (octets[1:] <= ord(" "))).any():  # (an expression over all lines takes longer)
        text = _GAP.sub(b":", text)
    return _HEXADECIMAL.sub(_decimal, text) if b"x" in text or b"X" in text else text


def _decimal(match: re.Match[bytes]) -> bytes:
    try:
        return repr(float.fromhex(match[0].decode())).encode()
    except OverflowError:
        return b"inf"
    except ValueError:
        return match[0]


def number(word: bytes) -> float:
    """Return the number that a word says in C's form. Raise ValueError for any other word."""
    if b"_" in word:
        raise ValueError(f"got {word!r}, expected a number without underscores")
    return float(plain(word))


# Data


def read_problem(path: PathLike, n_features: int | None = None) -> tuple[sparse.csr_matrix, NDArray[np.float64]]:
    """Read a data file: lines ``label index:value index:value ...``, plain or compressed (.gz, .bz2, .xz).

    Indices ascend from 1 in each row; an index 0 is an error (scikit-learn's load_svmlight_file reads such files;
    svm-train takes it for one more feature, but does not count that where gamma is 1 / number of features). Blank
    lines, ``# comments`` and svmlight's ``qid:`` are passed over. White space may follow a colon, numbers may be
    hexadecimal, and the file may begin with a byte order mark (:mod:`clsvm.models.svmlight`). Returns X, CSR (n, d) of
    float64 with sorted int32 indices, and y (n,) float64. d is ``n_features``, or the highest index in the file;
    with ``n_features`` given a higher index is an error.

    Raises OSError (cannot be opened) and ValueError (anything wrong inside, with its line).
    """
    return _read(path, n_features)


def _read(path: PathLike, n_features: int | None, lowest: int = 1) -> tuple[sparse.csr_matrix, NDArray[np.float64]]:
    """Read a data file whose first column is ``lowest``."""
    with explained(f"reading {path}"), _open(path) as stream:
        lines = Lines(stream)
        try:
            return load(lines, n_features, lowest)
        except NotTextError:
            raise
        except (ValueError, OverflowError, *_DAMAGE) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            cause = str(error)
    raise ValueError(diagnose(path, n_features, cause, lines.at(), lowest=lowest))


def read_rows(path: PathLike, n_features: int | None = None) -> Any:
    """Return the rows of a file, (n, d): dense of a .npy, or of X, X_train or the only matrix of a .npz; CSR of what
    scipy.sparse.save_npz writes, and of svmlight text, as :func:`read_problem` reads it.

    n_features: d, where svmlight text has its last columns empty. Raises OSError and ValueError, which names the file.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".npz"):
        return read_problem(path, n_features)[0]
    try:
        with explained(f"reading {path}"):
            X = _archived(path) if suffix == ".npz" else np.load(path, allow_pickle=False)
    except _ARCHIVE_DAMAGE as error:
        raise ValueError(f"{path}: got {str(error)[:300]}, expected numbers as NumPy or SciPy write them") from None
    if X.ndim != 2 or X.dtype.kind not in "biuf":
        raise ValueError(f"{path}: got an array of {X.dtype} with the shape {X.shape}, expected rows of numbers")
    if n_features is not None and n_features != X.shape[1]:
        raise ValueError(f"{path}: got {X.shape[1]} columns, expected {n_features}, the number of features")
    return X


def _archived(path: PathLike) -> Any:
    """Return the rows of an archive of arrays. Raises ValueError where it has several matrices, none of them named."""
    with np.load(path, allow_pickle=False) as archive:
        if set(archive.files) >= _SCIPY:
            return sparse.load_npz(path)
        named = [name for name in _ROWS if name in archive.files][:1]
        found = named or [name for name in archive.files if archive[name].ndim == 2]
        if len(found) != 1:
            names = ", ".join(archive.files)
            raise ValueError(f"the arrays {names}, and none is called {' or '.join(_ROWS)}")
        return archive[found[0]]


def read_kernel(
    path: PathLike, numbered: bool = True, dense: bool = True
) -> tuple[NDArray[np.intp], Any, NDArray[np.float64]]:
    """Read a data file of kernel values: lines ``label 0:serial 1:K(x, x_1) 2:K(x, x_2) ...`` (LIBSVM's -t 4).

    Returns the columns (n,) that belong to the rows, serial - 1; K (n, columns) float64, CSR unless it is to be
    ``dense``; y (n,) float64. What a row does not say is 0. Raises OSError and ValueError as :func:`read_problem`, also
    for a serial number that is no column, unless the rows are not ``numbered``: those of a test may have any. Raises
    ValueError for a dense K that is larger than the free memory.
    """
    X, y = _read(path, None, 0)
    serials, width = arrays.picked(X, np.zeros(1, np.intp))[:, 0], X.shape[1] - 1
    wrong = np.flatnonzero(~((serials >= 1) & (serials == np.rint(serials)) & (serials <= max(width, 1))))
    if len(wrong) and numbered:
        expected = f"a row that begins with 0:serial, a whole number from 1 to {width}, the number of kernel values"
        raise ValueError(f"{path}, line {_line(path, int(wrong[0]))}: got 0:{serials[wrong[0]]:g}, expected {expected}")
    K = X[:, 1:]
    free = available()
    if dense and free is not None and 8 * K.shape[0] * width > free:
        row = int(np.searchsorted(X.indptr, int(X.indices.argmax()), "right")) - 1
        raise ValueError(
            f"{path}, line {_line(path, row)}: got index {width}, expected at most {free // (8 * K.shape[0])}: a dense "
            f"array of {K.shape[0]} rows holds so many kernel values in the {free} bytes that are free"
        )
    return serials.astype(np.intp) - 1, K.toarray() if dense else K, y


def _line(path: PathLike, row: int) -> int:
    """Return the number of the line on which a row of a file stands."""
    if not os.path.isfile(path):  # a pipe cannot be read twice: blank lines do not count
        return row + 1
    with _open(path) as stream:
        filled = (number for number, line in enumerate(stream, 1) if line.partition(b"#")[0].strip())
        return next(islice(filled, row, None), 0)


def match_columns(model: KernelModel, X: sparse.csr_matrix) -> tuple[KernelModel, sparse.csr_matrix]:
    """Give ``model`` and ``X`` (n, d) the same number of columns, by zeros, as svm-predict understands its files.

    LIBSVM's model files do not hold d: a feature that no support vector has is not in them.
    """
    width, vectors, plan = max(X.shape[1], model.support_vectors.shape[1]), model.support_vectors, model.plan
    if vectors.shape[1] < width:
        if plan is not None:
            partition = plan.partition and plan.partition.widened(width)
            plan = replace(plan, centre=np.pad(plan.centre, (0, width - len(plan.centre))), partition=partition)
        model = replace(model, support_vectors=arrays.widened(sparse.csr_matrix(vectors), width), plan=plan)
    return model, X if X.shape[1] == width else arrays.widened(X, width)


def _open(path: PathLike) -> BinaryIO:
    opener = _OPENERS.get(Path(path).suffix.lower(), open)
    return bounded(cast(BinaryIO, opener(path, "rb")), path)


def load(lines: Lines, n_features: int | None, lowest: int = 1) -> tuple[sparse.csr_matrix, NDArray[np.float64]]:
    """Read all rows by scikit-learn's compiled reader. Its errors name no line: see :func:`diagnose`."""
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(lines, n_features=n_features, zero_based=not lowest)
    if not (len(y) and np.isfinite(y).all() and np.isfinite(X.data).all() and X.shape[1] <= HIGHEST):
        raise ValueError("no rows, or a number that is not finite, or an index too high")
    small = np.int32 if X.nnz <= HIGHEST else np.int64
    parts = X.data, X.indices.astype(np.int32, copy=False), X.indptr.astype(small, copy=False)
    return sparse.csr_matrix(parts, shape=X.shape), y


def diagnose(
    path: PathLike,
    n_features: int | None,
    cause: str,
    at: tuple[int, bytes],
    skip: int = 0,
    first: str = "label",
    count: int = 1,
    lowest: int = 1,
) -> str:
    """Say the first fault of the file after ``skip`` lines in words: only run once the fast reader has failed.

    at: the number of the line at which it failed, and the line. A row begins with ``count`` numbers, which are called
    ``first``."""
    rows, number = 0, skip
    if not os.path.isfile(path):  # a pipe cannot be read twice
        fault = _fault(at[1], n_features, first, count, lowest)
        return f"{path}, line {at[0]}: {fault}" if fault else f"{path}: {cause}"
    with _open(path) as stream:
        try:
            for number, line in enumerate(unmarked(stream), 1):
                if number <= skip:
                    continue
                if fault := _fault(line, n_features, first, count, lowest):
                    return f"{path}, line {number}: {fault}"
                rows += bool(line.partition(b"#")[0].strip())
        except _DAMAGE as error:
            return f"{path}, line {number + 1}: got a damaged or truncated stream ({error}), expected compressed text"
    if not rows:
        return f"{path}, line {number + 1}: got the end of the file and no rows, expected '{first} index:value ...'"
    return f"{path}: {cause}"


def _fault(line: bytes, n_features: int | None, first: str, count: int, lowest: int) -> str | None:
    words = (match[0] for match in WORD.finditer(plain(line.partition(b"#")[0])))
    numbers = list(islice(words, count))
    for word in numbers:
        if not _finite(word):
            hint = f" (lines are '{first} index:value ...', without commas)" if b"," in word else ""
            return f"got {first} {shown(word)}, expected a finite number{hint}"
    if numbers and len(numbers) < count:
        return f"got {len(numbers)} numbers ({first}s), expected {count}"
    last = lowest - 1
    for position, word in enumerate(words):
        index, colon, value = word.partition(b":")
        if position == 0 and index == b"qid" and colon:
            continue
        index = index.removeprefix(b"+")
        if not (colon and index.isdigit()):
            return f"got {shown(word)}, expected index:value"
        highest = HIGHEST - (not lowest)  # (column 0 is one more)
        if not (len(index.lstrip(b"0")) <= len(str(HIGHEST)) and lowest <= int(index) <= highest):
            hint = "; zero_based=False has scikit-learn's dump_svmlight_file write so" if not index.strip(b"0") else ""
            told = f"columns are numbered from {lowest}{hint}"
            return f"got index {shown(index)}, expected {lowest} to {highest} ({told})"
        if int(index) <= last:
            return f"got index {int(index)} after {last}, expected ascending indices, each once"
        if n_features is not None and int(index) > n_features:
            return f"got index {int(index)}, expected at most {n_features}, the number of features"
        if not _finite(value):
            return f"got value {shown(value)} of index {int(index)}, expected a finite number"
        last = int(index)
    return None


def _finite(word: bytes) -> bool:
    try:
        return bool(np.isfinite(number(word)))
    except ValueError:
        return False


def shown(word: bytes) -> str:
    """Return a word of a file as an error shows it."""
    return repr(word[:40].decode("utf-8", "replace"))
