"""All measurements of a GPU in one command: `python -m benchmarks gpu --help`.

The command is made for computers that are available for minutes. It imports only NumPy, SciPy, scikit-learn, pyopencl
and Mako, and writes each figure to disk at once.
"""
