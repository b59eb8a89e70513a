"""README is short, links lead somewhere, every page is in the site, and the reference has every public name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import clsvm

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
REFERENCE = (ROOT / "docs" / "api.md").read_text("utf-8")
MODULES = ("libsvm", "linalg", "probability", "plots", "dask")  # documented whole


def test_readme_is_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_site() -> None:
    listed = re.findall(r"^(\w+)$", (ROOT / "docs" / "index.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in (ROOT / "docs").glob("*.md") if page.stem != "index")


def test_the_reference_has_every_public_name() -> None:
    named = set(re.findall(r"^\.\. auto\w+:: clsvm\.([\w.]+)$", REFERENCE, re.MULTILINE))
    expected = {name for name in clsvm.__all__ if name not in ("__version__", "model_selection", *MODULES)}
    expected |= {f"model_selection.{name}" for name in clsvm.model_selection.__all__}
    assert expected | set(MODULES) <= named


def test_every_public_name_says_what_it_is() -> None:
    for module in ("", *MODULES, "model_selection"):
        home = importlib.import_module(f"clsvm.{module}".rstrip("."))
        for name in getattr(home, "__all__", ()):
            words = getattr(getattr(home, name), "__doc__", None)
            assert name == "__version__" or (words and len(words.split()) > 4), f"{home.__name__}.{name}"
