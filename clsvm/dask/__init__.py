"""Fit estimators to Dask arrays and data frames. The rows may be on many computers.

Each chunk of rows remains on the Dask worker that holds it, and each worker computes on its own device. The caller and
the workers exchange only a part of the data. A Falkon fit exchanges the inducing points, sampled rows, coefficients,
and sums over rows. An SVM fit exchanges the targets, the coefficients, and the rows of the working sets. The package
needs pip's extra ``clsvm[dask]``.
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
