"""Everything worth knowing about a GPU in one command: `python -m benchmarks gpu --help`.

It is for machines that have NumPy, SciPy, scikit-learn, pyopencl, Mako and nothing else, lent for minutes:
nothing else is imported here, and what has been found is on disk as soon as it is.
"""
