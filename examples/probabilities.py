"""Probabilities
=============

CalibratedClassifierCV turns decision values into them, by a sigmoid fitted to rows left out::

    python examples/probabilities.py
"""

import numpy as np
from sklearn.calibration import CalibratedClassifierCV, calibration_curve
from sklearn.datasets import make_classification
from sklearn.metrics import brier_score_loss, log_loss
from sklearn.model_selection import train_test_split

from clsvm import SVC

# Labels of which a tenth is wrong: nobody can be sure of any row, and a good probability says so.
X, y = make_classification(3000, n_features=10, n_informative=5, flip_y=0.2, class_sep=0.8, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)

# ensemble=False: five fits to calibrate on their left-out rows, and one of all rows that predicts.
model = CalibratedClassifierCV(SVC(C=1.0), ensemble=False, cv=5).fit(X_train, y_train)
probability = model.predict_proba(X_test)[:, 1]
share = np.full(len(y_test), y_train.mean())  # what to say of a row without looking at it
print(f"test accuracy: {model.score(X_test, y_test):.4f}")
for name, loss in {"Brier score": brier_score_loss, "log loss": log_loss}.items():
    print(f"{name}: {loss(y_test, probability):.4f} (of the class's share alone {loss(y_test, share):.4f})")

print("predicted  observed")
for seen, said in zip(*calibration_curve(y_test, probability, n_bins=5, strategy="quantile"), strict=True):
    print(f"{said:9.3f} {seen:9.3f}")
