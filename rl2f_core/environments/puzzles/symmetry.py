"""Symmetry of matrices and grids: rotated and mirrored copies are the same problem."""

from __future__ import annotations

from collections.abc import Sequence


def canonical_rows(rows: Sequence[str]) -> str:
    """Return the rows on one line, the smallest of their eight rotated and mirrored copies."""
    copies = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*reversed(rows), strict=True)]  # a quarter turn clockwise
        copies += ["/".join(rows), "/".join(row[::-1] for row in rows)]
    return min(copies)
