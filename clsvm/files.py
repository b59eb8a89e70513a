"""Write files atomically, refuse binary files where text is expected, and check who else can change a file.

:func:`atomic_write` writes a temporary file in the target's folder, then renames it to the target. :func:`text_stream`
refuses binary files, since one line of such a file could fill the memory. :func:`private_folder` and :func:`exposed`
protect the files that clsvm caches, such as compiled programs.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import struct
import sys
import tokenize
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import grp
    import pwd

PathLike = str | os.PathLike[str]
# NumPy and zipfile raise these errors for a damaged .npz archive. A huge shape in a header raises MemoryError.
DAMAGED_ARCHIVE = (
    *(zipfile.BadZipFile, tokenize.TokenError, struct.error, ValueError, TypeError, RuntimeError, EOFError, OSError),
    *(LookupError, OverflowError, MemoryError, SyntaxError),
)
_NUMPY = b"\x93NUMPY", b"PK\x03\x04"  # first bytes of .npy files, and of zip archives such as .npz


@contextlib.contextmanager
def atomic_write(path: PathLike) -> Iterator[BinaryIO]:
    """Yield a binary file for writing that appears at ``path`` only when it is complete.

    After an error, Ctrl-C or a full disk, the old file is unchanged. A symbolic link stays, and its target is replaced.
    A pipe or device such as /dev/stdout is written directly. A process that is killed while it writes leaves a
    temporary file ``.clsvm-*.tmp`` in the folder. Raises OSError.
    """
    target = _replaceable(path)
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
        with _scratch(target):
            pass


def text_stream(stream: io.BufferedReader, path: PathLike, kind: str = "svmlight text") -> BinaryIO:
    """Return a binary stream of text that can be rewound: ``stream`` itself or, for a pipe, a copy in memory.

    Raises ValueError if the stream begins as a .npy file or a zip archive, such as .npz. Raises ValueError, too, if the
    first block has null bytes and no line break. The message names ``path``, the file's name, and ``kind``, the
    expected contents.
    """
    start = stream.peek()
    if start.startswith(_NUMPY) or (b"\0" in start and b"\n" not in start):
        stream.close()
        got = "a file of NumPy's or a zip archive" if start.startswith(_NUMPY) else "zero bytes in a long line"
        raise ValueError(f"{path}: got {got}, expected {kind}")
    if stream.seekable():
        return stream
    with stream:
        return io.BytesIO(stream.read())


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[BinaryIO]:
    """Yield a new temporary file in the folder of ``target``; delete it at the end unless it was renamed."""
    try:
        stream = open(target.with_name(f".clsvm-{os.urandom(8).hex()}.tmp"), "xb")  # noqa: SIM115
    except OSError as error:
        error.filename = os.fspath(target)
        raise
    try:
        with stream:
            yield stream
    finally:
        Path(stream.name).unlink(missing_ok=True)


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

    Each folder above ``path`` is checked too, because its owner can replace the files in it. If other users have write
    access to a folder, they can replace its files too, unless the folder's sticky bit is set. On Windows the result is
    always "". Raises OSError if ``path`` is missing.
    """
    given, real = Path(os.path.abspath(path)), Path(os.path.realpath(path))
    above = {place for one in (given, real) for place in one.parents}
    found = (changed_by_others(place, place in above) for place in sorted({given, real} | above))
    return next(filter(None, found), "")


def changed_by_others(path: Path, above: bool = False) -> str:
    """Return a sentence on who else owns or can write to one file or folder; "" if only this user and root can.

    above: whether ``path`` is a folder above the checked file. If so, a sticky bit makes a folder of this user or root
        safe, even if others can write to it: the bit keeps them from renaming or deleting files of this user.
    """
    if sys.platform == "win32":
        return ""
    found = path.lstat()
    if found.st_uid not in (os.geteuid(), 0):
        return f"{str(path)!r} belongs to user {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or (above and found.st_mode & stat.S_ISVTX):
        return ""
    if found.st_mode & stat.S_IWOTH:
        return f"all users can write to {str(path)!r}"
    if found.st_mode & stat.S_IWGRP and not _own_group(found.st_gid, os.geteuid()):
        return f"group {found.st_gid} can write to {str(path)!r}"
    return ""


@cache
def _own_group(group: int, user: int) -> bool:
    """Return whether ``group`` is root's, or a private group: it has the name of ``user``, and no other member."""
    if sys.platform == "win32" or not group:
        return True
    try:
        found, name = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}
