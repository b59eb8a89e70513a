"""Run a benchmark: `python -m benchmarks NAME`."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["gpu"]:  # a computer with a GPU may lack the packages that the other benchmarks import
        from benchmarks.gpu.command import main
    else:
        from benchmarks.command import main
    sys.exit(main(sys.argv[1:]))
