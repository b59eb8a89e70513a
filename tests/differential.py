"""clsvm and LIBSVM on random nasty problems (nasty.py), every result checked in long double (recheck.py).

    python -m tests.differential --count 5000 --device Intel --profile cpu8 --jobs 1 --out FOLDER

prints how many cases each solved and what broke a rule, with the seed that shows it; ``--count 1 --first SEED`` does
one again. Both fit in processes of their own, which are killed where a case takes too long, and take cases one after
another.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from tests.nasty import MAX_TIME, Case, case
from tests.recheck import Checked, check

HANG = 6 * MAX_TIME  # seconds after which a fit of ours, which has MAX_TIME, and the builds of its programs, hangs
START = 120.0  # seconds in which a process is there
AHEAD = 32  # cases that are begun before the first of them is done, so that none waits for a long one
CHECK = 300.0  # seconds that a check in long double may take
ALIKE = 1e-2  # times tol: how far objectives may be apart, of their size and what the coefficients add up to
EPS = float(np.finfo(np.float64).eps)


class Result(NamedTuple):
    """What a fit came to: whether its solver says that it converged, and what the check says; or an error."""

    converged: bool = False
    status: str = ""
    violation: float = float("nan")
    dual: float = float("nan")
    checked: Checked | None = None
    seconds: float = 0.0
    error: str = ""
    words: str = ""

    @property
    def refused(self) -> bool:
        return self.error == "ValueError"


# In a process of its own


def measure(side: str, seed: int, device: str | None) -> Iterator[Result]:
    """The result of a fit to a case, then the same once it is checked."""
    problem, started = case(seed), perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = problem.ours(device) if side == "ours" else problem.theirs()
    except Exception as error:
        yield Result(error=type(error).__name__, words=traceback.format_exc(), seconds=perf_counter() - started)
        return
    report = getattr(model, "fit_report_", None)
    numeric = [f"{one.filename}:{one.lineno}: {one.message}" for one in caught if one.category is RuntimeWarning]
    fitted = Result(model.fit_status_ == 0, seconds=perf_counter() - started, words="\n".join(numeric))
    if report is not None:
        fitted = fitted._replace(status=report.status, violation=report.violation, dual=report.dual)
    yield fitted
    yield fitted._replace(checked=check(model, problem.gram(), problem.y, problem.weights))


def _serve(side: str, device: str | None, pipe: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe.send(None)
    while True:
        for result in measure(side, pipe.recv(), device):
            pipe.send(result)
        pipe.send(None)


def _end_with_parent() -> None:
    """A parent that was killed leaves no process behind, in whatever fit that is."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# In the process that counts


class Worker:
    """A process that takes cases, and another one in its place where it was killed."""

    def __init__(self, side: str, device: str | None, seconds: float) -> None:
        self._side, self._device, self.seconds = side, device, seconds
        self.process: Any = None

    def __call__(self, seed: int) -> Result:
        """The result of a case; error is "hang" or "crash" where there is none."""
        if self.process is None:
            self._start()
        result, wait = Result(), self.seconds
        try:
            self._pipe.send(seed)
            while self._pipe.poll(wait):
                got = self._pipe.recv()
                if got is None:
                    return result
                result, wait = got, CHECK
        except (EOFError, ConnectionError):
            return self._ended(result, "crash")
        return self._ended(result, "hang")

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(self._side, self._device, theirs), daemon=True)
        self.process.start()
        theirs.close()
        if not self._pipe.poll(START):
            raise RuntimeError(f"a process for {self._side} was not there after {START:g} s")
        self._pipe.recv()

    def _ended(self, result: Result, how: str) -> Result:
        self.close()
        return result._replace(error=f"{how} of the check" if result.seconds else how)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


class Pool(ThreadPoolExecutor):
    """Workers of one side, each with a thread that waits for it."""

    def __init__(self, side: str, device: str | None, seconds: float, jobs: int) -> None:
        super().__init__(jobs)
        self._arguments, self._own, self._all = (side, device, seconds), threading.local(), list[Worker]()

    def take(self, seed: int) -> Result:
        """The result of a case, by the worker of this thread."""
        if not hasattr(self._own, "worker"):
            self._own.worker = Worker(*self._arguments)
            self._all.append(self._own.worker)
        worker: Worker = self._own.worker
        return worker(seed)

    def close(self) -> None:
        self.shutdown(cancel_futures=True, wait=False)
        for worker in self._all:
            worker.close()


class Broken(NamedTuple):
    """A rule that a case breaks."""

    rule: str
    seed: int
    words: str


