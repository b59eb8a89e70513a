"""The benchmarks by name."""

from __future__ import annotations

from benchmarks import (
    falkon,
    fits,
    gallery,
    growth,
    gtsvm,
    host,
    ladder,
    larger,
    limit,
    predict,
    sharded,
    studies,
    tasks,
)
from benchmarks.boostsvm import command as boostsvm
from benchmarks.command import Command

_LISTED = (
    *fits.COMMANDS, growth.COMMAND, limit.COMMAND, predict.COMMAND, tasks.COMMAND, ladder.COMMAND, gtsvm.COMMAND,
    boostsvm.COMMAND, falkon.COMMAND, studies.COMMAND, larger.LARGER, larger.OUTOFCORE, sharded.COMMAND,
    gallery.COMMAND, host.COMMAND,
)  # fmt: skip
COMMANDS: dict[str, Command] = {one.name: one for one in _LISTED}
