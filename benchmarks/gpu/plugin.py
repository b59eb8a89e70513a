"""A pytest plugin that writes down each test as it begins and ends, so that a suite that is cut off or crashes tells.

CLSVM_GPU_TESTS names the file it appends to, CLSVM_GPU_DONE one that lists tests to leave out, a line each.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

MESSAGE = 4  # lines of a failure that are kept
OURS = ("clsvm", "benchmarks", "tests")
_own = {"log": "", "profile": ""}  # the file, in the process that reports; how names of its kind of profiles begin


def pytest_configure(config: pytest.Config) -> None:
    """Only the process that collects the reports writes them, not those that xdist starts."""
    if not hasattr(config, "workerinput"):
        _own["log"] = os.environ.get("CLSVM_GPU_TESTS", "")


def _write(**event: Any) -> None:
    if _own["log"]:
        with open(_own["log"], "a", encoding="utf-8") as stream:
            stream.write(json.dumps(event | {"at": time.time()}) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has run; first come tests of a device, last those of kernels made for other devices than this."""
    _write(collected=len(items))
    done = _done()
    left_out = [item for item in items if item.nodeid in done]
    kept = [item for item in items if item.nodeid not in done]
    config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(kept, key=_rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Of xdist's processes each collects, and this one counts."""
    _write(collected=len(ids) + len(_done()))


def _done() -> set[str]:
    return set(Path(os.environ["CLSVM_GPU_DONE"]).read_text(encoding="utf-8").splitlines())


def _rank(item: Any) -> int:
    profile = getattr(getattr(item, "callspec", None), "params", {}).get("profile")
    if profile is not None and not profile.startswith(_profile()):
        return 2
    return 0 if "device" in getattr(item, "fixturenames", ()) else 1


def _profile() -> str:
    if not _own["profile"]:
        from clsvm.opencl import devices

        own = devices.default_profile(devices.find(None))
        _own["profile"] = {"vector": "cpu", "group": "gpu"}[own.shape]
    return _own["profile"]


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    """The test that begins: the one to blame if nothing follows."""
    _write(start=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What became of it: a failure in any phase counts once, a pass when the test itself is over."""
    if report.failed:
        _bad("failed" if report.when == "call" else "error", report)
    elif report.when == "call" or report.skipped:
        _write(end=report.nodeid, outcome=report.outcome)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be read stands for all of its tests."""
    if report.failed:
        _bad("error", report)


def _bad(outcome: str, report: Any) -> None:
    """Where it is others' modules that are missing, that is no failure: "lacking"."""
    message = _message(report)
    missing = [re.match(r"ModuleNotFoundError: No module named '(\w+)", line) for line in message]
    lacking = any(found and found[1] not in OURS for found in missing)
    _write(end=report.nodeid, outcome="lacking" if lacking else outcome, message=message)


def _message(report: Any) -> list[str]:
    """The lines that say what went wrong."""
    text = report.longreprtext.strip().splitlines()
    said = [line[2:].strip() for line in text if line.startswith("E ")] or text[-MESSAGE:]
    return [line[:300] for line in said[:MESSAGE]]
