"""OpenCL: drivers, devices, programs, memory; the only place of pyopencl and mako."""
