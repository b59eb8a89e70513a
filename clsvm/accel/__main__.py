"""Run a script or module in which clsvm accelerates scikit-learn's SVMs: python -m clsvm.accel SCRIPT ..."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from clsvm import accel


def main() -> None:
    """Read the command line, and run a script or module in which clsvm accelerates scikit-learn's SVMs."""
    parser = argparse.ArgumentParser(prog="python -m clsvm.accel", description=__doc__)
    parser.add_argument("-m", dest="module", action="store_true", help="run a module")
    parser.add_argument("target", help="a script, or the name of a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script or module")
    args = parser.parse_args()
    if not args.module and not Path(args.target).is_file():
        parser.error(f"there is no script {args.target}")
    accel.install()
    sys.argv = [args.target, *args.arguments]
    if args.module:
        runpy.run_module(args.target, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(args.target).resolve().parent))
        runpy.run_path(args.target, run_name="__main__")


if __name__ == "__main__":
    main()
