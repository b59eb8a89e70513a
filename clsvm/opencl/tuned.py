"""What ``clsvm tune`` found on this user's devices: one JSON file in the user's cache folder, read by every fit.

    {"clsvm": 1, "devices": {KEY: {"date": ..., "profile": {"lanes": 16, "tiles": {"many": {...}}, ...}, ...}}}

KEY names platform, device, driver and the profile that was the default. A value counts only if the search could have
found it (profiles.SEARCH), or if it is a rate within its limits (profiles.RATES): a file that is damaged, foreign or of
another version is ignored, with one warning.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from clsvm import files
from clsvm.errors import warn
from clsvm.opencl.profiles import RATES, SEARCH, Profile

VERSION = 1


def path() -> Path:
    """Return where the file is: CLSVM_TUNED, or tuned.json in the user's cache folder."""
    return _path(*map(os.environ.get, ("CLSVM_TUNED", "XDG_CACHE_HOME", "HOME")))


@cache
def _path(named: str | None, *folders: str | None) -> Path:
    return Path(named or user_cache_path("clsvm") / "tuned.json")


def state() -> tuple[Path, int]:
    """Return the file and when it was changed, -1 where there is none: while this is the same, so is what it holds."""
    where = path()
    try:
        return where, where.stat().st_mtime_ns
    except OSError:
        return where, -1


def read() -> dict[str, dict[str, Any]]:
    """Return the records by key; none where the file is not there or not ours."""
    where, modified = state()
    if modified < 0:
        return {}
    try:
        if words := files.exposed(where):
            raise ValueError(words)
        content = json.loads(where.read_text("utf-8"))
        if content["clsvm"] != VERSION or not all(isinstance(r["profile"], dict) for r in content["devices"].values()):
            raise ValueError(f"version {content['clsvm']!r}, expected {VERSION}")
        return dict(content["devices"])
    except OSError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _ignored(where, str(error) or type(error).__name__)
        return {}


def apply(profile: Profile, name: str) -> Profile:
    """Return the profile with what was found for the device whose record stands under ``name``."""
    values = read().get(name, {}).get("profile", {})
    wrong = [field for field, value in values.items() if not _possible(profile.shape, field, value)]
    if wrong:
        _ignored(path(), f"{name} has {wrong[0]} = {values[wrong[0]]!r}")
        return profile
    return replace(profile, **{**values, "tiles": {**profile.tiles, **values.get("tiles", {})}})


def _possible(shape: str, field: str, value: Any) -> bool:
    """Return whether a search could have found a value of a field of profiles of that shape."""
    if field == "tiles":
        known = SEARCH[shape]["tiles"]
        return isinstance(value, dict) and all(tile in known.get(name, ()) for name, tile in value.items())
    if field in RATES:
        least, most = RATES[field]
        return type(value) is float and least <= value <= most
    return type(value) is int and value in SEARCH[shape].get(field, ())


@cache
def _ignored(where: Path, reason: str) -> None:
    """Warn once a process and reason."""
    warn(f"{where} is ignored: {reason[:200]}; 'clsvm tune' makes it anew")


def write(name: str, record: dict[str, Any]) -> None:
    """Add a record to the file, which is replaced whole. Raises OSError."""
    check_writable()
    content = {"clsvm": VERSION, "devices": {**read(), name: record}}
    if path().exists() and files.exposed(path()):
        path().unlink()  # the new file would keep the mode of the old one
    with files.atomic_write(path()) as stream:
        stream.write(json.dumps(content, indent=1).encode())
        Path(stream.name).chmod(0o644)  # whatever the umask: a file that others can write to is not read


def check_writable() -> None:
    """Raise the OSError that :func:`write` would raise, or that no file there would be read.

    The folder is made where it is missing.
    """
    files.private_folder(path().parent)
    if words := files.exposed(path().parent):
        raise PermissionError(errno.EACCES, f"no tuning is read from there, since {words}", str(path()))
    files.check_writable(path())


def reset() -> bool:
    """Delete the file; return whether there was one. Raises OSError."""
    there = path().exists()
    path().unlink(missing_ok=True)
    return there
