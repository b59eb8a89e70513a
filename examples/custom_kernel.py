"""Kernel functions of one's own
=============================

An expression, an element-wise one, and a Python function::

    python examples/custom_kernel.py

The first two become device code. The function is called on the host and may read anything: here it reads strings.
"""

import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from clsvm import SVC, Kernel

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
scaler = StandardScaler().fit(X_train)
X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)

expression = Kernel("1 / (1 + gamma * sqdist)", gamma=0.03)
elementwise = Kernel.elementwise("abs(x - y)", "exp(-gamma * s)", gamma=0.02)
for name, kernel in {"expression": expression, "element-wise": elementwise}.items():
    model = SVC(C=10, kernel=kernel).fit(X_train, y_train)
    print(f"{name} accuracy: {model.score(X_test, y_test):.4f} with {kernel}")
    print(f"  {kernel.check(X_train)}")

# Strings of sixty letters drawn by a seed; half of them hold a word of ten, somewhere, with a letter of it changed.
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
    """K (len(left), len(right)): the pieces of four letters that two strings share, each string scaled to length 1."""
    return pieces.transform(left) @ pieces.transform(right).T


with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # that a function on the host is slow is meant here
    model = SVC(C=10, kernel=spectrum).fit(strings[:300], labels[:300])
print(f"function accuracy: {model.score(strings[300:], labels[300:]):.4f} on strings such as {strings[0]}")
