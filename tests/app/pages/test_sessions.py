"""Page Sessions."""

from __future__ import annotations

from app.common.context import Context
from app.endpoints.studio import Studio
from app.pages.sessions import sessions
from app.web.page_registry import pages
from jobs.db.models import Run
from jobs.db.queries import runs


def test_the_page_is_found_and_lists_the_sessions_of_a_run(context: Context) -> None:
    runs.add(context.db, Run(name="again", kind="eval", status="failed", folder="1-a", sessions=2))
    assert sessions(Studio(context)) == ["ul", {}, ["li", {}, "again: 2"]]
    assert "sessions" in [page.path for page in pages()]
