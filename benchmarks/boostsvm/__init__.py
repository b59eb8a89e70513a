"""The tables and figures of BoostSVM's paper (Xie et al. 2023), measured here on real sets and on synthetic ones."""
