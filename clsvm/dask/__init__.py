"""Fit estimators to Dask arrays and data frames, whose rows are spread over many computers.

Each chunk of rows remains on the Dask worker that holds it, and each worker computes on its own device. A Falkon fit
sends only inducing points, coefficients and sums over rows between the caller and the workers. An SVM fit also sends
the rows of its working sets. The package needs pip's extra ``clsvm[dask]``.
"""

from __future__ import annotations

from clsvm.errors import install

try:
    import dask.array  # noqa: F401
    import distributed  # noqa: F401
except ImportError as error:
    raise ImportError(f"clsvm.dask needs Dask's arrays and distributed: {install('dask')}") from error

from clsvm.dask.falkon import FalkonClassifier, FalkonRegressor, LogisticFalkonClassifier
from clsvm.dask.search import FalkonSearchCV, SVCSearchCV
from clsvm.dask.svm import SVC, SVR, NuSVC, OneClassSVM

__all__ = [
    "SVC",
    "SVR",
    "FalkonClassifier",
    "FalkonRegressor",
    "FalkonSearchCV",
    "LogisticFalkonClassifier",
    "NuSVC",
    "OneClassSVM",
    "SVCSearchCV",
]
