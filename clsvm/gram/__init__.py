"""Products with a kernel matrix that is never stored whole: layouts of rows, generated programs, row cache."""
