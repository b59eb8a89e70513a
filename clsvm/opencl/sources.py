"""Read the OpenCL source texts and render the Mako templates. Only this module imports mako.

The folder ``cl_kernels/`` holds texts that are the same for every model. The folder ``templates/`` holds texts that
depend on a kernel function or a layout of rows. A subfolder of either is named after the package of clsvm that launches
its kernels. A checkout has both folders beside the package ``clsvm``, a wheel has them inside it.
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
    """Return the text of opencl/common.cl, followed by the texts of ``cl_kernels/<name>.cl`` for the given names.

    A name is, for example, "gram/pack".
    """
    texts = ("opencl/common", *names)
    return "\n".join((ROOT / "cl_kernels" / f"{name}.cl").read_text("utf-8") for name in texts)


@lru_cache(256)  # rendering a template takes a millisecond, and every fit needs several programs
def render(name: str, **holes: Any) -> str:
    """Return the text of opencl/common.cl, and ``templates/<name>.mako`` rendered with the variables ``holes``."""
    return cl() + "\n" + filled(name, **holes)


def filled(name: str, **holes: Any) -> str:
    """Return ``templates/<name>.mako`` rendered with the variables ``holes``.

    If the template needs a variable that is not in ``holes``, raise an error with the variable's name.
    """
    return str(_TEMPLATES.get_template(f"{name}.mako").render_unicode(**holes))


@dataclass(frozen=True)
class Variant:
    """Describe an OpenCL program and one of its kernels.

    Attributes
    ----------
    label
        name of the program in output for people.
    text
        OpenCL source text.
    options
        compiler options.
    entry
        name of the kernel to launch.
    """

    label: str
    text: str
    options: tuple[str, ...]
    entry: str

    @property
    def numbers(self) -> dict[str, int]:
        """Return name -> value for the compiler options -Dname=value whose value is a whole number."""
        pairs = (option.removeprefix("-D").partition("=") for option in self.options)
        return {name: int(value) for name, _, value in pairs if value.isdecimal()}
