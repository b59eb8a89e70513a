"""The two families of errors: bad input is a ValueError or TypeError; what the machine refuses is a ClsvmError. And
how every part of the package warns."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

ROW = "{row}"  # in the words of a RowError
_NOT_THE_CALLER = ("clsvm", "importlib")  # (the package may warn while it is imported)


def warn(words: str, category: type[Warning] = UserWarning) -> None:
    """Warn of the line outside of the package that led here: the caller's, or that of a library between."""
    frame = sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_CALLER:
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__")
    warnings.warn_explicit(words, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


@contextmanager
def naming(parameter: str) -> Iterator[None]:
    """Raise a TypeError or ValueError of a check inside with the parameter's name in front, unless it is named."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if parameter in str(error):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{parameter}: {error}") from None


def install(extra: str) -> str:
    """How a user installs what ``extra`` brings: clsvm is on no package index, so from its own folder."""
    return f"pip install '.[{extra}]' in the folder of clsvm's source"


class ClsvmError(Exception):
    """A failure of the machine, not of the caller's input."""


class DeviceError(ClsvmError):
    """No platform, no usable device, several matches, or a device that ran out of memory."""


class HostMemoryError(MemoryError, ClsvmError):  # (in this order, which __new__ of MemoryError needs)
    """The system refused memory to this process. The message names the request, the nearest limit and a remedy."""


class BufferSizeError(DeviceError):
    """A buffer is larger than the device allows one to be."""


class MemoryLimitError(ValueError):
    """memory_limit is too small: what is held, and what the next buffer takes. More may be needed after it."""

    def __init__(self, limit: int, held: int, more: int) -> None:
        super().__init__(limit, held, more)

    def __str__(self) -> str:
        words = "memory_limit of {} bytes is too small: {} are in use and at least {} more are needed"
        return words.format(*self.args)


class RowError(ValueError):
    """A row has no computable value. ``words`` is the message, with ROW in place of the row's number."""

    def __init__(self, words: str, row: int) -> None:
        super().__init__(words, row)
        self.words, self.row = words, row

    def __str__(self) -> str:
        return self.words.replace(ROW, str(self.row))

    def moved(self, by: int) -> RowError:
        """Return the error where the rows before were not counted."""
        return RowError(self.words, self.row + by)


class RowTooLargeError(RowError):
    """The squared norm of a row is too large for the dtype of kernel values. where: the array, if it is not X."""

    def __init__(self, row: int, dtype: str, where: str = "") -> None:
        advice = " or take dtype='float64'" * (dtype == "float32")
        of, too = (f" of {where}", " and them") if where else ("", "")
        super().__init__(f"the squared norm of row {ROW}{of} is too large for {dtype}: scale X{too}{advice}", row)
        self.args = row, dtype, where
        self.dtype, self.where = dtype, where

    def moved(self, by: int) -> RowTooLargeError:
        return RowTooLargeError(self.row + by, self.dtype, self.where)


@contextmanager
def rows_of(where: str) -> Iterator[None]:
    """Raise a RowTooLargeError from inside with the name of the array that the row is of."""
    try:
        yield
    except RowTooLargeError as error:
        raise RowTooLargeError(error.row, error.dtype, where) from None


class CheckpointError(ClsvmError, ValueError):
    """A checkpoint is damaged, or of other data or parameters than the fit that was to go on from it."""


class BuildError(ClsvmError):
    """An OpenCL program did not build.

    Attributes: ``device`` (str), ``log`` (the compiler's words), ``source`` (the rendered text, lines numbered).
    """

    def __init__(self, device: str, log: str, source: str) -> None:
        super().__init__(device, log, source)
        self.device, self.log = device, log
        self.source = "\n".join(f"{i:4d} {line}" for i, line in enumerate(source.splitlines(), 1))

    def __str__(self) -> str:
        return f"building for {self.device} failed:\n{self.log}\n--- source ---\n{self.source}"
