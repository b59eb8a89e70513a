"""What the tests of the benchmarks share."""

from __future__ import annotations

import pytest

from benchmarks import command


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every set is measured in this process."""
    monkeypatch.setattr(command, "in_own_process", lambda measure, name, options: measure(name, options))
