"""What the code says of itself in the pages: the tables of docs/generated.py."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from clsvm.kernels.records import BUILTIN

pytest.importorskip("sphinx", reason="the site needs Sphinx")

DOCS = Path(__file__).parents[2] / "docs"
ASKED = sorted(
    {words for page in DOCS.glob("*.md") for words in re.findall(r"```{generated} (.+)", page.read_text("utf-8"))}
)


def _generated() -> Any:
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generated = _generated()


@pytest.mark.parametrize("words", ASKED)
def test_what_pages_ask_for_are_tables(words: str) -> None:
    name, *given = words.split()
    tables = re.findall(r"(?:^\|.*\n?)+", generated.WRITERS[name](*given), re.MULTILINE)
    assert tables
    for table in tables:
        head, rule, *rows = table.splitlines()
        assert set(rule) <= set("|- :")
        assert rows
        for line in (head, rule, *rows):
            assert len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"(?<!\\)\|", head))


def test_every_writer_is_asked() -> None:
    assert {words.split()[0] for words in ASKED} == set(generated.WRITERS)


def test_kernels_and_flags_say_what_there_is() -> None:
    text = generated.kernels()
    assert all(f"| `{name}` |" in text for name in BUILTIN)
    assert "gamma = " in text
    train = generated.flags("train")
    for flag in ("`-s ", "`-t ", "`-c ", "`--checkpoint FILE`", "`-q`", "`file`"):
        assert flag in train


def test_bars_and_lines_within_cells() -> None:
    assert generated.markdown(("a",), [("|x|\ny",)]).splitlines() == ["| a |", "| --- |", r"| \|x\| y |"]
