"""Search parameter grids with cross-validation.

Fits to different folds, and fits with different parameters, share kernel values and start from earlier solutions.
"""

from __future__ import annotations

from clsvm.model_selection.search import FalkonSearchCV, SVCSearchCV

__all__ = ["FalkonSearchCV", "SVCSearchCV"]
