"""Finds the OpenCL texts and renders the Mako templates; the only module that imports mako.

``cl_kernels/`` holds text that is the same for every model, ``templates/`` text that depends on a kernel function or
a layout, in folders named as the packages that launch it. In a checkout both stand beside the package, in a wheel
inside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from mako.lookup import TemplateLookup

_PACKAGE = Path(__file__).resolve().parent.parent
ROOT = _PACKAGE if (_PACKAGE / "cl_kernels").is_dir() else _PACKAGE.parent


@cache
def cl(*names: str) -> str:
    """Return the texts ``cl_kernels/<name>.cl``, such as "gram/pack", one after another, opencl/common.cl first (so no
    include path is needed)."""
    texts = ("opencl/common", *names)
    return "\n".join((ROOT / "cl_kernels" / f"{name}.cl").read_text("utf-8") for name in texts)


@lru_cache(256)  # it takes a millisecond, and every fit asks for several
def render(name: str, **holes: Any) -> str:
    """Return common.cl and ``templates/<name>.mako``, filled."""
    return cl() + "\n" + filled(name, **holes)


def filled(name: str, **holes: Any) -> str:
    """Return ``templates/<name>.mako`` with exactly ``holes`` visible; a missing one is an error naming it."""
    return str(_lookup().get_template(f"{name}.mako").render_unicode(**holes))


@cache
def _lookup() -> TemplateLookup:
    return TemplateLookup(directories=[str(ROOT / "templates")], strict_undefined=True)


@dataclass(frozen=True)
class Variant:
    """A program: what it is, its text, its build options, the kernel to launch."""

    label: str
    text: str
    options: tuple[str, ...]
    entry: str

    @property
    def numbers(self) -> dict[str, int]:
        """Return the options that are whole numbers."""
        pairs = (option.removeprefix("-D").partition("=") for option in self.options)
        return {name: int(value) for name, _, value in pairs if value.isdecimal()}
