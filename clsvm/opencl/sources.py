"""Read OpenCL source texts, and render Mako templates of OpenCL source. Only this module imports mako.

The folder ``cl_kernels/`` holds source texts that are the same for every model. The folder ``templates/`` holds
templates whose text depends on the kernel function or on how rows are stored. Each folder has subfolders, named after
the package of clsvm that launches the kernels in them. A checkout has both folders beside the package ``clsvm``; a
wheel has them inside the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from mako.lookup import TemplateLookup

_PACKAGE = Path(__file__).resolve().parent.parent
ROOT = _PACKAGE if (_PACKAGE / "cl_kernels").is_dir() else _PACKAGE.parent
_TEMPLATES = TemplateLookup(directories=[str(ROOT / "templates")], strict_undefined=True)


@cache
def cl(*names: str) -> str:
    """Return the joined source texts of opencl/common.cl and of the files ``names`` in the folder cl_kernels.

    For example, the name "gram/pack" stands for the file cl_kernels/gram/pack.cl.
    """
    texts = ("opencl/common", *names)
    return "\n".join((ROOT / "cl_kernels" / f"{name}.cl").read_text("utf-8") for name in texts)


@lru_cache(256)  # every fit needs the texts of several programs, and rendering one takes a millisecond
def render(name: str, **holes: Any) -> str:
    """Return the text of opencl/common.cl, followed by the template ``templates/<name>.mako`` rendered as a text.

    ``holes`` are the values of the template's variables.
    """
    return cl() + "\n" + filled(name, **holes)


def filled(name: str, **holes: Any) -> str:
    """Return the text of the template ``templates/<name>.mako``, with the values ``holes`` of its variables.

    If ``holes`` lacks a variable that the template needs, raise an error with the variable's name.
    """
    return str(_TEMPLATES.get_template(f"{name}.mako").render_unicode(**holes))


@dataclass(frozen=True)
class Variant:
    """Describe an OpenCL program and one of its kernels.

    Attributes
    ----------
    label
        name of the program in messages and reports.
    text
        OpenCL source text.
    options
        compiler options.
    entry
        name of the OpenCL kernel to launch.
    """

    label: str
    text: str
    options: tuple[str, ...]
    entry: str

    @property
    def numbers(self) -> dict[str, int]:
        """Return a dict from name to value for the compiler options -Dname=value whose value is a whole number."""
        pairs = (option.removeprefix("-D").partition("=") for option in self.options)
        return {name: int(value) for name, _, value in pairs if value.isdecimal()}
