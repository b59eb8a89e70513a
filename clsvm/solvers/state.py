"""The state of a solve on the device: coefficients b, gradients f = K b + q, bounds; and what says how far b is.

Apart from the loop that changes it (decomposition.py). Rows stand in the device's order, in which padding rows belong
to no problem.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clsvm.gram.layouts.record import Panel
from clsvm.gram.products import Operator, Update
from clsvm.opencl.stream import Buffer, Stream
from clsvm.problem import Problem
from clsvm.solvers import certificate
from clsvm.solvers.result import Vector


class State:
    """lo, hi, q, f, b of ``P`` problems, each (P, n) wide numbers on the device, n rows with padding; kink (1,)."""

    def __init__(self, stream: Stream, gram: Operator, problems: int) -> None:
        self.stream, self.gram, self.n, self.P = stream, gram, gram.rows.n_pad, problems
        self.lo, self.hi, self.q, self.f, self.b = (stream.buffer(8 * problems * self.n) for _ in range(5))
        self.kink = stream.buffer(8)

    def load(self, problem: Problem, start: Vector | None, known: tuple[Vector, Vector] | None) -> Vector | None:
        """Set the state to the start of ``problem``; return the coefficients of which f lacks K b yet. known:
        coefficients near ``start`` and the f of them."""
        lo, hi, held_q = map(self.stream.held_wide, (problem.lo, problem.hi, problem.q))
        self._held = replace(problem, lo=lo, hi=hi, q=held_q, start=None)  # (as the device holds its numbers)
        b = np.zeros((self.P, self.n)) if start is None else self.padded(start)
        q = self.padded(problem.q)
        near, f = (None, q) if known is None else (known[0], self.padded(known[1]))
        arrays = self.padded(problem.lo), self.padded(problem.hi), q, f, b, np.array([problem.kink])
        for buffer, array in zip((self.lo, self.hi, self.q, self.f, self.b, self.kink), arrays, strict=True):
            self.stream.write_wide(buffer, array)
        return start if start is None or near is None else start - near

    def padded(self, values: Vector) -> Vector:
        """Return values (P, n) in the caller's order as (P, n_pad) in device order, zero in padding rows."""
        padded = np.zeros((self.P, self.n))
        padded[:, self.gram.rows.position] = values
        return padded

    def coefficients(self) -> Vector:
        """Return b (P, n) in the caller's order."""
        return self._read(self.b)

    def now(self) -> tuple[Problem, Vector, Vector]:
        """Return the problem with its numbers as the device holds them, and b and f (P, n), in the caller's order."""
        f = self.gradients()
        certificate.finite(f, self.gram.kernel)
        return self._held, self.coefficients(), f

    def gradients(self) -> Vector:
        """Return f (P, n) in the caller's order."""
        return self._read(self.f)

    def _read(self, buffer: Buffer) -> Vector:
        """Return (P, n) numbers in the caller's order."""
        return self.stream.read_wide(buffer, (self.P, self.n))[:, self.gram.rows.position]

    def respond(self, b: Vector, panel: Panel) -> None:
        """Add K b to f, a panel of rows at a time; where K is there, and a panel holds places alone, as many rows as
        memory has room for."""
        s, gram, support = self.stream, self.gram, np.flatnonzero(b.any(axis=0))
        most = (s.limit - s.held) // (2 * (8 * self.P + 4)) if gram.whole else 0
        room = max(panel.capacity, min(most, len(support)))
        for first in range(0, len(support), room):
            some = support[first : first + room]
            weights = np.zeros((self.P, room))
            weights[:, : len(some)] = b[:, some]
            at, count = s.upload(gram.rows.position[some]), s.upload(np.array([len(some)], np.int32))
            D = s.wide(weights)
            gram.gather(panel, at, count)
            gram.accumulate(panel, count, None, Update(self.P, self.n, self.f, D, room))
            s.finish()
            s.free(at, count, D)
