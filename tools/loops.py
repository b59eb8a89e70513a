"""Find the busiest loop in a kernel's assembly: its share of multiply-adds, and its barriers.

A loop is the code from a label to a jump back to it, without inner loops. The busiest loop has the most multiply-adds,
where each level of nesting counts tenfold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_LABEL = re.compile(r"^([\w.$]+):")
_JUMP = re.compile(r"^(?:@!?%\w+\s+)?(?:s_cbranch_\w+|s_branch|bra(?:\.uni)?)\s+([\w.$]+)")
_MULTIPLY_ADD = re.compile(
    r"^(?:v_(?:pk_|dual_)?(?:fma|fmac|mad|mac)_(?:f16|f32|f64|legacy)|v_mfma_|fma\.rn\.(?:f32|f64)|mma\.)"
)
_ANY = re.compile("")
_BARRIER = re.compile(r"^(?:s_barrier|bar(?:rier)?\.sync)")
PASSES = 10  # assumed passes of a loop


class Busiest(NamedTuple):
    """Hold the figures of a kernel's loops.

    Attributes
    ----------
    multiply_adds
        share of multiply-adds among the instructions of the busiest loop, 0 if no loop has any.
    barriers
        barriers of the loop that has most.
    """

    multiply_adds: float
    barriers: int


def busiest(assembly: str) -> Busiest:
    """Return the figures of one kernel's assembly."""
    instructions, loops = _loops(assembly)
    most, share = 0, 0.0
    for loop in loops:
        inside = [other for other in loops if other != loop and loop[0] <= other[0] and other[-1] <= loop[-1]]
        depth = sum(other[0] <= loop[0] and loop[-1] <= other[-1] for other in loops)
        own = sorted(set(loop).difference(*inside))
        found = _count(_MULTIPLY_ADD, instructions, own)
        if found * PASSES**depth > most:
            most, share = found * PASSES**depth, found / _count(_ANY, instructions, own)
    return Busiest(share, max((_count(_BARRIER, instructions, loop) for loop in loops), default=0))


def _count(pattern: re.Pattern[str], instructions: Sequence[str], loop: Sequence[int]) -> int:
    """Return how many instructions of a loop match. A packed instruction counts twice."""
    found = [instructions[at] for at in loop if pattern.match(instructions[at])]
    return len(found) + sum(one.startswith("v_pk_") for one in found)


def _loops(assembly: str) -> tuple[list[str], list[range]]:
    """Return all instructions, and the range of each loop among them."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in map(str.strip, assembly.splitlines()):
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif re.match(r"[a-z@]", line):
            instructions.append(line)
    jumps = ((place, _JUMP.match(line)) for place, line in enumerate(instructions))
    back = [(labels.get(jump[1], place + 1), place) for place, jump in jumps if jump]
    return instructions, [range(first, last + 1) for first, last in back if first <= last]
