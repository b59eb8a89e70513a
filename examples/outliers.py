"""Outliers
========

OneClassSVM is trained on images of the digit 3 and tells which other images are none, outliers.png::

    python examples/outliers.py [--out FOLDER]

Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from clsvm import OneClassSVM, plots

parser = argparse.ArgumentParser(description="outliers among images")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()

X, y = load_digits(return_X_y=True)
X = X / 16
seen, fresh = train_test_split(X[y == 3], test_size=0.3, random_state=0)
others = X[y != 3]

# At most a share nu of the training rows is strictly outside. Rows on the boundary are within tol of it.
model = OneClassSVM(nu=0.1, gamma=0.05).fit(seen)
print(f"trained on {len(seen)} images: share outside {(model.predict(seen) < 0).mean():.3f}, nu = 0.1")
print(f"fresh images of a 3: share outside {(model.predict(fresh) < 0).mean():.3f}")
print(f"other digits: share outside {(model.predict(others) < 0).mean():.3f}")

values = model.decision_function(np.concatenate([fresh, others]))
print(f"area under the ROC curve: {roc_auc_score(np.arange(len(values)) < len(fresh), values):.4f}")
for digit in np.unique(y[y != 3]):
    print(f"  {digit}: {(model.predict(X[y == digit]) < 0).mean():.3f}")

ax = figure.subplots()
bins = np.linspace(values.min(), values.max(), 50)
ax.hist(values[len(fresh) :], bins, density=True, alpha=0.6, label="other digits")
ax.hist(values[: len(fresh)], bins, density=True, alpha=0.6, label="fresh images of a 3")
ax.axvline(0, color="black", linewidth=1)
ax.set(xlabel="decision value, negative outside the boundary", ylabel="density of images")
ax.legend()
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "outliers.png")
print(f"wrote {out / 'outliers.png'}")
