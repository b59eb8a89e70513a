"""What the tests of the benchmarks' commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.__main__ import main

HEAD = {"device": "a device", "date": "2026-01-01", "machine": {"cpu": "a cpu", "cores": 2}}


def measured(tmp_path: Path, capsys: Any, *words: str) -> tuple[int, dict[str, Any], str]:
    """What the command returns, writes, and shows from its file."""
    out = tmp_path / "found.json"
    code = main([*words, "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["kind"] == words[0]
    assert {"date", "device", "devices", "machine", "versions"} <= set(result)
    capsys.readouterr()
    assert main(["table", str(out)]) == 0
    shown = capsys.readouterr().out
    columns = {line.count("|") for line in shown.splitlines() if line.startswith("|")}
    assert len(columns) == 1, "every row has the header's columns"
    return code, result, shown
