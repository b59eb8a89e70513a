"""Device profiles: what a kind of device wants of kernels and loops. Opening a new kind costs one record here.

What ``clsvm tune`` found on this user's devices stands in one JSON file in the user's cache folder, which every fit
reads:

    {"clsvm": 1, "devices": {KEY: {"date": ..., "profile": {"lanes": 16, "tiles": {"many": {...}}, ...}, ...}}}

KEY names platform, device, driver and the profile that was the default. A value counts only if the search could have
found it (SEARCH), or if it is a rate within its limits (RATES): a file that is damaged, foreign or of
another version is ignored, with one warning.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path

from clsvm import files
from clsvm.errors import warn

# -D numbers of a gram kernel: COLUMNS, GROUPS, AHEAD in the vector shape; in the group shape GROUPS, BLOCKS, DEPTH, or
# COLUMNS, RX, GROUPS, DEPTH of few working vectors
Tile = Mapping[str, int]


def shape_class(working: int) -> str:
    """Return the class of a product with so many working vectors: they want tiles of different shapes."""
    return "two" if working <= 2 else "few" if working <= 16 else "many"


@dataclass(frozen=True)
class Profile:
    """What a kind of device wants; a new kind is one more record.

    shape: "vector" (one work-item owns explicit vectors) or "group" (work-groups share local memory).
    lanes: rows side by side, for float32. panel: working vectors side by side in a CSR product of more than 16.
    cluster: rows of a cluster in lane groups. group: work-items of a work-group in reductions; pair_items: of one that
    solves the dual over a working set, at most.
    tiles: register tiles of the gram kernel by shape class; "wide": of many working vectors where that leaves every
    compute unit tiles enough. block: rows of a work-item (group shape: a work-group)
    that reads the row cache.
    wide: how f and the coefficients are kept, "double" or "pair". chunks: pieces of the rows in a reduction.
    working_set: its largest size. alone: the most rows of a problem that one work-item or work-group solves; beyond
    them work shared by all of the device takes less than the launches it costs. sync: outer steps between host reads.
    csr_cost: time of a stored non-zero of CSR over that of a dense cell, measured; clustered_cost likewise;
    hybrid_cost: of a cell of a column that CSR rows store whole.
    hit_cost: of an entry that meets one of an inverted index. value_cost: of the kernel function and the store of a
    value of K over CSR rows, likewise.
    cluster_price: time to find a row's cluster, in dense cells of products: one work-group does it, which on a GPU is a
    small part of the device (a guess there, as all costs of the GPU's profile until a tuner has measured them).
    cache_cost: time to read a stored value of K over that of a dense multiply-add, measured.
    step_cost: time of an outer step's launches and waits, in dense multiply-adds. look_cost: time that choosing the
    working set takes for each row; inner_step, inner_cost: an inner step's, and its share for each row of the set.
    factor_cost: time of a multiply-add of the host's Cholesky factors, in one thread, over that of a dense cell.
    patience: pair steps for each row of a problem, after which one of few rows is finished on the host (host.py).
    """

    name: str
    shape: str
    lanes: int
    panel: int
    cluster: int
    group: int
    pair_items: int
    tiles: Mapping[str, Tile] = field(hash=False)
    block: int
    chunks: int
    working_set: int
    alone: int
    sync: int
    csr_cost: float
    clustered_cost: float
    hybrid_cost: float
    hit_cost: float
    value_cost: float
    cluster_price: float
    cache_cost: float
    step_cost: float
    look_cost: float
    inner_step: float
    inner_cost: float
    factor_cost: float
    patience: int
    wide: str = "double"

    def lacks(self, dtype: str) -> bool:
        """Return whether the device does not have numbers of that dtype."""
        return dtype == "float64" and self.wide == "pair"

    @property
    def finest(self) -> str:
        """Return the dtype of the finest numbers that the device has."""
        return "float64" if self.wide == "double" else "float32"

    @property
    def largest(self) -> float:
        """Return the largest number that wide numbers hold: pairs of float32 end where float32 does."""
        return float(np.finfo(self.finest).max)


def _vector(columns: int, groups: int, ahead: int = 0) -> Tile:
    return {"COLUMNS": columns, "GROUPS": groups, "AHEAD": ahead}


_CPU = Profile(
    name="cpu",
    shape="vector",
    lanes=16,
    panel=64,
    cluster=1,
    group=1,
    pair_items=1,
    tiles={"two": _vector(2, 10, 4), "few": _vector(16, 1, 64), "many": _vector(8, 3)},
    block=512,
    chunks=8,
    working_set=2048,
    alone=2560,
    sync=1,
    csr_cost=2.4,
    clustered_cost=1.3,
    hybrid_cost=1.0,
    hit_cost=46.0,
    value_cost=45.0,
    cluster_price=1e4,
    cache_cost=45.0,
    step_cost=6e7,
    look_cost=1000.0,
    inner_step=3e3,
    inner_cost=80.0,
    factor_cost=3.0,
    patience=100,
)
_GPU = Profile(
    name="gpu",
    shape="group",
    lanes=64,
    panel=64,
    cluster=4,
    group=256,
    pair_items=256,
    tiles={
        "two": {"COLUMNS": 2, "RX": 2, "GROUPS": 4, "DEPTH": 32},
        "few": {"COLUMNS": 16, "RX": 2, "GROUPS": 4, "DEPTH": 16},
        "many": {"GROUPS": 1, "BLOCKS": 1, "DEPTH": 16},
        "wide": {"GROUPS": 2, "BLOCKS": 2, "DEPTH": 8},
    },
    block=64,
    chunks=128,
    working_set=1024,
    alone=2048,
    sync=8,
    csr_cost=12.0,
    clustered_cost=1.1,
    hybrid_cost=4.0,
    hit_cost=60.0,
    value_cost=10.0,
    cluster_price=2e8,
    cache_cost=8.0,
    step_cost=1e9,
    look_cost=300.0,
    inner_step=5e7,
    inner_cost=9e3,
    factor_cost=100.0,
    patience=20,
)
PROFILES = {
    "cpu": _CPU,
    "cpu8": replace(  # 16 registers of 8 floats: two for a vector, whose parts share what is broadcast
        _CPU,
        name="cpu8",
        tiles={"two": _vector(2, 4, 4), "few": _vector(4, 1, 32), "many": _vector(4, 1)},
        csr_cost=2.9,
        clustered_cost=1.1,
        hybrid_cost=0.9,
        hit_cost=23.0,
        value_cost=23.0,
    ),
    "gpu": _GPU,
    # An H100, measured: its sub-groups reduce by an instruction (cl_kernels/solvers/least.cl), so large groups pay; it
    # has the local memory of deeper tiles, 42 KB, where other devices may have 32.
    "nvidia": replace(
        _GPU,
        name="nvidia",
        tiles={**_GPU.tiles, "wide": {"GROUPS": 2, "BLOCKS": 2, "DEPTH": 16}},
        pair_items=1024,
        inner_step=2.5e7,
        inner_cost=1e4,
        patience=100,
    ),
}

# The rates that the tuner measures: the least and the most that is taken from its file.
RATES = dict.fromkeys(("csr_cost", "clustered_cost", "hybrid_cost"), (0.2, 100.0)) | {"hit_cost": (2.0, 1000.0)}
# What the tuner tries, by shape: the tiles of each shape class and the numbers of each field. Nothing else is ever
# taken from its file.
_TWO = [_vector(2, groups, ahead) for groups in (1, 4, 10, 12) for ahead in (0, 4, 64)]
_FEW = [_vector(columns, 1, ahead) for columns in (16, 8, 4) for ahead in (0, 32, 256)]
_MANY = [_vector(*tile) for tile in ((16, 1), (8, 1), (8, 2), (8, 3), (4, 1), (4, 3), (4, 4), (4, 5), (4, 6), (2, 8))]
_WIDE = [
    {"GROUPS": groups, "BLOCKS": blocks, "DEPTH": depth}
    for groups, blocks in ((2, 2), (2, 1), (1, 2))
    for depth in (4, 8, 16)
]
SEARCH: Mapping[str, Mapping[str, Any]] = {
    "vector": {
        "lanes": (8, 16),
        "tiles": {"two": _TWO, "few": [*_FEW, *_MANY[2:4], *_MANY[5:8]], "many": _MANY},
        "panel": (16, 32, 64, 128),
        "block": (128, 256, 512, 1024, 2048),
        "chunks": (2, 4, 8, 16, 32),
    },
    "group": {
        "lanes": (32, 64),
        "tiles": {
            "two": [
                {"COLUMNS": 2, "RX": rx, "GROUPS": 2 * rx, "DEPTH": depth} for rx in (1, 2, 4) for depth in (16, 32)
            ],
            "few": [
                {"COLUMNS": 16, "RX": rx, "GROUPS": groups, "DEPTH": depth}
                for rx, groups in ((1, 2), (1, 4), (2, 4), (2, 8))
                for depth in (8, 16)
            ],
            "many": [{"GROUPS": 1, "BLOCKS": 1, "DEPTH": depth} for depth in (8, 16)],
            "wide": _WIDE,
        },
        "panel": (64, 128),
        "group": (64, 128, 256),
        "chunks": (32, 64, 128, 256, 512),
    },
}


VERSION = 1


def tuned_path() -> Path:
    """Return where the file is: CLSVM_TUNED, or tuned.json in the user's cache folder."""
    return _path(*map(os.environ.get, ("CLSVM_TUNED", "XDG_CACHE_HOME", "HOME")))


@cache
def _path(named: str | None, *folders: str | None) -> Path:
    return Path(named or user_cache_path("clsvm") / "tuned.json")


def tuned_state() -> tuple[Path, int]:
    """Return the file and when it was changed, -1 where there is none: while this is the same, so is what it holds."""
    where = tuned_path()
    try:
        return where, where.stat().st_mtime_ns
    except OSError:
        return where, -1


def read_tuned() -> dict[str, dict[str, Any]]:
    """Return the records by key; none where the file is not there or not ours."""
    where, modified = tuned_state()
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


def with_tuned(profile: Profile, name: str) -> Profile:
    """Return the profile with what was found for the device whose record stands under ``name``."""
    values = read_tuned().get(name, {}).get("profile", {})
    wrong = [field for field, value in values.items() if not _possible(profile.shape, field, value)]
    if wrong:
        _ignored(tuned_path(), f"{name} has {wrong[0]} = {values[wrong[0]]!r}")
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


def write_tuned(name: str, record: dict[str, Any]) -> None:
    """Add a record to the file, which is replaced whole. Raises OSError."""
    check_tuned_writable()
    content = {"clsvm": VERSION, "devices": {**read_tuned(), name: record}}
    if tuned_path().exists() and files.exposed(tuned_path()):
        tuned_path().unlink()  # the new file would keep the mode of the old one
    with files.atomic_write(tuned_path()) as stream:
        stream.write(json.dumps(content, indent=1).encode())
        Path(stream.name).chmod(0o644)  # whatever the umask: a file that others can write to is not read


def check_tuned_writable() -> None:
    """Raise the OSError that :func:`write_tuned` would raise, or that no file there would be read.

    The folder is made where it is missing.
    """
    files.private_folder(tuned_path().parent)
    if words := files.exposed(tuned_path().parent):
        raise PermissionError(errno.EACCES, f"no tuning is read from there, since {words}", str(tuned_path()))
    files.check_writable(tuned_path())


def delete_tuned() -> bool:
    """Delete the file; return whether there was one. Raises OSError."""
    there = tuned_path().exists()
    tuned_path().unlink(missing_ok=True)
    return there
