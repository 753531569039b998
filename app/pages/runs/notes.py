"""Dialog of the tags and notes of a run, on the page Runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.components.nodes import Element, action, el, time_ago
from jobs.db.models import NoteSummary
from jobs.db.queries.notes import MAX_CHARS


def notes_dialog(
    run: int, name: str, tags: Collection[str], known: Sequence[str], notes: Sequence[NoteSummary]
) -> Element:
    """Return the dialog of tags and notes.

    Args:
        run: Number of the run.
        name: Name of the run.
        tags: Tags of the run.
        known: Tags of all runs.
        notes: Notes on the run.
    """
    title = f"Tags and notes of {name}"
    boxes = [
        el("label.rl-row", el("input", type="checkbox", name="tag", value=tag, checked=tag in tags), tag)
        for tag in known
    ]
    listed = [
        el(
            "li",
            el("div.runs-note", note.text),
            el(
                "div.rl-row.rl-small.rl-muted",
                time_ago(note.time),
                el("label.rl-row", el("input", type="checkbox", name="deleted", value=note.id), "Delete"),
            ),
        )
        for note in notes
    ]
    return el(
        "dialog.rl-dialog.runs-dialog",
        el(
            "form.rl-page",
            el("h2", title),
            el("fieldset", el("legend", "Tags"), boxes) if boxes else None,
            el("label", "New tags", el("input", type="text", name="new", placeholder="separated by commas")),
            el("ul", listed, aria_label="Notes") if listed else None,
            el("label", "New note", el("textarea", name="note", maxlength=MAX_CHARS)),
            el(
                "div.rl-actions",
                action("Cancel", "close"),
                el("button.rl-button.rl-primary", "Save", type="submit"),
            ),
            data_run=run,
        ),
        aria_label=title,
        data_key=f"notes{run}",
    )
