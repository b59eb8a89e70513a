"""Define profiles of devices, each for one kind of device. PROFILES lists the profiles.

A profile holds sizes for OpenCL kernels, such as the number of kernel values that a work-group computes in registers.
It also holds costs, which are the estimated times of operations.

``clsvm tune`` measures which sizes are fastest on the user's devices. It stores these sizes in one JSON file in the
user's cache folder, which every fit reads:

    {"clsvm": 1, "devices": {KEY: {"date": ..., "profile": {"lanes": 16, "tiles": {"many": {...}}, ...}, ...}}}

KEY names the platform, the device, the driver and the default profile. A value in the file is valid if it is in SEARCH,
the table of permitted values. If a value for a device is invalid, all values for this device are ignored with one
warning. A damaged file, or a file of another version, is ignored as a whole, with one warning. Earlier versions of
clsvm also stored costs in the file. RATES lists the names of these costs, which are ignored without a warning.
"""

from __future__ import annotations

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

# A Tile is a dict from names of -D options to numbers, which say how large a block of kernel values is computed.
Tile = Mapping[str, int]


def shape_class(working: int) -> str:
    """Return the shape class of a kernel matrix K(X, U) with ``working`` rows U.

    The class is "two" for at most 2 rows, "few" for 3 to 16 rows, and "many" for more. A profile has, for each class,
    the size of the blocks in which a kernel matrix is computed.
    """
    return "two" if working <= 2 else "few" if working <= 16 else "many"


# The host solves a dual problem of m coefficients by about HOST_STEPS * m^3 multiply-adds of a Cholesky factorisation.
HOST_STEPS = 5.0


