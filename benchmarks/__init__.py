"""Times and checks clsvm beside LIBSVM and oneDAL: `python -m benchmarks fit --help`."""
