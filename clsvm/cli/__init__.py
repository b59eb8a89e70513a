"""Define the command ``clsvm``: a module for each subcommand with LIBSVM's flags, and shared functions."""
