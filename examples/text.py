"""Text
====

SVC classifies TF-IDF weights of word counts in sparse rows, text.png::

    python examples/text.py [--out FOLDER]     # a small synthetic sample
    python examples/text.py news20_bydate.xz   # word counts in svmlight format, plain or .gz, .bz2, .xz

The sample is no text: it is drawn by a seed, so that the example needs no network. Its 20000 "words" are as unevenly
frequent as a language's, and each of its four topics prefers 300 of them. Its accuracy says nothing of real text.
Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from clsvm import SVC, plots
from clsvm.libsvm import read_problem


def synthetic(n=1000, words=20000, topics=4):
    """Return word counts (n, words) in CSR and topics (n,)."""
    rng = np.random.default_rng(0)
    frequency = np.tile(1 / np.arange(10, words + 10), (topics, 1))
    for topic in frequency:
        topic[rng.choice(2000, 300, replace=False)] *= 3
    frequency /= frequency.sum(axis=1, keepdims=True)
    y = rng.integers(topics, size=n)
    lengths = rng.integers(30, 120, size=n)
    rows = [sparse.csr_matrix(rng.multinomial(m, frequency[t])) for m, t in zip(lengths, y, strict=True)]
    return sparse.vstack(rows, "csr").astype(float), y


parser = argparse.ArgumentParser(description="TF-IDF weights in sparse rows, classified by SVC")
parser.add_argument("data", nargs="?", help="svmlight file of word counts; default: a synthetic sample")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
args = parser.parse_args()
path, out, figure = args.data, args.out, plots.figure()
X, y = read_problem(path) if path else synthetic()
print(f"{path or 'synthetic sample'}: {X.shape[0]} rows, {X.shape[1]} words, {X.nnz / X.shape[0]:.0f} in a row")

X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
model = make_pipeline(TfidfTransformer(sublinear_tf=True), SVC(C=10, gamma=1)).fit(X_train, y_train)
svc = model[-1]
print(f"{len(svc.classes_)} classes, {len(svc.support_)} of {len(y_train)} rows are support vectors")
print(f"rows on the device: {svc.fit_report_.layout}")
largest = np.unique(y_test, return_counts=True)[1].max() / len(y_test)
print(f"test accuracy: {model.score(X_test, y_test):.4f} (of the largest class alone {largest:.4f})")

# The densest columns are stored whole, the others as entries: the shares of rows that have a word show why.
axes = figure.subplots(1, 2)
figure.set_size_inches(10, 4)
shares = np.sort(np.bincount(X.indices, minlength=X.shape[1]))[::-1] / X.shape[0]
axes[0].loglog(np.arange(1, len(shares) + 1), shares)
axes[0].set(xlabel="word, the most frequent first", ylabel="share of rows with the word")
counts = confusion_matrix(y_test, model.predict(X_test))
axes[1].imshow(counts, cmap="Blues")
for (topic, taken_for), count in np.ndenumerate(counts):
    axes[1].text(taken_for, topic, count, ha="center", va="center", color="white" if topic == taken_for else "black")
axes[1].set(xlabel="predicted topic", ylabel="topic")
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "text.png")
print(f"wrote {out / 'text.png'}")
