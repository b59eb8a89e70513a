"""Estimators under scikit-learn's contract."""
