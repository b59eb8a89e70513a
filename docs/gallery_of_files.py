"""Give sphinx-gallery the arguments and pictures of the scripts that write pictures to ``--out FOLDER``."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sphinx_gallery.scrapers import figure_rst

_folder = TemporaryDirectory()
OUT = Path(_folder.name)


def arguments(_conf: dict[str, Any], script: dict[str, Any]) -> list[str]:
    """Return the command-line arguments of a script."""
    return ["--out", str(OUT)] if "--out" in Path(script["src_file"]).read_text("utf-8") else []


def pictures(_block: Any, block_vars: dict[str, Any], conf: dict[str, Any]) -> str:
    """Return the pictures that a script has written, as reStructuredText."""
    paths = sorted(OUT.glob("*.png"))
    found = [str(shutil.move(path, next(block_vars["image_path_iterator"]))) for path in paths]
    return str(figure_rst(found, conf["src_dir"]))
