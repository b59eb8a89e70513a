"""Kernel machines on m centres: f = sum_j alpha_j K(., c_j), preconditioned, for losses with two derivatives."""