def broken(problem: Case, ours: Result, theirs: Result | None) -> Iterator[tuple[str, str]]:
    """(rule, what was seen) of each rule that our result breaks; theirs is None where LIBSVM has no such problem."""
    if ours.error:
        if not (ours.refused and theirs is not None and theirs.refused):
            yield ("refused" if ours.refused else ours.error), ours.words.strip().splitlines()[-1] if ours.words else ""
        return
    if ours.words:
        yield "warning", ours.words.splitlines()[0]
    checked, tol = ours.checked, problem.asked["tol"]
    assert checked is not None
    hidden = EPS * checked.reach
    if not np.isfinite([ours.violation, ours.dual]).all():
        yield "not finite", f"violation {ours.violation}, dual {ours.dual}"
    if checked.boxes > 1e-9:
        yield "box", f"a bound is missed by {checked.boxes:.2g} of it"
    if checked.sums > 1e-9 and hidden <= tol:
        yield "sum", f"a sum is off by {checked.sums:.2g} of n C"
    off = abs(ours.dual - checked.dual)
    if off > 1e-4 * abs(checked.dual) + hidden * checked.size and hidden <= tol:
        yield "dual" + " (not converged)" * (not ours.converged), f"says {ours.dual:.9g}, is {checked.dual:.9g}"
    if ours.converged:
        if checked.known and checked.violation > 1.2 * tol:
            yield "violation", f"says {ours.violation:.3g}, is {checked.violation:.3g}, tol {tol:g}"
        if hidden > tol / 10:
            yield "beyond float64", f"rounding hides {hidden:.2g}, tol {tol:g}, violation {checked.violation:.3g}"
        if checked.offset > tol + 1e-9 * checked.reach:
            yield "offset", f"outside of its range by {checked.offset:.2g}, tol {tol:g}"
    if not solved(theirs, tol):
        return
    assert theirs is not None
    assert theirs.checked is not None
    if not ours.converged and hidden <= tol / 10:
        yield "unsolved", f"{ours.status} after {ours.seconds:.1f} s, LIBSVM {theirs.seconds:.1f} s"
    worse = theirs.checked.dual - checked.dual
    if ours.converged and worse > ALIKE * tol * (abs(theirs.checked.dual) + theirs.checked.size) and problem.convex:
        violations = f"violations {checked.violation:.2g}, {theirs.checked.violation:.2g}, tol {tol:g}"
        yield "objective", f"{checked.dual:.9g}, LIBSVM's {theirs.checked.dual:.9g}, {violations}"


def solved(theirs: Result | None, tol: float) -> bool:
    """Whether LIBSVM solved a case: it ended in time, and what is asked of ours holds for its own result. (Its kernel
    values are float32; nu-SVC's coefficients may change sides where its margin is 0.)"""
    if theirs is None or theirs.error or not theirs.converged or (checked := theirs.checked) is None:
        return False
    return checked.violation <= 1.2 * tol and max(checked.sums, checked.boxes) <= 1e-9


@dataclass
class Summary:
    """What all cases came to."""

    counts: Counter[str] = field(default_factory=Counter)
    found: list[Broken] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, problem: Case, ours: Result, theirs: Result | None) -> list[Broken]:
        """Count a case; what it breaks."""
        tol = problem.asked["tol"]
        hidden = ours.checked is not None and EPS * ours.checked.reach > tol / 10
        self.counts["cases"] += 1
        self.counts["converged"] += ours.converged
        self.counts["beyond float64's precision"] += hidden
        self.counts["refused by both"] += ours.refused and theirs is not None and theirs.refused
        self.counts["longer than max_time by a half"] += ours.seconds > 1.5 * MAX_TIME
        self.seconds += ours.seconds
        if theirs is not None:
            self.counts["LIBSVM has them"] += 1
            self.counts["LIBSVM ended in time"] += theirs.converged
            self.counts["LIBSVM solved"] += solved(theirs, tol)
            if not hidden:
                self.counts["of these within float64's precision, LIBSVM solved"] += solved(theirs, tol)
                self.counts["of these within float64's precision, converged"] += ours.converged
        new = [Broken(rule, problem.seed, f"{words}\n    {problem}") for rule, words in broken(problem, ours, theirs)]
        self.found += new
        return new

    def __str__(self) -> str:
        rules = Counter(one.rule for one in self.found)
        lines = [f"{count:7d}  {name}" for name, count in self.counts.items()]
        lines.append(f"{self.seconds:7.0f}  seconds of our fits")
        for rule, count in rules.most_common():
            seeds = [str(one.seed) for one in self.found if one.rule == rule]
            lines.append(f"{count:7d}  BROKEN {rule}: seeds {' '.join(seeds[:20])}{' ...' * (len(seeds) > 20)}")
        return "\n".join(lines)


def run(
    seeds: Sequence[int], device: str | None = None, jobs: int = 1, patience: float = MAX_TIME
) -> Iterator[tuple[Case, Result, Result | None]]:
    """Each case with both results, in order. patience: seconds that LIBSVM has."""
    own, peers = Pool("ours", device, HANG, jobs), Pool("theirs", None, patience, max(2, jobs))
    waiting = deque[tuple[Case, Future[Result], Future[Result] | None]]()

    def first() -> tuple[Case, Result, Result | None]:
        problem, ours, theirs = waiting.popleft()
        return problem, ours.result(), None if theirs is None else theirs.result()

    try:
        for seed in seeds:
            problem = case(seed)
            theirs = peers.submit(peers.take, seed) if problem.has_peer else None
            waiting.append((problem, own.submit(own.take, seed), theirs))
            if len(waiting) >= AHEAD * jobs:
                yield first()
        while waiting:
            yield first()
    finally:
        own.close()
        peers.close()


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=5000, help="cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--device", help="a name as the estimators take it")
    parser.add_argument("--profile", help="a profile of clsvm's kernels: cpu, cpu8, gpu, gpu-pair")
    parser.add_argument("--jobs", type=int, default=1, help="fits of ours at a time")
    parser.add_argument("--out", type=Path, help="a folder for a file of each broken rule")
    options = parser.parse_args(arguments)
    if options.profile:
        os.environ["CLSVM_PROFILE"] = options.profile
    summary, began = Summary(), perf_counter()
    for problem, ours, theirs in run(range(options.first, options.first + options.count), options.device, options.jobs):
        for one in summary.add(problem, ours, theirs):
            print(f"{one.rule}: {one.words}", flush=True)
            if options.out is not None:
                options.out.mkdir(parents=True, exist_ok=True)
                with (options.out / f"{one.rule.replace(' ', '_')}.txt").open("a") as file:
                    file.write(f"{one.words}\n{ours}\n{theirs}\n\n")
        if summary.counts["cases"] % 100 == 0:
            print(f"{summary.counts['cases']} cases, {perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    print(summary)
    return int(bool(summary.found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
