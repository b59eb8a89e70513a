"""Model selection that shares what folds and parameters have in common."""

from __future__ import annotations

from clsvm.model_selection.search import FalkonSearchCV, SVCSearchCV

__all__ = ["FalkonSearchCV", "SVCSearchCV"]
