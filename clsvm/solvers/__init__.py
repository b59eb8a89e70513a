"""Solve dual problems by products with the kernel matrix; solvers see neither rows nor labels."""
