"""Run a benchmark: `python -m benchmarks NAME`. Processes that one starts import this file, and nothing by it."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["gpu"]:  # its machines may have nothing of what the others import
        from benchmarks.gpu.command import main
    else:
        from benchmarks.command import main
    sys.exit(main(sys.argv[1:]))
