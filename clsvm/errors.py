"""Define the package's exceptions, and the function by which every module warns.

Invalid input raises ValueError or TypeError. A failure of device or computer raises a ClsvmError.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Function ``warn`` skips the stack frames of the following packages to find the caller.
# importlib is one of the skipped packages, because clsvm may also warn while Python imports clsvm.
_NOT_THE_CALLER = ("clsvm", "importlib")


def warn(words: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the line outside of clsvm from which the package was called."""
    frame = sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_CALLER:
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__")
    warnings.warn_explicit(words, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


@contextmanager
def naming(parameter: str) -> Iterator[None]:
    """Put the parameter's name before the message of a TypeError or ValueError that is raised in the context.

    A message that already contains the name stays unchanged.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if parameter in str(error):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{parameter}: {error}") from None


def install(extra: str) -> str:
    """Return a text with the pip command that installs the optional packages of the extra ``extra``, such as "plot".

    The command is to be run in the folder of clsvm's source, because no package index has clsvm.
    """
    return f"pip install '.[{extra}]' in the folder of clsvm's source"


class ClsvmError(Exception):
    """Report a failure of the device or computer, as opposed to invalid input."""


class DeviceError(ClsvmError):
    """Report that no usable OpenCL device was found, several devices match a name, or a device ran out of memory."""


# MemoryError must be the first base class of HostMemoryError, because MemoryError.__new__ has to create the instances.
class HostMemoryError(MemoryError, ClsvmError):
    """Report that the system refused memory to this process.

    The message names the request, the nearest limit and a remedy.
    """


class BufferSizeError(DeviceError):
    """Report that a buffer is larger than the largest buffer that the device allows."""


class MemoryLimitError(ValueError):
    """Report that memory_limit is too small for the next buffer. Buffers after it may need still more memory.

    limit: the memory_limit in bytes. allocated: bytes allocated so far. more: bytes of the next buffer.
    """

    def __init__(self, limit: int, allocated: int, more: int) -> None:
        super().__init__(limit, allocated, more)

    def __str__(self) -> str:
        words = "memory_limit of {} bytes is too small: {} are in use and at least {} more are needed"
        return words.format(*self.args)


class CheckpointError(ClsvmError, ValueError):
    """Report that a checkpoint is damaged, or belongs to other data or parameters than the fit that reads it."""


class BuildError(ClsvmError):
    """Report that an OpenCL program did not build.

    Attributes
    ----------
    device : str
        Name of the device.
    log : str
        Messages of the compiler.
    source : str
        Source text of the program with line numbers.
    """

    def __init__(self, device: str, log: str, source: str) -> None:
        super().__init__(device, log, source)
        self.device, self.log = device, log
        self.source = "\n".join(f"{i:4d} {line}" for i, line in enumerate(source.splitlines(), 1))

    def __str__(self) -> str:
        return f"building for {self.device} failed:\n{self.log}\n--- source ---\n{self.source}"
