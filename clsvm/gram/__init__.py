"""Compute products with kernel matrices: row layouts, generated programs, the row cache, and sums over support
vectors."""
