"""Nyström kernel machines on m inducing points: f = sum_j alpha_j K(., c_j), for losses with two derivatives."""
