"""Read data files in svmlight text, which is LIBSVM's format: one row in each line, columns numbered from 1.

scikit-learn's compiled reader parses the lines. :class:`Lines` first rewrites lines that scikit-learn would not
understand. If scikit-learn's reader fails, :func:`diagnose` reads the file again to find the first wrong line.

A damaged file raises ValueError with the message ``FILE, line N: got ..., expected ...``. A failed system call raises
OSError.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from clsvm import arrays
from clsvm.files import PathLike, text_stream
from clsvm.models.model import KernelModel
from clsvm.system import explained

_BLOCK = 1 << 17  # lines are read and normalized in blocks of about this many bytes
_GAP = re.compile(rb":[ \t]+(?=[^ \t\r\n])")
_UNDERSCORE = re.compile(rb"^[^#\n]*_", re.MULTILINE)
T = TypeVar("T", int, float)
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)  # errors that reading a damaged compressed file raises
WORD = re.compile(rb"\S+")
_LONGEST = 20  # a feature number with this many digits or more, counting leading zeros, is an error
MAX_INDEX = 2**31 - 1  # largest feature number and largest label, which are C ints in LIBSVM


class Lines:
    """Iterate once over the lines of a binary stream of svmlight text, and remove white space after colons.

    White space after a colon is removed because scikit-learn's reader does not accept it. The attribute ``complete`` is
    false if the last line that was read does not end with a line break.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.complete = stream, True

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._blocks())  # chain is fast, because no Python code runs for each line

    def _blocks(self) -> Iterator[Iterable[bytes]]:
        while block := self._stream.read(_BLOCK):
            block += self._stream.readline()
            self.complete = block.endswith(b"\n")
            if b"_" in block and _UNDERSCORE.search(block):  # Python would read the number 1_0 as 10
                raise ValueError("got '_' outside of a comment")
            yield io.BytesIO(normalized(block))

    def read(self) -> bytes:
        """Return all lines joined. scikit-learn accepts an object with this method as an open file."""
        return b"".join(self)


def normalized(text: bytes) -> bytes:
    """Return svmlight text with white space after colons removed."""
    octets = np.frombuffer(text, np.uint8)
    # Test first whether white space follows any colon, because the regular expression takes longer than this test.
    if ((octets[:-1] == ord(":")) & (octets[1:] <= ord(" "))).any():
        text = _GAP.sub(b":", text)
    return text


# Data


def read_problem(path: PathLike, n_features: int | None = None) -> tuple[sparse.csr_matrix, NDArray[np.float64]]:
    """Read a data file in svmlight text: lines ``label index:value index:value ...``.

    An index is the number of a column, from 1. In each row indices must ascend. The index 0 is an error; files whose
    columns are numbered from 0 can be read by scikit-learn's load_svmlight_file. Blank lines, ``# comments`` and
    svmlight's ``qid:`` are skipped. White space may follow a colon.

    Parameters
    ----------
    path : str or path
        Name of the file. A name that ends in .gz, .bz2 or .xz means a compressed file.
    n_features : int or None
        Number of columns d. A higher index is an error. If it is None, d is the highest index in the file.

    Returns
    -------
    X : CSR (n, d)
        Rows, float64 with sorted int32 indices.
    y : array of float64 (n,)
        Labels or targets.

    Raises
    ------
    ValueError
        If a line is wrong. The message names the line, what was read and what was expected.
    OSError
        If the file cannot be opened.
    """
    return _read(path, Form(n_features))


def _read(path: PathLike, form: Form) -> tuple[sparse.csr_matrix, NDArray[np.float64]]:
    """Read a data file in svmlight text, and return X and y."""
    with explained(f"reading {path}"), _open(path) as stream:
        try:
            return load(Lines(stream), form)
        except (ValueError, OverflowError, *_DAMAGE) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            cause = str(error)
        raise ValueError(diagnose(path, stream, form, cause))


def read_kernel(
    path: PathLike, numbered: bool = True, dense: bool = True
) -> tuple[NDArray[np.intp], Any, NDArray[np.float64]]:
    """Read a data file of kernel values, as LIBSVM takes it for ``-t 4``.

    The lines are ``label 0:serial 1:K(x, x_1) 2:K(x, x_2) ...``, where serial is the number of the row x.

    Parameters
    ----------
    path : str or path
        Name of the file.
    numbered : bool
        Whether each serial number must be the number of a column of K, as in training data. Test data may have any
        serial numbers.
    dense : bool
        Whether to return K as a dense array instead of CSR.

    Returns
    -------
    columns : array of int (n,)
        Column of K that belongs to each row, counted from 0: the serial number minus 1.
    K : array or CSR of float64 (n, columns)
        Kernel values. A value that a line leaves out is 0.
    y : array of float64 (n,)
        Labels or targets.

    Raises
    ------
    ValueError
        If a line is wrong (:func:`read_problem`), or if ``numbered`` is true and a serial number is not the number of a
        column.
    OSError
        If the file cannot be opened.
    """
    X, y = _read(path, Form(lowest=0))
    serials, width = arrays.gathered_columns(X, np.zeros(1, np.intp))[:, 0], X.shape[1] - 1
    invalid = np.flatnonzero(~((serials >= 1) & (serials == np.rint(serials)) & (serials <= max(width, 1))))
    if len(invalid) and numbered:
        row = int(invalid[0])
        got = f"got serial number {serials[row]:g} (the value of index 0)"
        expected = f"expected a whole number from 1 to {width}, the number of kernel values of a row"
        raise ValueError(f"{path}, row {row + 1}: {got}, {expected}")
    K = X[:, 1:]
    return serials.astype(np.intp) - 1, K.toarray() if dense else K, y


