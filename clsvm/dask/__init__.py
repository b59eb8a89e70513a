"""Machines on centres whose rows are on many machines: scikit-learn's interface over Dask's arrays and data frames.

The chunks of rows stay with Dask's workers, each on its own device; centres and coefficients are all that travels.
Needs the extra ``dask``.
"""

from __future__ import annotations

from clsvm.dask.falkon import FalkonClassifier, FalkonRegressor, LogisticFalkonClassifier

__all__ = ["FalkonClassifier", "FalkonRegressor", "LogisticFalkonClassifier"]
