"""Train Nyström kernel machines f = sum_j alpha_j K(., c_j) on m inducing points c_j, for smooth losses."""
