"""Train Nyström kernel machines for smooth losses.

The decision function is f = offset + sum_j alpha_j K(., c_j), for the kernel function K, inducing points c_1, ..., c_m
and their coefficients alpha_j.
"""
