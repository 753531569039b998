"""Page New run: a form and its YAML side by side, from a preset or a past run, to check, start or schedule.

The widget is `app/static/new_run.js` with `form.js`; both are fed by `/api/form`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pages._place import place

if TYPE_CHECKING:
    from app.common.context import Context

PATH = "new"
TITLE = "New run"
ORDER = 20
SCRIPTS = ("charts.js", "form.js")
STYLES = ("charts.css",)


def build(context: Context) -> None:
    """The place of the widget. What the form is made of is prepared here, so that the first visit does not wait."""
    from app.forms import run_form

    for kind in run_form.kinds():
        run_form.spec(kind)
    place("new_run", 220, plots=True, padding=False)
