"""Probabilities
=============

CalibratedClassifierCV turns decision values into probabilities by a sigmoid, probabilities.png::

    python examples/probabilities.py [--out FOLDER]

The sigmoid is fitted to rows left out. Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.calibration import CalibratedClassifierCV, calibration_curve
from sklearn.datasets import make_classification
from sklearn.metrics import brier_score_loss, log_loss
from sklearn.model_selection import train_test_split

from clsvm import SVC, LogisticFalkonClassifier, plots

parser = argparse.ArgumentParser(description="probabilities of two classes")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()

# A tenth of the labels is wrong, so nobody can be sure of any row. A good probability says so.
X, y = make_classification(3000, n_features=10, n_informative=5, flip_y=0.2, class_sep=0.8, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)

# ensemble=False: five fits to calibrate on their left-out rows, and one of all rows that predicts.
model = CalibratedClassifierCV(SVC(C=1.0), ensemble=False, cv=5).fit(X_train, y_train)
probability = model.predict_proba(X_test)[:, 1]
share = np.full(len(y_test), y_train.mean())  # a prediction that ignores the row
print(f"test accuracy: {model.score(X_test, y_test):.4f}")
for name, loss in {"Brier score": brier_score_loss, "log loss": log_loss}.items():
    print(f"{name}: {loss(y_test, probability):.4f} (of the class's share alone {loss(y_test, share):.4f})")

# A logistic Falkon model gives probabilities without calibration.
logistic = LogisticFalkonClassifier(n_centers=300, gamma=0.05, penalty=1e-4, random_state=0).fit(X_train, y_train)
curves = {"SVC, calibrated": probability, "LogisticFalkonClassifier": logistic.predict_proba(X_test)[:, 1]}
ax = figure.subplots()
ax.axline((0, 0), slope=1, color="black", linewidth=0.5)
for name, some in curves.items():
    observed, predicted = calibration_curve(y_test, some, n_bins=8, strategy="quantile")
    ax.plot(predicted, observed, "o-", label=f"{name}: log loss {log_loss(y_test, some):.3f}")
    print(f"{name} log loss: {log_loss(y_test, some):.4f}")
    print(f"  predicted {predicted.round(2).tolist()}")
    print(f"  observed  {observed.round(2).tolist()}")
ax.set(xlabel="predicted probability", ylabel="observed share of the class")
ax.legend()
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "probabilities.png")
print(f"wrote {out / 'probabilities.png'}")
