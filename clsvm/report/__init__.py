"""What a fit says of itself: how it ended, how good the result is, what it cost; and what it shows meanwhile."""

from __future__ import annotations

from clsvm.report.fit import PARTS, FitReport, NystromReport, Record, by_part
from clsvm.report.status import Point, Progress, Status, relative_gap

__all__ = ["PARTS", "FitReport", "NystromReport", "Point", "Progress", "Record", "Status", "by_part", "relative_gap"]
