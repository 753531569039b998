"""`LabelCard`: a `View` with a hint whose words can be marked."""

from __future__ import annotations

from typing import Any

from app.components.module import module_url
from app.components.view import View


class LabelCard(View):
    """A `View` with a hint whose words can be marked.

    Every `click` also reports the `hint` (its `data-hint`), `start` and `end` of the marked span, None without one, and
    the `note`. After Back, a link with `data-return` that had the focus gets it again.
    """

    MODULE = "label_card.js"

    def __init__(self, **options: Any) -> None:
        super().__init__(view=module_url("view.js"), selection=module_url("browser/selection.js"), **options)
