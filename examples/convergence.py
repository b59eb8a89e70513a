"""How a fit converges
===================

The report has the duality gap and the KKT violation over time, and where the time went, convergence.png::

    python examples/convergence.py [--out FOLDER]

Needs matplotlib: pip install '.[plot]'.
"""

import argparse
from pathlib import Path

from sklearn.datasets import make_classification

from clsvm import SVC, plots

parser = argparse.ArgumentParser(description="how a fit converges")
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture; default: the current one")
out = parser.parse_args().out
figure = plots.figure()
figure.set_size_inches(11, 4.5)
left, right = figure.subplots(1, 2)

X, y = make_classification(5000, n_features=20, n_informative=10, flip_y=0.1, random_state=0)
SVC().fit(X[:3000], y[:3000])  # compiles the programs, so that the times below are those of the solver

# A fit ends where the violation is within tol, or where the gap is within gap_tol, whichever is sooner.
reports = {
    "tol = 1e-3": SVC(C=10, tol=1e-3).fit(X, y).fit_report_,
    "gap_tol = 1e-2": SVC(C=10, gap_tol=1e-2).fit(X, y).fit_report_,
}
for name, report in reports.items():
    print(f"{name}: gap {report.gap:.1e}, violation {report.violation:.1e}, {report.steps} SMO iterations")
    print(f"  {report.status}")
plots.convergence(reports["tol = 1e-3"], left)
left.set_title("tol = 1e-3")
plots.breakdown(reports, right)
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "convergence.png")
print(f"wrote {out / 'convergence.png'}")
