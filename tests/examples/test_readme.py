"""The Python blocks of README and of the pages run, in their order, one after the other in one namespace a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMESPACES: dict[Path, dict[str, Any]] = {page: {"__name__": page.stem} for page in PAGES}
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[Any]:
    """Each block as a parameter named after its line, shifted so that a traceback names the page's own line."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    lines = [text.count("\n", 0, found.start(1)) for found in _BLOCK.finditer(text)]
    codes = ["\n" * line + found.group(1) for line, found in zip(lines, _BLOCK.finditer(text), strict=True)]
    together = pytest.mark.xdist_group(page.stem)  # (of processes side by side one has them all)
    return [
        pytest.param(page, code, id=f"{page.stem}-{line + 1}", marks=together)
        for line, code in zip(lines, codes, strict=True)
    ]


@pytest.mark.parametrize(("page", "code"), [block for page in PAGES for block in blocks(page)])
def test_block_runs(page: Path, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(page), "exec"), NAMESPACES[page])
