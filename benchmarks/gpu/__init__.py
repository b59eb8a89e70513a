"""All measurements of a GPU in one command: `python -m benchmarks gpu --help`."""
