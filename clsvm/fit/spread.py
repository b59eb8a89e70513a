"""Several problems over several devices of this machine, or over rows that are elsewhere: see several.py."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from clsvm.fit import sharded
from clsvm.fit.trained import Several, together
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.devices import listed
from clsvm.parameters import Options
from clsvm.solvers.batch import Member
from clsvm.threads import dealt

PIECES = 4  # that a device takes, about: few enough to solve many members side by side, enough to end together


def train(
    on_one: Callable[..., Several],
    X: Any,
    members: Sequence[Member],
    kernel: Kernel | Precomputed,
    options: Options,
    since: float,
) -> Several:
    """several.train, which is ``on_one`` of a device, for the devices of ``options``, or rows that are elsewhere."""
    if isinstance(X, sharded.Elsewhere):
        found, workers = _in_turn(X, members, kernel, options, since), 1
    else:
        devices = listed(options.device)
        pieces = np.array_split(np.arange(len(members)), min(len(members), PIECES * len(devices)))
        done: dict[int, Several] = {}

        def work(worker: tuple[int, Any], piece: Any) -> Generator[None]:
            number, device = worker
            own = options.but(device=device, verbose=0 if number else options.verbose)
            done[int(piece[0])] = on_one(X, [members[place] for place in piece], kernel, own, since)
            yield

        for _ in dealt(list(enumerate(devices)), pieces, work):
            pass
        found, workers = [done[first] for first in sorted(done)], len(devices)
    report = together([one.report for one in found], perf_counter() - since, workers)
    b = [coefficients for one in found for coefficients in one.b]
    rho, steps = np.concatenate([one.rho for one in found]), np.concatenate([one.steps for one in found])
    return Several(b, rho, steps, report, found[0].plan)


def _in_turn(
    X: sharded.Elsewhere, members: Sequence[Member], kernel: Kernel | Precomputed, options: Options, since: float
) -> list[Several]:
    """One member after another, each a problem over all rows."""
    found = []
    for member in members:
        left = None if options.max_time is None else options.max_time - (perf_counter() - since)
        start = None if member.start is None else np.zeros((1, X.shape[0]))
        if start is not None:
            start[0, member.rows] = member.start
        problem = member.problem.among(member.rows, X.shape[0])
        one = sharded.train(X, problem, kernel, options.but(max_time=left), start, perf_counter())
        s = one.solution
        found.append(Several([s.b[0, member.rows]], s.rho, s.steps, one.report, one.plan))
    return found
