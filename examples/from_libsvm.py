"""From LIBSVM and scikit-learn, and back
======================================

Convert data files, model files and fitted estimators, from_libsvm.png::

    python examples/from_libsvm.py [--out FOLDER]

It writes breast_cancer.train and .test in svmlight format, and two model files that svm-predict reads, into a folder.
Files that svm-train wrote are read in the same way. Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn import svm

import clsvm
from clsvm import libsvm, plots
from clsvm.datasets import sample

parser = argparse.ArgumentParser(description="LIBSVM's files and scikit-learn's estimators")
parser.add_argument("--out", type=Path, default=Path("from_libsvm"), help="folder of the files; default: from_libsvm")
out = parser.parse_args().out
figure = plots.figure()
out.mkdir(parents=True, exist_ok=True)

# A test file may lack the last columns, so their number is given.
train, test = sample("breast_cancer", out)
X, y = libsvm.read_problem(train)
X_test, y_test = libsvm.read_problem(test, n_features=X.shape[1])
print(f"{train.name}: {X.shape[0]} rows, {X.shape[1]} columns; {test.name}: {X_test.shape[0]} rows")

# scikit-learn (LIBSVM inside) fits an estimator, clsvm takes it over and writes LIBSVM's model file.
theirs = svm.SVC(gamma=0.03).fit(X, y)
ours = clsvm.from_sklearn(theirs)
difference = np.abs(ours.decision_function(X_test) - theirs.decision_function(X_test)).max()
print(f"from_sklearn: decision values differ by at most {difference:.1e}")
libsvm.save_model(ours, out / "breast_cancer.model")

# A model file becomes a model, which predicts and is written again.
model = libsvm.load_model(out / "breast_cancer.model")
print(f"model file accuracy: {(model.predict(X_test) == y_test).mean():.4f} with {model.kernel}")
libsvm.save_model(model, out / "again.model")
same = (out / "breast_cancer.model").read_bytes() == (out / "again.model").read_bytes()
print(f"written again: {'the same bytes' if same else 'other bytes'}")

# clsvm fits an estimator, and scikit-learn predicts with it.
ours = clsvm.SVC(gamma=0.03).fit(X, y)
back = clsvm.to_sklearn(ours)
values = back.decision_function(X_test)
difference = np.abs(values - ours.decision_function(X_test)).max()
print(f"to_sklearn: decision values differ by at most {difference:.1e}")
print(f"scikit-learn's accuracy with it: {back.score(X_test, y_test):.4f}")

# Two fits of the same problem, one by each library, agree within their tolerance.
ax = figure.subplots()
ax.scatter(theirs.decision_function(X_test), values, c=y_test, cmap="RdBu", edgecolors="black")
ax.axline((0, 0), slope=1, color="black", linewidth=0.5)
ax.set(xlabel="decision value, fitted by scikit-learn", ylabel="decision value, fitted by clsvm")
figure.savefig(out / "from_libsvm.png")
print(f"wrote {out / 'from_libsvm.png'}")
