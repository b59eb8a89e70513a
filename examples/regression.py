"""Regression
==========

SVR on standardised columns and targets beside ridge regression, regression.png::

    python examples/regression.py [--out FOLDER]                # scikit-learn's diabetes data, 442 rows
    python examples/regression.py cadata.xz --C 1 --gamma 0.1   # a svmlight file, plain or .gz, .bz2, .xz

California housing itself (cadata on LIBSVM's page) has to be downloaded, so the default is a smaller set. C and gamma
were chosen for it by cross-validation on its training rows. Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clsvm import SVR, plots
from clsvm.libsvm import read_problem

parser = argparse.ArgumentParser(description="SVR beside ridge regression")
parser.add_argument("data", nargs="?", help="svmlight file; default: scikit-learn's diabetes data")
parser.add_argument("--C", type=float, default=0.3)
parser.add_argument("--gamma", type=float, default=0.03)
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
args = parser.parse_args()
figure = plots.figure()
X, y = read_problem(args.data) if args.data else load_diabetes(return_X_y=True)
X = X.toarray() if args.data else X
print(f"{args.data or 'diabetes'}: {X.shape[0]} rows, {X.shape[1]} columns, targets {y.min():g} to {y.max():g}")
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)


def standardised(estimator):
    """Fit the estimator to standardised features and targets."""
    inner = make_pipeline(StandardScaler(), estimator)
    return TransformedTargetRegressor(inner, transformer=StandardScaler()).fit(X_train, y_train)


# Errors within the tube cost nothing. It reaches epsilon = 0.1 standard deviations to either side.
model = standardised(SVR(C=args.C, gamma=args.gamma, epsilon=0.1))
ridge = standardised(RidgeCV())
svr = model.regressor_[-1]
print(f"support vectors: {len(svr.support_)} of {len(y_train)}, {svr.fit_report_.status}")
print(f"SVR test R2: {model.score(X_test, y_test):.4f}")
print(f"ridge test R2: {ridge.score(X_test, y_test):.4f}")

figure.set_size_inches(8, 4)
for ax, (name, one) in zip(figure.subplots(1, 2), {"SVR": model, "ridge": ridge}.items(), strict=True):
    ax.scatter(y_test, one.predict(X_test), s=15, alpha=0.7)
    ax.axline((y_test.mean(), y_test.mean()), slope=1, color="black", linewidth=0.5)
    ax.set(title=f"{name}: R2 {one.score(X_test, y_test):.3f}", xlabel="target", ylabel="prediction")
args.out.mkdir(parents=True, exist_ok=True)
figure.savefig(args.out / "regression.png")
print(f"wrote {args.out / 'regression.png'}")
