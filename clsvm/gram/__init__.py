"""Compute products with kernel matrices, by layouts of rows, generated OpenCL programs and a cache of kernel rows."""
