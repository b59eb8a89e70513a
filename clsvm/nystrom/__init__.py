"""Nyström kernel machines on m inducing points c_j: f = sum_j alpha_j K(., c_j), for losses with two derivatives."""
