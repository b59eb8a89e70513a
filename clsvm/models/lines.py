"""Lines of svmlight text as LIBSVM's programs read them. A stream is read once, so that it may be a pipe.

scikit-learn's compiled reader takes words that are separated by white space, and Python's numbers. LIBSVM's programs
take C's: white space between a colon and its value, and hexadecimal numbers. Python's underscores are no part of C's.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO

import numpy as np

MARK = b"\xef\xbb\xbf"  # UTF-8's byte order mark, which some editors write at the beginning of a file
_BLOCK = 1 << 17  # bytes that are looked at together
_GAP = re.compile(rb":[ \t]+(?=[^ \t\r\n])")
_HEXADECIMAL = re.compile(rb"(?<![^\s:])[-+]?0[xX][0-9a-fA-F.]+(?:[pP][-+]?\d+)?(?!\S)")


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
