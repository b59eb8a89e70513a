"""Read and write LIBSVM's files: data in svmlight text, kernel values, and models."""

from __future__ import annotations

from clsvm.models.libsvm import load_model, save_model
from clsvm.models.svmlight import match_columns, read_kernel, read_problem

__all__ = ["load_model", "match_columns", "read_kernel", "read_problem", "save_model"]
