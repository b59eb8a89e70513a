"""Handwritten digits
==================

SVC tells ten classes apart and reports how good its solution is, digits.png::

    python examples/digits.py [--out FOLDER]

The data set comes with scikit-learn: 1797 images of 8 x 8 pixels. Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

from clsvm import SVC, plots

parser = argparse.ArgumentParser(description="handwritten digits")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X / 16, y, random_state=0, stratify=y)

model = SVC(C=10, gamma=0.1).fit(X_train, y_train)
pairs = len(model.intercept_)
print(f"{len(X_train)} images, {len(model.classes_)} classes, {pairs} binary classifiers: one for each pair")
print(f"support vectors: {model.n_support_.sum()}, by class {model.n_support_.tolist()}")
print(f"test accuracy: {model.score(X_test, y_test):.4f}")

predicted = model.predict(X_test)
wrong = confusion_matrix(y_test, predicted)
wrong[range(10), range(10)] = 0
for digit, taken_for in zip(*wrong.nonzero(), strict=True):
    print(f"  {digit} taken for {taken_for}: {wrong[digit, taken_for]} of {(y_test == digit).sum()}")

# The report measures the solution: the violation of the optimality conditions is within tol = 1e-3, and the duality gap
# bounds how far the objective is from its optimum.
report = model.fit_report_
print(f"{report.status}")
print(f"largest violation: {report.violation:.2e}, relative duality gap: {report.gap:.2e}")
print(f"{report.steps} SMO iterations, {report.bytes_held / 2**20:.1f} MiB on {report.device}")

# Test images by the margin of their decision: the least certain ones, wrong ones in red.
values = np.sort(model.decision_function(X_test), axis=1)
least = np.argsort(values[:, -1] - values[:, -2])[:12]
figure.set_size_inches(8, 3)
for ax, image in zip(figure.subplots(2, 6).flat, least, strict=True):
    ax.imshow(X_test[image].reshape(8, 8), cmap="gray_r")
    right = predicted[image] == y_test[image]
    ax.set_title(f"{y_test[image]} as {predicted[image]}", color="black" if right else "red", fontsize="medium")
    ax.set_axis_off()
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "digits.png")
print(f"wrote {out / 'digits.png'}")
