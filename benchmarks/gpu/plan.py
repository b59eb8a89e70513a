"""The steps of the command, those most worth knowing first: what runs, and its share of the time that is left by then.

A step is a generator function of this package, named as "module:function". It takes an :class:`Asked` and the step's
arguments, and yields parts of its record, each of which is on disk when the next one is asked for. It ends by itself
(ok), or raises :class:`PartialError` or anything else (failed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Asked:
    """What a step is told. device as clsvm.SVC takes it; seconds: its limit; folder: of all records of the run."""

    device: str | None
    data: Path | None
    seconds: float
    folder: Path


class PartialError(Exception):
    """What there was time for went well; the words say what is missing."""


@dataclass(frozen=True)
class Step:
    """share: of the time that is left, beside the shares of the later steps. file: of the data folder, without which
    the step is skipped; instead_of: a file in whose absence alone it runs. drill: runs only when asked for by name."""

    name: str
    run: str
    share: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    instead_of: str = ""
    drill: bool = False


def _train(name: str, share: float, **more: str) -> Step:
    return Step(f"train {name}", "training:train", share, {"name": name}, **more)  # type: ignore[arg-type]


def _kernels(name: str, share: float, **more: str) -> Step:
    return Step(f"kernels {name}", "kernels:kernels", share, {"name": name}, **more)  # type: ignore[arg-type]


def _products(d: int, share: float) -> Step:
    return Step(f"products {d}", "products:products", share, {"d": d})


STEPS = (
    Step("limits", "device:limits", 4),
    Step("smoke", "device:smoke", 5),
    Step("tests first", "suite:suite", 14, {"first": True}),
    _train("a9a", 6, file="a9a.xz"),
    _train("a9a-like", 6, instead_of="a9a.xz"),
    _train("mnist8", 6, file="mnist.npz"),
    _train("mnist8-like", 6, instead_of="mnist.npz"),
    _train("synthetic", 7),
    _kernels("a9a", 2, file="a9a.xz"),
    _kernels("a9a-like", 2, instead_of="a9a.xz"),
    _kernels("mnist8", 2, file="mnist.npz"),
    _kernels("mnist8-like", 2, instead_of="mnist.npz"),
    Step("peaks", "peaks:peaks", 4),
    Step("trials", "trials:trials", 2),
    _products(784, 4),
    Step("subproblem", "products:subproblem", 4),
    _train("letter", 4, file="letter.scale.xz"),
    _kernels("letter", 2, file="letter.scale.xz"),
    _train("covtype", 8, file="covtype_full.npz"),
    _train("mnist10", 8, file="mnist.npz"),
    _train("mnist10-like", 8, instead_of="mnist.npz"),
    _train("mnist10 at once", 6, file="mnist.npz"),
    _products(128, 3),
    _products(54, 3),
    _products(2000, 4),
    _products(16, 3),
    Step("reductions", "products:reductions", 4),
    Step("machines on centres", "nystrom:nystrom", 5),
    Step("layouts", "layouts:layouts", 3),
    Step("tiles 784", "products:tiles", 3, {"d": 784}),
    Step("tiles 54", "products:tiles", 3, {"d": 54}),
    Step("tests rest", "suite:suite", 12, {"first": False}),
    Step("drill error", "drills:error", 1, drill=True),
    Step("drill crash", "drills:crash", 1, drill=True),
    Step("drill hang", "drills:hang", 1, drill=True),
)
BY_NAME = {step.name: step for step in STEPS}
