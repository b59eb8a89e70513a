"""From LIBSVM and scikit-learn, and back
======================================

Data files, model files, fitted estimators::

    python examples/from_libsvm.py [--out FOLDER]

It writes breast_cancer.train and .test in svmlight format, and two model files that svm-predict reads, into a folder;
files that svm-train wrote are read in the same way.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn import svm

import clsvm
from clsvm import libsvm
from clsvm.datasets import sample

parser = argparse.ArgumentParser(description="LIBSVM's files and scikit-learn's estimators")
parser.add_argument("--out", type=Path, default=Path("from_libsvm"), help="folder of the files; default: from_libsvm")
out = parser.parse_args().out
out.mkdir(parents=True, exist_ok=True)

# Data: a test file may lack the last columns, so it is told how many there are.
train, test = sample("breast_cancer", out)
X, y = libsvm.read_problem(train)
X_test, y_test = libsvm.read_problem(test, n_features=X.shape[1])
print(f"{train.name}: {X.shape[0]} rows, {X.shape[1]} columns; {test.name}: {X_test.shape[0]} rows")

# An estimator that scikit-learn (that is LIBSVM) fitted becomes ours, and ours a model file of LIBSVM's.
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

# The other way: trained here, used where scikit-learn is all there is.
ours = clsvm.SVC(gamma=0.03).fit(X, y)
back = clsvm.to_sklearn(ours)
difference = np.abs(back.decision_function(X_test) - ours.decision_function(X_test)).max()
print(f"to_sklearn: decision values differ by at most {difference:.1e}")
print(f"scikit-learn's accuracy with it: {back.score(X_test, y_test):.4f}")
