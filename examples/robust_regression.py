"""Regression with outliers among the targets
==========================================

The squared loss follows outliers, the log-cosh loss hardly does, robust_regression.png::

    python examples/robust_regression.py [--out FOLDER]

Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

import numpy as np

from clsvm import SVR, FalkonRegressor, plots

parser = argparse.ArgumentParser(description="regression with outliers among the targets")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()

# A tenth of the targets is far too large.
rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0, 6, (1000, 1)), axis=0)
truth = np.sin(X[:, 0])
y = truth + 0.1 * rng.normal(size=len(X))
bad = rng.random(len(X)) < 0.1
y[bad] += rng.uniform(5, 15, bad.sum())

models = {
    "squared": FalkonRegressor(n_centers=50, gamma=1.0, penalty=1e-4, random_state=0),
    "log-cosh": FalkonRegressor(n_centers=50, gamma=1.0, penalty=1e-4, loss="log_cosh", random_state=0),
    "epsilon-insensitive (SVR)": SVR(gamma=1.0, epsilon=0.1),
}
ax = figure.subplots()
ax.scatter(X[:, 0], y, s=5, color="lightgrey")
for name, model in models.items():
    f = model.fit(X, y).predict(X)
    error = np.sqrt(np.mean((f - truth) ** 2))
    print(f"{name} error: {error:.4f}")
    ax.plot(X[:, 0], f, label=f"{name}: error {error:.2f}")
ax.plot(X[:, 0], truth, "k--", label="without noise")
ax.set_ylim(-2, 16)
ax.legend()
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "robust_regression.png")
print(f"wrote {out / 'robust_regression.png'}")
