"""Solvers: each sees products with K, never the rows or the labels."""
