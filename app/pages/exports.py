"""Page Exports: leak-labelled data sets, made by a job, taken as files. The widget `app/static/exports.js` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pages._place import place

if TYPE_CHECKING:
    from app.common.context import Context

PATH = "exports"
TITLE = "Exports"
ORDER = 80


def build(context: Context) -> None:
    """The place of the widget."""
    place("exports", 320, "ex")
