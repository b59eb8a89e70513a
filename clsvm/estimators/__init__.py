"""Provide clsvm's estimators, which follow scikit-learn's estimator contract."""
