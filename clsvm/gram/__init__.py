"""Compute products with kernel matrices on OpenCL devices.

The modules of this package store training rows on a device, generate OpenCL programs for kernel functions, and cache
rows of the kernel matrix.
"""
