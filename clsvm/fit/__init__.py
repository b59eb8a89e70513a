"""Fit kernel SVMs: solve the dual problems over the training rows, and report how the fit ended."""
