"""OpenCL for all other packages: runtimes, devices, programs, memory. Nothing else imports pyopencl or mako."""
