"""Inducing points of a Nyström kernel machine
===========================================

The boundary of more inducing points bends more, up to a limit, falkon.png::

    python examples/falkon.py [--out FOLDER]

Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

from sklearn.datasets import make_moons
from sklearn.model_selection import train_test_split

from clsvm import LogisticFalkonClassifier, plots

parser = argparse.ArgumentParser(description="decision boundaries of a Nyström kernel machine")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
counts = 5, 20, 100
figure = plots.figure()
figure.set_size_inches(4 * len(counts), 4)

X, y = make_moons(10000, noise=0.3, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

for ax, m in zip(figure.subplots(1, len(counts)), counts, strict=True):
    model = LogisticFalkonClassifier(n_centers=m, gamma=1.0, penalty=1e-6, random_state=0).fit(X_train, y_train)
    score = model.score(X_test, y_test)
    report = model.fit_report_
    print(f"{m} inducing points: {score:.4f} test accuracy, {report.passes} passes over {len(X_train)} rows")

    # A few hundred rows show the classes; stars are the inducing points.
    plots.boundary(model, X_test[:400], y_test[:400], ax)
    ax.plot(*model.centers_.T, "k*", markersize=8, markerfacecolor="white")
    ax.set_title(f"{m} inducing points: accuracy {score:.3f}")

out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "falkon.png")
print(f"wrote {out / 'falkon.png'}")
