"""Device profiles: what a kind of device wants of kernels and loops. Opening a new kind costs one record here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """What a kind of device wants; a new kind is one more record.

    shape: "vector" (one work-item owns explicit vectors) or "group" (work-groups share local memory).
    lanes: rows side by side, for float32. panel: working vectors side by side in a CSR product.
    cluster: rows of a cluster in lane groups. group: work-items of a work-group in reductions.
    register: register tile side of the group shape. wide: how f and the coefficients are kept, "double" or "pair".
    chunks: pieces of the rows in a reduction. working_set: its largest size. sync: outer steps between host reads.
    csr_cost: time of a stored non-zero of CSR over that of a dense cell, measured; clustered_cost likewise.
    cache_cost: time to read a stored value of K over that of a dense multiply-add, measured.
    """

    name: str
    shape: str
    lanes: int
    panel: int
    cluster: int
    group: int
    register: int
    chunks: int
    working_set: int
    sync: int
    csr_cost: float
    clustered_cost: float
    cache_cost: float
    wide: str = "double"


PROFILES = {
    "cpu": Profile("cpu", "vector", 16, 64, 1, 1, 1, 8, 1024, 1, 3.3, 1.1, 45.0),
    "gpu": Profile("gpu", "group", 64, 64, 4, 256, 8, 128, 1024, 8, 12.0, 1.1, 8.0),
}