def match_columns(model: KernelModel, X: sparse.csr_matrix) -> tuple[KernelModel, sparse.csr_matrix]:
    """Add columns of zeros to a model's support vectors or to the rows X, until both have equally many columns.

    svm-predict takes missing columns as zeros, too. LIBSVM's model files do not hold the number of features. Therefore
    a model read from such a file lacks the last features if they are zero in all support vectors.

    Parameters
    ----------
    model : KernelModel
        Model that :func:`load_model` read.
    X : CSR (n, d)
        Rows to predict.

    Returns
    -------
    model : KernelModel
        The model, with columns of zeros added to its support vectors if X has more columns.
    X : CSR
        The rows, with columns of zeros added if the support vectors have more columns.
    """
    width, vectors, plan = max(X.shape[1], model.support_vectors.shape[1]), model.support_vectors, model.plan
    if vectors.shape[1] < width:
        if plan is not None:
            partition = plan.partition and plan.partition.widened(width)
            plan = replace(plan, centre=np.pad(plan.centre, (0, width - len(plan.centre))), partition=partition)
        model = replace(model, support_vectors=arrays.widened(sparse.csr_matrix(vectors), width), plan=plan)
    return model, X if X.shape[1] == width else arrays.widened(X, width)


def _open(path: PathLike) -> BinaryIO:
    opener = _OPENERS.get(Path(path).suffix.lower())
    return cast(BinaryIO, opener(path, "rb")) if opener else text_stream(open(path, "rb"), path)


class Form(NamedTuple):
    """Describe the form of a file's lines: a label or other numbers, then index:value for each feature.

    Attributes
    ----------
    n_features
        number of columns; None to take the highest index in the file.
    lowest
        index of the first column, 0 or 1.
    first
        word by which error messages call the numbers at the start of a line, such as "label".
    numbers
        count of the numbers at the start of a line.
    """

    n_features: int | None = None
    lowest: int = 1
    first: str = "label"
    numbers: int = 1


def load(lines: Lines, form: Form) -> tuple[sparse.csr_matrix, NDArray[np.float64]]:
    """Return the rows X (n, d) and labels y (n,) in ``lines``, read by scikit-learn's compiled reader.

    Each line begins with one number, the label. A wrong line raises ValueError. The message does not say which line is
    wrong; :func:`diagnose` finds the line.
    """
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(lines, n_features=form.n_features, zero_based=not form.lowest)
    if not (len(y) and np.isfinite(y).all() and np.isfinite(X.data).all() and X.shape[1] <= MAX_INDEX):
        raise ValueError(f"expected at least one row, only finite numbers, and no feature index above {MAX_INDEX}")
    small = np.int32 if X.nnz <= MAX_INDEX else np.int64
    parts = X.data, X.indices.astype(np.int32, copy=False), X.indptr.astype(small, copy=False)
    return sparse.csr_matrix(parts, shape=X.shape), y


def diagnose(path: PathLike, stream: BinaryIO, form: Form, cause: str, skip: int = 0) -> str:
    """Return an error message that names the first wrong line of a file, after :func:`load` has failed.

    The lines of ``stream`` are read again, except for the first ``skip`` lines. If no line is found wrong, the message
    is ``cause``, the message of :func:`load`.
    """
    rows, number = 0, skip
    try:
        stream.seek(0)
        for number, line in enumerate(islice(stream, skip, None), skip + 1):
            if fault := _fault(line, form):
                return f"{path}, line {number}: {fault}"
            rows += bool(line.partition(b"#")[0].strip())
    except io.UnsupportedOperation:  # a compressed file from a pipe cannot be read again
        return f"{path}: {cause}"
    except _DAMAGE as error:
        return f"{path}, line {number + 1}: got a damaged or truncated stream ({error}), expected compressed text"
    if not rows:
        got = "the end of the file and no rows"
        return f"{path}, line {number + 1}: got {got}, expected '{form.first} index:value ...'"
    return f"{path}: {cause}"


def _fault(line: bytes, form: Form) -> str | None:
    n_features, lowest, first, count = form
    words = (match[0] for match in WORD.finditer(normalized(line.partition(b"#")[0])))
    numbers = list(islice(words, count))
    for word in numbers:
        if not _finite(word):
            hint = f" (lines are '{first} index:value ...', without commas)" if b"," in word else ""
            return f"got {first} {shown(word)}, expected a finite number{hint}"
    if numbers and len(numbers) < count:
        return f"got {len(numbers)} numbers ({first}s), expected {count}"
    last, highest = lowest - 1, MAX_INDEX - (not lowest) if n_features is None else n_features
    for position, word in enumerate(words):
        index, _, value = word.partition(b":")
        if position == 0 and index == b"qid":
            continue
        number = int(index) if index.removeprefix(b"+").isdigit() and len(index) < _LONGEST else -1
        if not (last < number <= highest and _finite(value)):
            expected = f"index:value with an index from {last + 1} to {highest} and a finite value"
            return f"got {shown(word)}, expected {expected} (columns are numbered from {lowest})"
        last = number
    return None


def _finite(word: bytes) -> bool:
    try:
        return b"_" not in word and math.isfinite(float(word))
    except ValueError:
        return False


def shown(word: bytes) -> str:
    """Return the first 40 bytes of a word for an error message, in quotes."""
    return repr(word[:40].decode("utf-8", "replace"))
