"""``python -m clsvm`` is the command ``clsvm``."""

from __future__ import annotations

from clsvm.cli.app import main

if __name__ == "__main__":
    main()
