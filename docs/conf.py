"""Configure Sphinx: the site has the MyST pages of this folder, and a reference made from public docstrings."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import clsvm
from clsvm.opencl import devices

project, author, release = "clsvm", "clsvm developers", clsvm.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "image_scrapers": ("gallery_of_files.pictures",),
    "reset_argv": "gallery_of_files.arguments",
    "abort_on_example_error": True,
    # Without a device, or with CLSVM_GALLERY=0, the pages show the scripts without running them.
    "plot_gallery": os.environ.get("CLSVM_GALLERY") != "0" and any(info.usable for info in devices.devices()),
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
}
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseEstimator,tuple",
    "exclude-members": "parts, curves",
}
html_theme = "furo"
html_show_copyright = False
html_title = f"clsvm {release}"
_SPAN = re.compile(r"(``.*?``|`[^`]*`|:\w+:`[^`]*`)", re.DOTALL)


def _escaped(text: str) -> str:
    """Escape formulas and names of a docstring, because |x| and b_ have a meaning in reStructuredText."""
    text = re.sub(r"([|*\\])", r"\\\1", text)
    return re.sub(r"(\w)_(?!\w)", r"\1\\_", text)


def _plain(_app: object, _what: str, _name: str, of: object, _options: object, lines: list[str]) -> None:
    """Escape the text outside of backticks in clsvm's docstrings. scikit-learn's docstrings are reStructuredText."""
    if not getattr(of, "__module__", "clsvm").startswith("clsvm"):
        return
    parts = _SPAN.split("\n".join(lines))
    lines[:] = "".join(part if i % 2 else _escaped(part) for i, part in enumerate(parts)).split("\n")


def _skip(_app: object, _what: str, _name: str, of: object, _skipped: bool, _options: object) -> bool | None:
    """Leave out the members that clsvm's classes inherit from scikit-learn."""
    home = getattr(getattr(of, "fget", of), "__module__", None)
    return True if isinstance(home, str) and home.startswith("sklearn") else None


def setup(app: object) -> None:
    """Connect the functions above to Sphinx's events. Sphinx calls this function."""
    app.connect("autodoc-process-docstring", _plain)  # type: ignore[attr-defined]
    app.connect("autodoc-skip-member", _skip)  # type: ignore[attr-defined]
