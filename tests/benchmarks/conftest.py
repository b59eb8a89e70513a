"""What the tests of the benchmarks share."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.command import main

Ran = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def ran(tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str) -> Ran:
    """What a command returns and writes, and the page of its file."""

    def run(*words: str) -> tuple[int, dict[str, Any], str]:
        out = tmp_path / "new" / "found.json"
        code = main([*words, "--device", device, "--out", str(out)])
        result = json.loads(out.read_text())
        assert result["kind"] == words[0]
        assert {"date", "device", "devices", "machine", "versions"} <= set(result)
        capsys.readouterr()
        assert main(["table", str(out)]) == 0
        return code, result, re.sub(r" +", " ", capsys.readouterr().out)

    return run
