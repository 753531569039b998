"""Page Exports: leak-labelled dialogues as data sets, made by a job, taken as files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pages._export import build_export

if TYPE_CHECKING:
    from app.context import Context

PATH = "exports"
TITLE = "Exports"
ORDER = 80


def build(context: Context) -> None:
    """The section alone."""
    build_export(context)
