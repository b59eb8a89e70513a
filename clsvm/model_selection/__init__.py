"""Search parameter grids with cross-validation, sharing kernel values and solutions between folds and candidates."""

from __future__ import annotations

from clsvm.model_selection.search import FalkonSearchCV, SVCSearchCV

__all__ = ["FalkonSearchCV", "SVCSearchCV"]
