"""Run the command ``clsvm`` for ``python -m clsvm``."""

from __future__ import annotations

from clsvm.cli.app import main

if __name__ == "__main__":
    main()
