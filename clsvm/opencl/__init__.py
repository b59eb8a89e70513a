"""Use OpenCL for all other packages: runtimes, devices, programs, memory. Only this package imports pyopencl, mako."""
