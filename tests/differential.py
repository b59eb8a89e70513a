"""clsvm and LIBSVM on random hard problems (hard_cases.py), every result checked in long double (benchmarks/check.py).

    python -m tests.differential --count 5000 --device Intel --profile cpu8

prints how many cases each solved and what broke a rule, with the seed that shows it; ``--count 1 --first SEED`` does
one again. A fit that hangs ends the run, with the place where it hung.
"""

import argparse
import faulthandler
import multiprocessing
import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.check import Checked, check
from tests.hard_cases import MAX_TIME, Case, case

HANG = 600.0  # seconds after which a case, whose fit of ours has MAX_TIME, hangs
STEPS = 5 * 10**6  # that LIBSVM may take for a case
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


def measure(problem: Case, fit: Callable[[], Any]) -> Result:
    """Fit and check a case."""
    started = perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = fit()
    except Exception as error:
        return Result(error=type(error).__name__, words=traceback.format_exc(), seconds=perf_counter() - started)
    seconds, report = perf_counter() - started, getattr(model, "fit_report_", None)
    numeric = [f"{one.filename}:{one.lineno}: {one.message}" for one in caught if one.category is RuntimeWarning]
    found = check(model, problem.gram(), problem.y, problem.weights)
    result = Result(model.fit_status_ == 0, checked=found, seconds=seconds, words="\n".join(numeric))
    if report is not None:
        result = result._replace(status=report.status, violation=report.violation, dual=report.dual)
    return result


def both(seed: int, device: str | None, steps: int) -> tuple[Case, Result, Result | None]:
    """Return a case with our result and LIBSVM's."""
    faulthandler.dump_traceback_later(HANG, exit=True, file=sys.__stderr__)
    problem = case(seed)
    if os.environ.get("CLSVM_PROFILE", "").endswith("pair"):  # a device without double precision refuses float64
        problem.own.pop("dtype", None)
    ours = measure(problem, lambda: problem.ours(device))
    theirs = measure(problem, lambda: problem.theirs(steps)) if problem.has_peer or ours.error else None
    faulthandler.cancel_dump_traceback_later()
    return problem, ours, theirs


def broken(problem: Case, ours: Result, theirs: Result | None) -> Iterator[tuple[str, str]]:
    """(rule, what was seen) of each rule that our result breaks. ``theirs`` is None if LIBSVM has no such problem."""
    if ours.error:
        refused = ours.error == "ValueError"
        of_one_class = "belong to the same class" in ours.words and len(np.unique(problem.weighing)) < 2
        if not (refused and (of_one_class or (theirs is not None and theirs.error == "ValueError"))):
            yield ("refused" if refused else ours.error), ours.words.strip().splitlines()[-1]
        return
    if ours.words:
        yield "warning", ours.words.splitlines()[0]
    checked, tol = ours.checked, problem.asked["tol"]
    assert checked is not None
    hidden = EPS * checked.reach
    if not np.isfinite([ours.violation, ours.dual]).all():
        yield "not finite", f"violation {ours.violation}, dual {ours.dual}"
    if checked.box > 1e-9:
        yield "box", f"a bound is missed by {checked.box:.2g} of it"
    if checked.off_share > 1e-9 and hidden <= tol:
        yield "sum", f"a sum is off by {checked.off_share:.2g} of n C"
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
    return checked.violation <= 1.2 * tol and max(checked.off_share, checked.box) <= 1e-9


class Summary:
    """What all cases came to: counts, and (rule, seed, words) of each broken rule."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.found: list[tuple[str, int, str]] = []

    def add(self, problem: Case, ours: Result, theirs: Result | None) -> list[tuple[str, int, str]]:
        """Count a case and return what it breaks."""
        tol = problem.asked["tol"]
        hidden = ours.checked is not None and EPS * ours.checked.reach > tol / 10
        self.counts["cases"] += 1
        self.counts["converged"] += ours.converged
        self.counts["beyond float64's precision"] += hidden
        self.counts["longer than max_time by a half"] += ours.seconds > 1.5 * MAX_TIME
        if theirs is not None and not hidden:
            self.counts["of these within float64's precision, LIBSVM solved"] += solved(theirs, tol)
            self.counts["of these within float64's precision, converged"] += ours.converged
        new = [(rule, problem.seed, f"{words}\n    {problem}") for rule, words in broken(problem, ours, theirs)]
        self.found += new
        return new

    def __str__(self) -> str:
        seeds: dict[str, list[str]] = {}
        for rule, seed, _ in self.found:
            seeds.setdefault(rule, []).append(str(seed))
        lines = [f"{count:7d}  {name}" for name, count in self.counts.items()]
        return "\n".join(lines + [f"{len(some):7d}  BROKEN {rule}: {' '.join(some)}" for rule, some in seeds.items()])


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=5000, help="cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--device", help="a name as the estimators take it")
    parser.add_argument("--profile", help="a profile of clsvm's kernels: cpu, cpu8, gpu, gpu-pair")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    if options.profile:
        os.environ["CLSVM_PROFILE"] = options.profile
    summary, began = Summary(), perf_counter()
    seeds = range(options.first, options.first + options.count)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for results in pool.map(partial(both, device=options.device, steps=STEPS), seeds):
            for rule, _, words in summary.add(*results):
                print(f"{rule}: {words}", flush=True)
            if summary.counts["cases"] % 100 == 0:
                print(f"{summary.counts['cases']} cases, {perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    print(summary)
    return int(bool(summary.found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
