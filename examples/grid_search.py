"""Grid search
===========

A search whose folds share their work, and its scores as a heat map, grid_search.png::

    python examples/grid_search.py [--out FOLDER]

Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from clsvm import SVC, plots
from clsvm.model_selection import SVCSearchCV

parser = argparse.ArgumentParser(description="grid search over C and gamma")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()  # refused now, not after the search, where matplotlib is missing

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X / 16, y % 2, random_state=0, stratify=y)

# As scikit-learn's GridSearchCV: the same splits, scores and attributes. For one gamma all folds and all values of C
# read the same rows of the kernel matrix, and each C starts from the one before.
grid = {"C": np.logspace(-1, 2, 4), "gamma": np.logspace(-3, 1, 5)}
search = SVCSearchCV(SVC(), grid, cv=5).fit(X_train, y_train)

results = search.cv_results_
print(f"{len(results['params'])} points x {search.n_splits_} folds, odd digits against even ones")
for at in np.argsort(results["rank_test_score"])[:3]:
    params = ", ".join(f"{name} = {value:g}" for name, value in results["params"][at].items())
    print(f"  {params}: {results['mean_test_score'][at]:.4f} +- {results['std_test_score'][at]:.4f}")
print(f"test accuracy: {search.score(X_test, y_test):.4f}")

out.mkdir(parents=True, exist_ok=True)
plots.grid(search, x="gamma", y="C", ax=figure.subplots())
figure.savefig(out / "grid_search.png")
print(f"wrote {out / 'grid_search.png'}")