@dataclass(frozen=True)
class Profile:
    """Hold sizes for OpenCL kernels, and costs of operations, for a kind of device.

    The sizes say how much a work-item or a work-group does. The costs are the estimated times of operations. The unit
    of a cost is the time of one multiply-add in a product of dense rows. The defaults suit a CPU with 512-bit vectors.
    The attributes use these terms:

    - K(X, U) is the kernel matrix between rows X and rows U. The rows U are called right-hand rows.
    - A lane group is a number of rows of X whose values are stored interleaved.
    - An outer iteration of the solver chooses a working set of rows, and solves the dual over these rows by SMO.
    - A tile is a block of values of K(X, U) that is computed in registers. One work-item (style "simd") or one
      work-group (style "workgroup") computes a tile.

    Attributes
    ----------
    name
        name of the profile: its key in the table PROFILES.
    style
        kernel style. In the style "simd" a work-item computes with explicit vectors. In the style "workgroup"
        work-items share local memory.
    tiles
        sizes of tiles, by a name. The name is "two" for at most 2 right-hand rows, "few" for 3 to 16, and "many" for
        more. Some profiles also have the larger size "wide". It replaces "many" if K(X, U) has enough tiles of this
        size to occupy every compute unit. A size is a dict with some of these keys:

        - GROUPS: number of lane groups in a tile;
        - COLUMNS: number of right-hand rows in a tile;
        - BLOCKS: number of right-hand rows in a tile, divided by the number of rows of a lane group;
        - RX: number of rows of X for which one work-item computes values;
        - DEPTH: number of features that local memory holds at a time;
        - AHEAD: number of features by which prefetches are ahead of the computation.
    lanes
        number of rows of a lane group in float32. In float64 a lane group of the style "simd" has half as many rows.
    panel
        number of right-hand rows whose values are stored interleaved, in float32, if X is in CSR format. In the style
        "simd" only products with more than 16 right-hand rows use this number.
    cluster
        number of lane groups in a cluster of rows. The rows of a cluster are nonzero in similar columns.
    group
        number of work-items of a work-group in reductions, such as sums over all rows.
    smo_items
        largest number of work-items in a work-group that solves the dual over a working set.
    pairs
        largest number of pairs of coefficients that an SMO iteration changes. In the style "simd" it changes one.
    block
        number of training rows whose gradients one work-item (style "simd") or one work-group (style "workgroup")
        updates.
    chunks
        largest number of parts into which a reduction over rows divides the rows.
    working_set
        largest number of rows in a working set.
    batch_rows
        largest number of rows of a dual problem that one work-item or one work-group solves alone. Larger problems are
        solved faster by the whole device.
    double_rows
        largest number of rows of a dual problem that is solved in float64 at once, even if float32 may suffice. A check
        in float64 would take longer than float64 does. 0 on GPUs, where float64 is slow.
    sync
        number of outer iterations between two times that the host reads the state of the solver.
    bits_cost
        cost of multiplying two 32-bit words. A word holds 32 features of a row whose features are all 0 or 1.
    csr_cost
        cost of multiplying a stored entry of a CSR row by a number of a row of U.
    clustered_cost
        cost of multiplying a stored entry of a row in a cluster by a number of a row of U.
    hybrid_cost
        cost of multiplying an entry of a densely stored column of X by a number of a row of U, if the other columns of
        X are stored in CSR format.
    hit_cost
        cost of multiplying an entry of X by an entry of U, if an inverted index lists the entries of X by feature.
    value_cost
        cost of evaluating the kernel function for one value of K(X, U) and storing the value, if X is in CSR format.
    cluster_cost
        cost of finding the cluster of a row. On a GPU this cost is large, because only one work-group does this work.
    cache_cost
        cost of reading a kernel value from the cache of rows of the kernel matrix.
    stored_cost
        cost of reading a value of a stored K(X, U) and adding it to weighted sums, if all values are read in order.
    outer_cost
        cost of launching the OpenCL kernels of an outer iteration and waiting for them.
    selection_cost
        cost per training row of choosing a working set.
    smo_cost
        fixed cost of an SMO iteration.
    smo_row_cost
        additional cost of an SMO iteration per row of the working set.
    factor_cost
        cost of a multiply-add of the host's Cholesky factorisation in one thread.
    patience
        SMO iterations for each coefficient of a small dual problem that the device makes at least, before the host
        solves the problem (:meth:`most_steps`).
    wide
        number type of gradients and coefficients: "double", or "pair". A pair is two float32 numbers, whose sum is the
        value. This attribute has nothing to do with the tile size "wide".
    """

    name: str
    style: str
    tiles: Mapping[str, Tile] = field(hash=False)
    lanes: int = 16
    panel: int = 64
    cluster: int = 1
    group: int = 1
    smo_items: int = 1
    pairs: int = 1
    block: int = 512
    chunks: int = 8
    working_set: int = 2048
    batch_rows: int = 2560
    double_rows: int = 1280
    sync: int = 1
    bits_cost: float = 10.0
    csr_cost: float = 2.4
    clustered_cost: float = 1.3
    hybrid_cost: float = 1.0
    hit_cost: float = 46.0
    value_cost: float = 45.0
    cluster_cost: float = 1e4
    cache_cost: float = 45.0
    stored_cost: float = 31.0
    outer_cost: float = 6e7
    selection_cost: float = 1000.0
    smo_cost: float = 3e3
    smo_row_cost: float = 80.0
    factor_cost: float = 3.0
    patience: int = 100
    wide: str = "double"

    def most_steps(self, m: int) -> int:
        """Return the number of SMO iterations after which the host solves a dual problem of m coefficients.

        SMO gets ``patience`` iterations for each coefficient. If the host would take longer, SMO gets as much time as
        the host is expected to take.
        """
        step = self.smo_cost + self.smo_row_cost * min(m, self.working_set)
        return int(max(self.patience * m, HOST_STEPS * self.factor_cost * m**3 / step))

    def lacks(self, dtype: str) -> bool:
        """Return whether the device cannot compute in ``dtype``, such as float64."""
        return dtype == "float64" and self.wide == "pair"

    @property
    def finest(self) -> str:
        """Return the most precise dtype in which the device computes: "float64" or "float32"."""
        return "float64" if self.wide == "double" else "float32"

    @property
    def largest(self) -> float:
        """Return the largest finite number of the type of gradients and coefficients.

        This type is double, or on a device without double precision a pair of float32 numbers. A pair has the range of
        float32.
        """
        return float(np.finfo(self.finest).max)


