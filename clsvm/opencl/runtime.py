"""pyopencl, imported once the settings stand that the OpenCL loader reads then, and only then."""

from __future__ import annotations

import os

from clsvm.opencl import icd

SETTINGS = {name: os.environ[name] for name in icd.SETTINGS if os.environ.get(name)}  # the user's own
icd.prepare()
import pyopencl as cl  # noqa: E402

__all__ = ["SETTINGS", "cl"]
