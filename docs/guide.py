"""Draw the pictures of the user guide: ``python docs/guide.py docs/pictures``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.calibration import CalibratedClassifierCV, calibration_curve
from sklearn.datasets import load_digits, make_blobs, make_classification, make_moons
from sklearn.model_selection import train_test_split

from clsvm import SVC, SVR, LogisticFalkonClassifier, OneClassSVM, plots
from clsvm.model_selection import SVCSearchCV
from clsvm.probability import calibrated

FOLDER = Path(sys.argv[1])


def figure(width: float, height: float, panels: int = 1):
    """Return an empty figure of this size in inches, and its axes side by side."""
    made = plots.figure()
    made.set_size_inches(width, height)
    return made, np.ravel(made.subplots(1, panels))


def boundary(model, X, y, ax) -> None:
    """Draw the decision values of a model, and the rows coloured by class."""
    plots.boundary(model, X, y, ax=ax)
    ax.scatter(*X.T, c=y, cmap="RdBu", s=16, edgecolors="white", linewidths=0.3, zorder=3)


def classification() -> None:
    """Draw the boundary between two classes for three values of C."""
    made, axes = figure(11, 3.6, 3)
    X, y = make_moons(200, noise=0.25, random_state=0)
    for C, ax in zip((0.1, 10, 10000), axes, strict=True):
        model = SVC(C=C, gamma=1.0).fit(X, y)
        boundary(model, X, y, ax)
        ax.set_title(f"C = {C:g}, {len(model.support_)} support vectors")
    made.savefig(FOLDER / "classification.png", dpi=80)


def regression() -> None:
    """Draw a regression, its tube and its support vectors."""
    made, (ax,) = figure(7, 3.6)
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 6, 100))[:, None]
    y = np.sin(x[:, 0]) + rng.normal(scale=0.15, size=len(x))
    model = SVR(C=10, epsilon=0.2, gamma=1.0).fit(x, y)
    line = np.linspace(0, 6, 300)
    f = model.predict(line[:, None])
    ax.fill_between(line, f - model.epsilon, f + model.epsilon, alpha=0.2, label="tube: errors up to epsilon are free")
    ax.plot(line, f, label="prediction")
    ax.scatter(x, y, s=12, color="black", label="rows")
    support = model.support_
    ax.scatter(x[support], y[support], s=70, facecolors="none", edgecolors="tab:red", label="support vectors")
    ax.legend(fontsize="small")
    made.savefig(FOLDER / "regression.png", dpi=80)


def novelty() -> None:
    """Draw the boundary around rows for two values of nu."""
    made, axes = figure(9, 3.8, 2)
    X, _ = make_blobs(200, centers=[(-2, -2), (2, 2)], cluster_std=0.6, random_state=0)
    for nu, ax in zip((0.02, 0.2), axes, strict=True):
        model = OneClassSVM(nu=nu, gamma=0.3).fit(X)
        boundary(model, X, model.predict(X), ax)
        ax.set_title(f"nu = {nu}, {(model.predict(X) < 0).sum()} of {len(X)} rows outside")
    made.savefig(FOLDER / "novelty_detection.png", dpi=80)


def probabilities() -> None:
    """Draw predicted probabilities over observed shares for three kinds of probabilities."""
    made, (ax,) = figure(5.5, 4.5)
    X, y = make_classification(6000, n_features=10, n_informative=5, flip_y=0.2, class_sep=0.8, random_state=0)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    machine = SVC(C=1.0).fit(X_train, y_train)
    logistic = LogisticFalkonClassifier(n_centers=300, penalty=1e-4, random_state=0)
    models = {
        "CalibratedClassifierCV": CalibratedClassifierCV(SVC(C=1.0), ensemble=False).fit(X_train, y_train),
        "clsvm.probability.calibrated": calibrated(machine, X_train, y_train),
        "LogisticFalkonClassifier": logistic.fit(X_train, y_train),
    }
    ax.plot([0, 1], [0, 1], color="grey", linestyle=":")
    for (name, model), marker in zip(models.items(), "so^", strict=True):
        seen, said = calibration_curve(y_test, model.predict_proba(X_test)[:, 1], n_bins=8, strategy="quantile")
        ax.plot(said, seen, marker=marker, label=name)
    ax.set(xlabel="predicted probability", ylabel="observed share")
    ax.legend(fontsize="small")
    made.savefig(FOLDER / "probabilities.png", dpi=80)


def unbalanced() -> None:
    """Draw the boundary with and without class weights."""
    made, axes = figure(9, 3.8, 2)
    X, y = make_blobs([300, 15], centers=[(0, 0), (2, 2)], cluster_std=1.0, random_state=0)
    for weights, ax in zip((None, "balanced"), axes, strict=True):
        model = SVC(C=1, gamma=0.3, class_weight=weights).fit(X, y)
        plots.boundary(model, X, y, ax=ax)
        found = (model.predict(X) == 1)[y == 1].sum()
        ax.set_title(f"class_weight = {weights!r}: {found} of 15 found")
    made.savefig(FOLDER / "unbalanced_classes.png", dpi=80)


def search() -> None:
    """Draw the scores of a search over C and gamma."""
    made, (ax,) = figure(6, 3.8)
    X, y = load_digits(return_X_y=True)
    X_train, _, y_train, _ = train_test_split(X / 16, y % 2, random_state=0, stratify=y)
    found = SVCSearchCV(SVC(), {"C": np.logspace(-1, 2, 4), "gamma": np.logspace(-3, 1, 5)}, cv=3)
    found.fit(X_train, y_train)
    plots.grid(found, ax=ax)
    made.savefig(FOLDER / "model_selection.png", dpi=80)


for draw in (classification, regression, novelty, probabilities, unbalanced, search):
    draw()
