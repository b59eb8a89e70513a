"""Wrap OpenCL for all other packages: runtimes, devices, programs, memory. Only this one imports pyopencl and mako."""
