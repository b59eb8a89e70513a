"""Fit estimators to Dask arrays and data frames, whose rows are spread over many computers.

Chunks of rows stay on the Dask workers that hold them, and each worker computes on its own device. A Falkon fit sends
only inducing points and coefficients between workers. An SVM fit sends the rows of its working sets. The module needs
the extra ``dask``.
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
