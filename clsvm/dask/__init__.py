"""Estimators of rows that are on many machines: scikit-learn's interface over Dask's arrays and data frames.

The chunks of rows stay with Dask's workers, each on its own device. A Falkon model sends its inducing points and
coefficients alone, an SVM the rows of its working sets. Needs the extra ``dask``.
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
