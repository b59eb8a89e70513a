"""Handwritten digits
==================

Ten classes told apart by SVC, and what the fit says of itself::

    python examples/digits.py

The data set is the one that scikit-learn brings: 1797 images of 8 x 8 pixels.
"""

from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

from clsvm import SVC

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X / 16, y, random_state=0, stratify=y)

model = SVC(C=10, gamma=0.1).fit(X_train, y_train)
print(f"{len(X_train)} images, {len(model.classes_)} classes, {len(model.intercept_)} machines: one for each pair")
print(f"support vectors: {model.n_support_.sum()}, by class {model.n_support_.tolist()}")
print(f"test accuracy: {model.score(X_test, y_test):.4f}")

wrong = confusion_matrix(y_test, model.predict(X_test))
wrong[range(10), range(10)] = 0
for digit, taken_for in zip(*wrong.nonzero(), strict=True):
    print(f"  {digit} taken for {taken_for}: {wrong[digit, taken_for]} of {(y_test == digit).sum()}")

# How good the solution is, measured and not assumed: the violation of the optimality conditions, within tol = 1e-3, and
# how far the dual objective can be from the optimum at most.
report = model.fit_report_
print(f"{report.status}")
print(f"largest violation: {report.violation:.2e}, relative duality gap: {report.gap:.2e}")
print(f"{report.steps} steps, {report.bytes_held / 2**20:.1f} MiB held on {report.device}")
