"""``clsvm devices``: the OpenCL devices of this machine."""

from __future__ import annotations

import os

import typer

from clsvm.cli.common import (
    console,
    reporting,
    show_table,
)


def devices(ctx: typer.Context) -> None:
    """``clsvm devices``: see :func:`clsvm.opencl.devices.devices`."""
    with reporting(ctx):
        from rich.table import Table

        from clsvm.opencl import devices as machine
        from clsvm.opencl import icd

        records = machine.devices()
        if not records:
            raise machine.no_platform()
        default, rule = _default()
        table = Table()
        for title in ("index", "platform", "device", "driver", "memory", "largest buffer", "fp64", "usable", "default"):
            table.add_column(title, overflow="fold")
        for r in records:
            sizes = f"{r.memory / 2**30:.1f} GiB", f"{r.largest_buffer / 2**30:.1f} GiB"
            usable = "yes" if r.usable else f"no: {r.reason}"
            marks = "yes" if r.fp64 else "no", usable, "yes" if r.index == default else ""
            table.add_row(str(r.index), r.platform, r.name, r.driver, *sizes, *marks)
        show_table(table)
        for words in icd.unloaded():
            console().print(words)
        console().print(rule if any(r.usable for r in records) else f"None of these is usable: {machine.cure()}")


def _default() -> tuple[int | None, str]:
    """The index of the device that is taken where none is named, if there is one, and the rule that makes it so."""
    from clsvm.errors import DeviceError
    from clsvm.opencl.devices import find

    named = os.environ.get("CLSVM_DEVICE")
    rule = "a usable GPU, else a usable CPU; of several the one with most memory (CLSVM_DEVICE can name another)"
    rule = f"The default is what CLSVM_DEVICE says: {named!r}" if named else f"The default is {rule}"
    try:
        return find(None).index, rule
    except DeviceError:
        return None, f"{rule}, which is none of these, or more than one" if named else rule
