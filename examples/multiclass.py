"""More than two classes
=====================

Pairs of classes, each class against the rest, and all classes in one problem, multiclass.png::

    python examples/multiclass.py [--out FOLDER]

Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

from sklearn.datasets import make_blobs

from clsvm import SVC, plots

parser = argparse.ArgumentParser(description="more than two classes")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()
figure.set_size_inches(12, 4)

X, y = make_blobs(300, centers=[(0, 0), (2.5, 0), (1.2, 2), (3.5, 2.5)], cluster_std=0.7, random_state=0)
ways = {"ovo": "each pair", "ovr": "each class against the rest", "crammer_singer": "all classes at once"}
for ax, (way, words) in zip(figure.subplots(1, len(ways)), ways.items(), strict=True):
    model = SVC(C=1.0, gamma=0.5, multi_class=way).fit(X, y)
    print(f"{way} accuracy: {model.score(X, y):.3f}, {len(model.support_)} support vectors")
    print(f"  dual_coef_ {model.dual_coef_.shape}, intercept_ {model.intercept_.shape}")
    plots.boundary(model, X, y, ax)
    ax.set_title(f"{way}: {words}")

out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "multiclass.png")
print(f"wrote {out / 'multiclass.png'}")
