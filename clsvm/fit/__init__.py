"""Fit kernel SVMs: solve the dual problems of a fit over its rows, and report how the fit ended."""
