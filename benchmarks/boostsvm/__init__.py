"""The tables and figures of BoostSVM's paper (Xie et al. 2023), measured on real and on synthetic data sets."""
