"""Figures of BoostSVM's paper, for reference beside ours. Its machine: an i9-10900K and an RTX 3090."""

from __future__ import annotations

SOLVERS = ("LIBSVM", "ThunderSVM", "TensorSVM", "BoostSVM")

# Seconds of training by solver; None: not run, or out of memory. MNIST has ten classes there, ijcnn1 91701 rows.
TABLE_2: dict[str, tuple[float | None, ...]] = {
    "url": (8.91e4, 4.16e4, None, 6.92e3),
    "news20.binary": (117.89, 6.50, None, 3.09),
    "rcv1": (1.23e4, 348.58, None, 93.76),
    "real-sim": (97.97, 3.80, 21.71, 1.97),
    "e2006": (451.96, 13.86, None, 3.10),
    "mnist8": (1.49e3, 53.69, None, 25.40),
    "ijcnn1": (3.98, 1.17, 2.72, 0.84),
    "gisette": (80.67, 2.75, 1.02, 0.58),
    "epsilon": (1.72e5, 2.28e3, 66.98, 43.67),
}

# Seconds of ThunderSVM on a GPU: as it is, with the columns in order of density, with the columns partitioned, and
# those of BoostSVM, which has both.
TABLE_3: dict[str, tuple[float | None, ...]] = {
    "real-sim": (3.80, 2.69, None, 1.97),
    "rcv1": (348.58, 100.27, None, 93.76),
    "e2006": (13.86, 7.02, 5.96, 3.10),
}

# ThunderSVM's and BoostSVM's products: GFLOP/s, then GB/s.
TABLE_4 = {"real-sim": (419.75, 1123.8, 61.11, 221.4), "rcv1": (425.65, 1187.18, 55.41, 206.93)}

# Accuracy of two-fold cross-validation in %, the same for LIBSVM, ThunderSVM and BoostSVM.
TABLE_5 = {"gisette": 50.0, "real-sim": 86.0, "ijcnn1": 99.1, "epsilon": 81.7, "rcv1": 97.8, "url": 98.6}

# Rows, columns and density of the paper's sets that table 2 only estimates here.
ELSEWHERE = {"news20.binary": (19996, 1355191, 0.00034), "epsilon": (400000, 2000, 1.0)}
