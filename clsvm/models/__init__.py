"""Provide fitted models: their decision values, predictions and probabilities, and their files."""
