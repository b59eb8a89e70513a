"""Solvers: they see products with the kernel matrix and problems, never rows or labels."""
