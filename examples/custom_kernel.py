"""Kernel functions of one's own
=============================

An expression, an element-wise one, and a Python function, custom_kernel.png::

    python examples/custom_kernel.py [--out FOLDER]

The first two become device code. The function is called on the host and may read anything: here it reads strings.
Needs matplotlib: pip install '.[plot]'.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from clsvm import SVC, Kernel, kernel_matrix, plots

parser = argparse.ArgumentParser(description="kernel functions of one's own")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()
figure.set_size_inches(12, 4)
axes = figure.subplots(1, 3)

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
scaler = StandardScaler().fit(X_train)
X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
by_class = X_train[np.argsort(y_train, kind="stable")]

expression = Kernel("1 / (1 + gamma * sqdist)", gamma=0.03)
elementwise = Kernel.elementwise("abs(x - y)", "exp(-gamma * s)", gamma=0.02)
for ax, (name, kernel) in zip(axes, {"expression": expression, "element-wise": elementwise}.items(), strict=False):
    model = SVC(C=10, kernel=kernel).fit(X_train, y_train)
    print(f"{name} accuracy: {model.score(X_test, y_test):.4f} with {kernel}")
    print(f"  {kernel.check(X_train)}")
    ax.imshow(kernel_matrix(by_class, kernel=kernel))
    ax.set_title(f"{name}: K of rows, by class")

# Strings of sixty letters, drawn by a seed. Half of them hold a word of ten letters with one letter changed.
rng = np.random.default_rng(0)
labels = rng.integers(2, size=400)
letters = rng.choice(list("ACGT"), (len(labels), 60))
for row in np.flatnonzero(labels):
    word, at = list("TATAATGCAC"), rng.integers(50)
    word[rng.integers(10)] = rng.choice(list("ACGT"))
    letters[row, at : at + 10] = word
strings = ["".join(row) for row in letters]
pieces = HashingVectorizer(analyzer="char", ngram_range=(4, 4), alternate_sign=False)


def spectrum(left, right):
    """Return K (len(left), len(right)): how many pieces of four letters two strings share, for strings of length 1."""
    return pieces.transform(left) @ pieces.transform(right).T


with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # a function on the host is slow, which is intended here
    model = SVC(C=10, kernel=spectrum).fit(strings[:300], labels[:300])
print(f"function accuracy: {model.score(strings[300:], labels[300:]):.4f} on strings such as {strings[0]}")

by_label = [strings[row] for row in np.argsort(labels[:100], kind="stable")]
axes[2].imshow(spectrum(by_label, by_label).toarray(), vmax=0.3)
axes[2].set_title("function: K of strings, by class")
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "custom_kernel.png")
print(f"wrote {out / 'custom_kernel.png'}")
