"""A picture of some panels in a row, with what all of them have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.ladder_plot import library


@contextmanager
def picture(result: dict[str, Any], path: Path, panels: int) -> Iterator[list[Any]]:
    """The axes of some panels to draw into; then they get grids and legends, and ``path`` is written."""
    plot = library()
    figure, axes = plot.subplots(1, panels, figsize=(6.5 * panels, 5), layout="constrained", squeeze=False)
    yield list(axes[0])
    for one in axes[0]:
        one.grid(alpha=0.3, which="both")
        one.legend(fontsize=9)
    figure.suptitle(f"{result['device']}, {result['date']}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plot.close(figure)
