"""The Python blocks of README and of the pages run, in their order, one after the other in one namespace a page."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text("utf-8"), dict[str, Any](__name__=page.stem)
    for found in BLOCK.finditer(text):  # (shifted, so that a traceback names the page's own line)
        exec(compile("\n" * text.count("\n", 0, found.start(1)) + found.group(1), str(page), "exec"), names)