def _vector(columns: int, groups: int, ahead: int = 0) -> Tile:
    return {"COLUMNS": columns, "GROUPS": groups, "AHEAD": ahead}


_CPU = Profile("cpu", "simd", {"two": _vector(2, 10, 4), "few": _vector(16, 1, 64), "many": _vector(8, 3)})
_GPU = Profile(
    name="gpu",
    style="workgroup",
    tiles={
        "two": {"COLUMNS": 2, "RX": 2, "GROUPS": 4, "DEPTH": 32},
        "few": {"COLUMNS": 16, "RX": 2, "GROUPS": 4, "DEPTH": 16},
        "many": {"GROUPS": 1, "BLOCKS": 1, "DEPTH": 16},
        "wide": {"GROUPS": 2, "BLOCKS": 2, "DEPTH": 8},
    },
    lanes=64,
    cluster=4,
    group=256,
    smo_items=256,
    pairs=8,
    block=64,
    chunks=128,
    working_set=1024,
    batch_rows=2048,
    double_rows=0,
    sync=8,
    bits_cost=16.0,  # assumed: the inner product of 32 binary features in a word takes as long as 16 multiply-adds
    csr_cost=12.0,
    clustered_cost=1.1,
    hybrid_cost=4.0,
    hit_cost=60.0,
    value_cost=10.0,
    cluster_cost=2e8,
    cache_cost=8.0,
    stored_cost=5.6,
    outer_cost=1e9,
    selection_cost=300.0,
    smo_cost=6e7,
    smo_row_cost=1.5e4,
    factor_cost=500.0,
    patience=20,
)
PROFILES = {
    "cpu": _CPU,
    "cpu8": replace(  # for CPUs with 16 vector registers of 8 floats; a vector of 16 floats takes two registers
        _CPU,
        name="cpu8",
        tiles={"two": _vector(2, 4, 4), "few": _vector(4, 1, 32), "many": _vector(4, 1)},
        csr_cost=2.9,
        clustered_cost=1.1,
        hybrid_cost=0.9,
        hit_cost=23.0,
        value_cost=23.0,
        cache_cost=20.0,
    ),
    "gpu": _GPU,
    # Costs were measured on an H100. The block size "wide" needs 42 KB of local memory; other GPUs may have only 32 KB.
    "nvidia": replace(
        _GPU,
        name="nvidia",
        tiles={**_GPU.tiles, "wide": {"GROUPS": 2, "BLOCKS": 2, "DEPTH": 16}},
        smo_items=1024,
        smo_cost=3e7,
        smo_row_cost=1.5e4,
        factor_cost=1600.0,  # 17 GFLOP/s of the host
        patience=100,
    ),
}

