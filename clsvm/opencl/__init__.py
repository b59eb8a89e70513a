"""Wrap OpenCL runtimes, devices, programs and memory for the other packages of clsvm.

No other package of clsvm imports pyopencl or mako.
"""
