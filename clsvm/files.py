"""Write files atomically, read text files of bounded line length, and check who else can change a file.

:func:`atomic_write` writes a temporary file in the target's folder, then renames it to the target. :func:`bounded`
rejects binary files before a line fills the memory. :func:`private_folder` and :func:`exposed` protect the files that
clsvm caches, such as compiled programs.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

if sys.platform != "win32":
    import fcntl
    import grp
    import pwd

PathLike = str | os.PathLike[str]
_BLOCK = 1 << 16  # bytes read at a time
LONGEST = 1 << 28  # most bytes of a line of text: a row of about 20 million entries
_NUMPY = b"\x93NUMPY", b"PK\x03\x04"  # first bytes of .npy and .npz files
_PREFIX, _SUFFIX = ".clsvm-", ".tmp"  # parts of the names of temporary files


@contextlib.contextmanager
def atomic_write(path: PathLike) -> Iterator[BinaryIO]:
    """Yield a binary file for writing that appears at ``path`` only when it is complete.

    After an error, Ctrl-C or a full disk, the old file is unchanged. A symbolic link stays, and its target is replaced.
    A pipe or device such as /dev/stdout is written directly. Temporary files of killed processes in the folder are
    deleted. Raises OSError that names ``path``.
    """
    target = _replaceable(path)
    with _naming(path):
        if target is None:
            with open(path, "wb") as direct:
                yield direct
            return
        with _scratch(target) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if target.exists():
                shutil.copymode(target, stream.name)
            if sys.platform == "win32":  # Windows cannot rename an open file
                stream.close()
            os.replace(stream.name, target)


def check_writable(path: PathLike) -> None:
    """Raise the OSError that :func:`atomic_write` would raise for ``path``, before a long computation starts."""
    if (target := _replaceable(path)) is not None:
        with _naming(path), _scratch(target):
            pass


class NotTextError(ValueError):
    """A file is not text; the message names the line, the bytes got and the contents expected."""


def bounded(stream: BinaryIO, path: PathLike, kind: str = "svmlight text", begun: bytes = b"") -> BinaryIO:
    """Return a buffered reader of ``stream`` whose reads raise NotTextError for a file that is not text.

    Three kinds of file are not text: .npy and .npz files, files with zero bytes in a line of more than _BLOCK bytes,
    and files with a line of more than LONGEST bytes. So a caller that reads lines needs bounded memory.

    path, kind: name of the file and expected contents, for errors. begun: first bytes of the file if they were already
    read from ``stream``; the reader returns them first.
    """
    return cast(BinaryIO, io.BufferedReader(_Bounded(stream, path, kind, begun), _BLOCK))


class _Bounded(io.RawIOBase):
    """Check the bytes of a stream for :func:`bounded`; count lines, and the bytes since the last line break."""

    def __init__(self, stream: BinaryIO, path: PathLike, kind: str, begun: bytes) -> None:
        self._stream, self._path, self._kind, self._begun = stream, path, kind, begun
        self._line, self._length = 1, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        some = self._begun + self._stream.read(len(buffer) - len(self._begun))
        self._begun = b""
        if self._line == 1 and not self._length and some.startswith(_NUMPY):
            got = "a file of NumPy's or a zip archive"
            raise NotTextError(f"{self._path}: got {got}, expected {self._kind}")
        end = some.rfind(b"\n")
        self._line += some.count(b"\n")
        self._length = len(some) - end - 1 if end >= 0 else self._length + len(some)
        if self._length > _BLOCK and b"\0" in some:
            self._refuse("zero bytes in a long line", self._kind)
        if self._length > LONGEST:
            self._refuse(f"more than {LONGEST} bytes without a line break", "a shorter line")
        buffer[: len(some)] = some
        return len(some)

    def _refuse(self, got: str, expected: str) -> NoReturn:
        raise NotTextError(f"{self._path}, line {self._line}: got {got}, expected {expected}")

    def close(self) -> None:
        self._stream.close()
        super().close()


@contextlib.contextmanager
def _naming(path: PathLike) -> Iterator[None]:
    """Name ``path`` in an OSError raised inside, if the error names no file or the temporary file."""
    try:
        yield
    except OSError as error:
        named = None if error.filename is None else os.path.basename(os.fsdecode(error.filename))
        if error.errno is None or not (named is None or named.startswith(_PREFIX)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[BinaryIO]:
    """Yield a new temporary file in the folder of ``target``; delete it at the end unless it was renamed.

    The file is locked while it is open, so that other processes do not delete it.
    """
    _sweep(target.parent)
    stream = _new(target)
    try:
        with stream:
            yield stream
    finally:
        Path(stream.name).unlink(missing_ok=True)


def _new(target: Path) -> BinaryIO:
    while True:
        stream = open(target.with_name(f"{_PREFIX}{os.urandom(8).hex()}{_SUFFIX}"), "xb")  # noqa: SIM115
        if sys.platform != "win32":
            with contextlib.suppress(OSError):  # a file system without locks needs none: _sweep deletes nothing there
                fcntl.flock(stream, fcntl.LOCK_EX)
        if os.path.exists(stream.name):
            return stream
        stream.close()  # another process deleted the file before it was locked


def _sweep(folder: Path) -> None:
    """Delete temporary files of killed processes: files that no process has locked (on Windows: has open)."""
    for left in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                left.unlink()
                continue
            with open(left, "rb+") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


def _replaceable(path: PathLike) -> Path | None:
    """Return the real path of ``path`` if a rename can replace it; None for a pipe or device.

    Raises OSError if the folder is missing, or ``path`` is a folder or not writable.
    """
    resolved = Path(os.path.realpath(path))
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if resolved.parent.is_dir():
            return resolved
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", os.fspath(path)) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    special = not stat.S_ISREG(mode) or os.fspath(path).startswith(("/dev/", "/proc/"))
    return None if special else resolved


def private_folder(path: PathLike) -> None:
    """Make a folder and its missing parents with access for this user alone. Raises OSError."""
    target = Path(path)
    for folder in (*reversed(target.parents), target):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def exposed(path: PathLike) -> str:
    """Return a sentence on who else can change the file at ``path``; "" if only this user and root can.

    Each folder above ``path`` is checked, too, since its owner and users with write access can replace its contents.
    In a folder with the sticky bit only a file's owner can. On Windows the result is always "". Raises OSError if
    ``path`` is missing.
    """
    given, real = Path(os.path.abspath(path)), Path(os.path.realpath(path))
    above = {place for one in (given, real) for place in one.parents}
    found = (changed_by_others(place, place in above) for place in sorted({given, real} | above))
    return next(filter(None, found), "")


def changed_by_others(path: Path, above: bool = False) -> str:
    """Return a sentence on who else owns or can write to one file or folder; "" if nobody can.

    above: whether ``path`` is a folder above the checked file. Others may write to such a folder if its sticky bit is
        set, since they cannot rename or delete the files of its other users.
    """
    if sys.platform == "win32":
        return ""
    found = path.lstat()
    if found.st_uid not in (os.geteuid(), 0) and not (above and found.st_uid == _unmapped()):
        return f"{str(path)!r} belongs to user {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or (above and found.st_mode & stat.S_ISVTX):
        return ""
    if found.st_mode & stat.S_IWOTH:
        return f"all users can write to {str(path)!r}"
    if found.st_mode & stat.S_IWGRP and not _own_group(found.st_gid, os.geteuid()):
        return f"group {found.st_gid} can write to {str(path)!r}"
    return ""


@cache
def _unmapped() -> int | None:
    """Return the user id that files of unmapped users have inside a user namespace; None outside of one."""
    try:
        mapped = Path("/proc/self/uid_map").read_text().split()
        return None if mapped == ["0", "0", str(2**32 - 1)] else int(Path("/proc/sys/kernel/overflowuid").read_text())
    except OSError:
        return None


@cache
def _own_group(group: int, user: int) -> bool:
    """Return whether a group is root's, or a private group whose only member is this user."""
    if sys.platform == "win32" or not group:
        return True
    try:
        found, name = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}