RATES = "bits_cost", "csr_cost", "clustered_cost", "hybrid_cost", "hit_cost"  # fields to ignore in old tuning files
# SEARCH[style][field] lists the values that a tuning file may set for a field of a Profile with this kernel style.
# The command ``clsvm tune`` tries other values only for the fields "tiles" and "lanes" of a Profile.
_TWO = [_vector(2, groups, ahead) for groups in (1, 4, 10, 12) for ahead in (0, 4, 64)]
_FEW = [_vector(columns, 1, ahead) for columns in (16, 8, 4) for ahead in (0, 32, 256)]
_MANY = [_vector(*tile) for tile in ((16, 1), (8, 1), (8, 2), (8, 3), (4, 1), (4, 3), (4, 4), (4, 5), (4, 6), (2, 8))]
_WIDE = [
    {"GROUPS": groups, "BLOCKS": blocks, "DEPTH": depth}
    for groups, blocks in ((2, 2), (2, 1), (1, 2))
    for depth in (4, 8, 16)
]
SEARCH: Mapping[str, Mapping[str, Any]] = {
    "simd": {
        "lanes": (8, 16),
        "tiles": {"two": _TWO, "few": [*_FEW, *_MANY[2:4], *_MANY[5:8]], "many": _MANY},
        "panel": (16, 32, 64, 128),
        "block": (128, 256, 512, 1024, 2048),
        "chunks": (2, 4, 8, 16, 32),
    },
    "workgroup": {
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
    """Return the path of the file of tuning results.

    The environment variable CLSVM_TUNED can name it. The default is tuned.json in the user's cache folder.
    """
    return _path(*map(os.environ.get, ("CLSVM_TUNED", "XDG_CACHE_HOME", "HOME")))


@cache
def _path(named: str | None, *folders: str | None) -> Path:
    return Path(named or user_cache_path("clsvm") / "tuned.json")


def tuned_state() -> tuple[Path, int]:
    """Return the path of the file of tuning results, and the file's modification time in nanoseconds.

    The time is -1 if there is no file. While path and time are unchanged, the content of the file is unchanged too.
    """
    where = tuned_path()
    try:
        return where, where.stat().st_mtime_ns
    except OSError:
        return where, -1


def read_tuned() -> dict[str, dict[str, Any]]:
    """Return the tuning records of all devices from the file of tuning results, as a dict by device key.

    If there is no valid file, return {}.
    """
    where, modified = tuned_state()
    if modified < 0:
        return {}
    try:
        content = json.loads(where.read_text("utf-8"))
        if content["clsvm"] != VERSION or not all(isinstance(r["profile"], dict) for r in content["devices"].values()):
            raise ValueError(f"version {content['clsvm']!r}, expected {VERSION}")
        return dict(content["devices"])
    except OSError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _warn_ignored(where, str(error) or type(error).__name__)
        return {}


def with_tuned(profile: Profile, name: str) -> Profile:
    """Return a copy of ``profile`` with the values that ``clsvm tune`` stored under the device key ``name``.

    If a stored value is not in SEARCH, the table of permitted values, warn and return ``profile`` unchanged.
    """
    stored = read_tuned().get(name, {}).get("profile", {})
    values = {field: value for field, value in stored.items() if field not in RATES}
    wrong = [field for field, value in values.items() if not _valid(profile.style, field, value)]
    if wrong:
        _warn_ignored(tuned_path(), f"{name} has {wrong[0]} = {values[wrong[0]]!r}")
        return profile
    return replace(profile, **{**values, "tiles": {**profile.tiles, **values.get("tiles", {})}})


def _valid(style: str, field: str, value: Any) -> bool:
    """Return whether SEARCH permits ``value`` for the attribute ``field`` of a :class:`Profile`.

    SEARCH is the table of permitted values. The kernel style of the profile is ``style``: "simd" or "workgroup".
    """
    if field == "tiles":
        allowed = SEARCH[style]["tiles"]
        return isinstance(value, dict) and all(tile in allowed.get(name, ()) for name, tile in value.items())
    return type(value) is int and value in SEARCH[style].get(field, ())


@cache
def _warn_ignored(where: Path, reason: str) -> None:
    """Warn that the tuning file ``where`` is ignored. A process warns only once for each file and reason."""
    warn(f"{where} is ignored: {reason[:200]}; 'clsvm tune' makes it anew")


def write_tuned(name: str, record: dict[str, Any]) -> None:
    """Write the file of tuning results anew, with ``record`` under the device key ``name``.

    Other devices keep their records. Raises OSError if the file cannot be written.
    """
    check_tuned_writable()
    content = {"clsvm": VERSION, "devices": {**read_tuned(), name: record}}
    with files.atomic_write(tuned_path()) as stream:
        stream.write(json.dumps(content, indent=1).encode())


def check_tuned_writable() -> None:
    """Raise OSError if the file of tuning results cannot be written. If its folder does not exist, make the folder."""
    files.private_folder(tuned_path().parent)
    files.check_writable(tuned_path())


def delete_tuned() -> bool:
    """Delete the file of tuning results, and return whether it existed. Raises OSError if it cannot be deleted."""
    existed = tuned_path().exists()
    tuned_path().unlink(missing_ok=True)
    return existed
