"""README's Python blocks run, in their order, one after the other in one namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "README.md"
NAMESPACE: dict[str, Any] = {"__name__": "readme"}
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[Any]:
    """Each block as a parameter named after its line, shifted so that a traceback names the README's own line."""
    text = README.read_text(encoding="utf-8") if README.exists() else ""
    lines = [text.count("\n", 0, found.start(1)) for found in _BLOCK.finditer(text)]
    codes = ["\n" * line + found.group(1) for line, found in zip(lines, _BLOCK.finditer(text), strict=True)]
    return [pytest.param(code, id=f"line{line + 1}") for line, code in zip(lines, codes, strict=True)]


@pytest.mark.parametrize("code", blocks())
def test_block_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(README), "exec"), NAMESPACE)
