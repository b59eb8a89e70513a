"""Rows that memory_limit does not hold
====================================

A memory-mapped file passes through the device in blocks, larger_than_memory.png::

    python examples/larger_than_memory.py [--out FOLDER]

Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from clsvm import FalkonRegressor, plots

parser = argparse.ArgumentParser(description="rows that memory_limit does not hold")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()

limits = [0.5, 1.0, 2.0, 4.0, 8.0]  # MB
with TemporaryDirectory() as folder:
    # Each block of rows is made and written to the file; the file never has to be in memory as a whole.
    file, rng = Path(folder, "rows.npy"), np.random.default_rng(0)
    made = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(5000, 100))
    for start in range(0, len(made), 1000):
        made[start : start + 1000] = rng.normal(size=(1000, made.shape[1]))
    y = np.tanh(made[:, 0] * made[:, 1])
    made.flush()

    X = np.load(file, mmap_mode="r")
    held, predicted = [], []
    for limit in limits:
        model = FalkonRegressor(n_centers=50, memory_limit=f"{limit}MB", random_state=0).fit(X, y)
        held.append(model.fit_report_.bytes_held / 1e6)
        predicted.append(model.predict(X[:200]))
        print(f"limit {limit} MB: {held[-1]:.2f} MB held; {model.fit_report_.layout.split('; ')[-1]}")
    difference = max(np.abs(some - predicted[0]).max() for some in predicted)
    print(f"predictions differ by at most {difference:.1e}")
    size = X.nbytes / 1e6
    del X, made, model

ax = figure.subplots()
ax.plot(limits, limits, "k--", label="memory_limit")
ax.plot(limits, held, "o-", label="held on the device")
ax.axhline(size, color="red", label="all rows")
ax.set(xscale="log", yscale="log", xlabel="memory_limit, MB", ylabel="MB")
ax.legend()
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "larger_than_memory.png")
print(f"wrote {out / 'larger_than_memory.png'}")
