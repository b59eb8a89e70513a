"""What the code can say of itself, as parts of the site's pages: ```{generated} kernels```, and so on.

kernels          the built-in kernel functions: parameters, their defaults and limits, formula
flags COMMAND    flags and arguments of a command, such as ``flags train`` or ``flags kernels emit``
results FILE     the table of a file in benchmarks/results
gpu FILE TITLE   a table of such a file of the GPU command
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from benchmarks.commands import page
from benchmarks.gpu import summary
from clsvm.cli.app import app
from clsvm.kernels.records import BUILTIN

ROOT = Path(__file__).parents[1]
Row = tuple[str, ...]


def markdown(header: Row, rows: Iterable[Row]) -> str:
    """A table; a bar within a cell is escaped."""
    lines = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in (header, *rows)]
    lines.insert(1, ["---"] * len(header))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def kernels() -> str:
    """The records of clsvm.kernels.records."""
    header = "name", "parameters", "k(x, y)"
    return markdown(header, ((f"`{name}`", _parameters(spec), f"`{spec.formula}`") for name, spec in BUILTIN.items()))


def _parameters(spec: Any) -> str:
    return "; ".join(f"{one.name} = {one.default:g} ({one.limits})" for one in spec.parameters) or "none"


def flags(*words: str) -> str:
    """What ``--help`` says of a command."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    return markdown(("flag", "meaning"), _flags(command))


def _flags(command: Any) -> Iterator[Row]:
    for one in command.params:
        if getattr(one, "hidden", False):
            continue
        names, argument = ", ".join(one.opts), not one.opts[0].startswith("-")
        value = "" if argument or one.is_flag else f" {one.metavar or 'VALUE'}"
        yield f"`{names}{value}`", one.help or ""


def results(name: str) -> str:
    """Return the tables of a result."""
    return page(json.loads((ROOT / "benchmarks" / "results" / name).read_text("utf-8")))


def gpu(name: str, *title: str) -> str:
    """A table of a result of the GPU command."""
    result = json.loads((ROOT / "benchmarks" / "results" / name).read_text("utf-8"))
    return summary.section(result, " ".join(title))


WRITERS: dict[str, Callable[..., str]] = {
    "gpu": gpu,
    "kernels": kernels,
    "flags": flags,
    "results": results,
}


class Generated(SphinxDirective):
    """See the module."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """The nodes of what the writer says, read as the page is."""
        name, *given = self.arguments[0].split()
        place, node = self.get_location(), nodes.container()
        self.state.nested_parse(StringList(WRITERS[name](*given).splitlines(), place), self.content_offset, node)
        return node.children


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls it."""
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True}
