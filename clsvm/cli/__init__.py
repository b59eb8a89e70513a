"""The command ``clsvm``, one module for each of its commands."""
