"""Decision boundaries
===================

Boundaries and margins of four kernel functions in the plane, decision_boundary.png::

    python examples/decision_boundary.py [--out FOLDER]

Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

from sklearn.datasets import make_moons

from clsvm import SVC, Kernel, plots

parser = argparse.ArgumentParser(description="decision boundaries of several kernel functions")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out

X, y = make_moons(300, noise=0.25, random_state=0)
kernels = {
    "linear": "linear",
    "rbf": Kernel("rbf", gamma=2.0),
    "laplacian": Kernel("laplacian", gamma=1.0),
    "an expression": Kernel("1 / (1 + gamma * sqdist)", gamma=4.0),
}
figure = plots.figure()
figure.set_size_inches(4 * len(kernels), 4)
for ax, (name, kernel) in zip(figure.subplots(1, len(kernels)), kernels.items(), strict=True):
    model = SVC(kernel=kernel).fit(X, y)
    plots.boundary(model, X, y, ax)
    ax.set_title(f"{name}: {len(model.support_)} support vectors")
    print(f"{name} accuracy: {model.score(X, y):.3f}, {len(model.support_)} of {len(X)} rows are support vectors")

out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "decision_boundary.png")
print(f"wrote {out / 'decision_boundary.png'}")
