"""Unequal classes
===============

class_weight moves the boundary towards the frequent class, class_weights.png::

    python examples/class_weights.py [--out FOLDER]

Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

from sklearn.datasets import make_blobs
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split

from clsvm import SVC, plots

parser = argparse.ArgumentParser(description="unequal classes")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()
figure.set_size_inches(12, 4)

# The second class has 60 of the thousand rows.
X, y = make_blobs([940, 60], centers=[(0, 0), (2, 2)], cluster_std=[1.5, 0.7], random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)

weights = {"none": None, "balanced": "balanced", "5 to 1": {0: 1, 1: 5}}
for ax, (name, weight) in zip(figure.subplots(1, len(weights)), weights.items(), strict=True):
    model = SVC(C=1.0, gamma=0.3, class_weight=weight).fit(X_train, y_train)
    frequent, rare = recall_score(y_test, model.predict(X_test), average=None)
    print(f"{name}: recall of the rare class {rare:.3f}, of the frequent class {frequent:.3f}")
    plots.boundary(model, X_train, y_train, ax)
    ax.set_title(f"{name}: recall {rare:.2f} and {frequent:.2f}")

out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "class_weights.png")
print(f"wrote {out / 'class_weights.png'}")
