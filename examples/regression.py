"""Regression
==========

SVR on standardised columns and targets, its R2 beside that of ridge regression::

    python examples/regression.py                               # scikit-learn's diabetes data, 442 rows
    python examples/regression.py cadata.xz --C 1 --gamma 0.1   # a svmlight file, plain or .gz, .bz2, .xz

California housing itself (cadata on LIBSVM's page) has to be downloaded, hence the smaller set by default. C and gamma
were chosen for that by cross-validation on its training rows; it is nearly linear, and cadata is not.
"""

import argparse

from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clsvm import SVR
from clsvm.libsvm import read_problem

parser = argparse.ArgumentParser(description="SVR beside ridge regression")
parser.add_argument("data", nargs="?", help="svmlight file; default: scikit-learn's diabetes data")
parser.add_argument("--C", type=float, default=0.3)
parser.add_argument("--gamma", type=float, default=0.03)
args = parser.parse_args()
X, y = read_problem(args.data) if args.data else load_diabetes(return_X_y=True)
X = X.toarray() if args.data else X
print(f"{args.data or 'diabetes'}: {X.shape[0]} rows, {X.shape[1]} columns, targets {y.min():g} to {y.max():g}")
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)


def standardised(machine):
    """Fit the estimator to standardised features and targets."""
    inner = make_pipeline(StandardScaler(), machine)
    return TransformedTargetRegressor(inner, transformer=StandardScaler()).fit(X_train, y_train)


# The tube in which errors cost nothing reaches epsilon = 0.1 standard deviations to either side.
model = standardised(SVR(C=args.C, gamma=args.gamma, epsilon=0.1))
svr = model.regressor_[-1]
print(f"support vectors: {len(svr.support_)} of {len(y_train)}, {svr.fit_report_.status}")
print(f"SVR test R2: {model.score(X_test, y_test):.4f}")
print(f"ridge test R2: {standardised(RidgeCV()).score(X_test, y_test):.4f}")
