"""Two results of one kind: what is worse, better, the same, or cannot be told.

The rules of a baseline and `report --compare` say what is found here.
"""

from __future__ import annotations

from ncclcheck.reports.compare.changes import FactChange
from ncclcheck.reports.compare.comparison import Comparison, changes_of, compare, floor_percent, rows_of
from ncclcheck.reports.compare.fingerprint import FieldDifference, Fingerprint, differences, fingerprint
from ncclcheck.reports.compare.result import ComparisonResult, encode, result
from ncclcheck.reports.compare.rows import RowChange, compare_rows
from ncclcheck.reports.compare.text import short, text

__all__ = [
    "Comparison",
    "ComparisonResult",
    "FactChange",
    "FieldDifference",
    "Fingerprint",
    "RowChange",
    "changes_of",
    "compare",
    "compare_rows",
    "differences",
    "encode",
    "fingerprint",
    "floor_percent",
    "result",
    "rows_of",
    "short",
    "text",
]
