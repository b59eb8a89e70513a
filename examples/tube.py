"""The tube of support vector regression
=====================================

SVR ignores errors within a tube of half the width epsilon; NuSVR finds that width, tube.png::

    python examples/tube.py [--out FOLDER]

Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

import numpy as np

from clsvm import SVR, NuSVR, plots

parser = argparse.ArgumentParser(description="the tube of support vector regression")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()
figure.set_size_inches(12, 4)

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0, 6, (120, 1)), axis=0)
y = np.sin(X[:, 0]) + 0.15 * rng.normal(size=len(X))

# nu is at least the share of rows outside of the tube, and at most the share of support vectors.
models = {
    "SVR, epsilon = 0.1": SVR(C=10, gamma=0.5, epsilon=0.1),
    "SVR, epsilon = 0.4": SVR(C=10, gamma=0.5, epsilon=0.4),
    "NuSVR, nu = 0.2": NuSVR(C=10, gamma=0.5, nu=0.2),
}
for ax, (name, model) in zip(figure.subplots(1, len(models), sharey=True), models.items(), strict=True):
    f = model.fit(X, y).predict(X)
    # Support vectors with coefficients below C lie on the edge of the tube.
    free = model.support_[np.abs(model.dual_coef_[0]) < model.C * (1 - 1e-6)]
    epsilon = np.abs(y - f)[free].mean()
    outside = (np.abs(y - f) > epsilon + 1e-2).mean()
    print(f"{name}: half width {epsilon:.3f}, {len(model.support_)} support vectors, {outside:.2f} of the rows outside")

    ax.fill_between(X[:, 0], f - epsilon, f + epsilon, alpha=0.2)
    ax.plot(X[:, 0], f, color="black")
    ax.scatter(X[:, 0], y, s=10, color="grey")
    ax.scatter(X[model.support_, 0], y[model.support_], s=40, facecolors="none", edgecolors="red")
    ax.set_title(f"{name}: {len(model.support_)} support vectors")

out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "tube.png")
print(f"wrote {out / 'tube.png'}")
