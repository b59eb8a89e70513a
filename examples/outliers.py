"""Outliers
========

OneClassSVM sees images of the digit 3 alone, and then has to say which images are none::

    python examples/outliers.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from clsvm import OneClassSVM

X, y = load_digits(return_X_y=True)
X = X / 16
seen, fresh = train_test_split(X[y == 3], test_size=0.3, random_state=0)
others = X[y != 3]

# At most a share nu of the training rows is strictly outside; those on the boundary itself are within tol of it, to
# either side.
model = OneClassSVM(nu=0.1, gamma=0.05).fit(seen)
print(f"trained on {len(seen)} images: share outside {(model.predict(seen) < 0).mean():.3f}, nu = 0.1")
print(f"fresh images of a 3: share outside {(model.predict(fresh) < 0).mean():.3f}")
print(f"other digits: share outside {(model.predict(others) < 0).mean():.3f}")

values = model.decision_function(np.concatenate([fresh, others]))
print(f"area under the ROC curve: {roc_auc_score(np.arange(len(values)) < len(fresh), values):.4f}")
for digit in np.unique(y[y != 3]):
    print(f"  {digit}: {(model.predict(X[y == digit]) < 0).mean():.3f}")
