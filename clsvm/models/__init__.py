"""Fitted machines: decision values, probabilities, files."""
