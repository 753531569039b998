"""A page in one Python file, without JavaScript, is in the navigation and has a deep link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import added_page
import pytest
from web_server import serving_app

from app.common.context import Context
from app.web.page_registry import describe_page
from jobs.db.engine import Database
from jobs.ingest.ingester import reindex
from jobs.queue.queue import Queue
from jobs.workspace import Workspace


@pytest.fixture
def site(tmp_path: Path, recorded: Path) -> Iterator[str]:
    """The address of a server whose only page besides Runs is the added one."""
    from app.pages.runs import page as runs
    from app.web import server
    from app.web.gradio_app import configure_gradio

    workspace = Workspace(tmp_path / "workspace").create()
    workspace.folder("recorded").symlink_to(recorded)
    db = Database(workspace.database_url())
    db.migrate()
    reindex(db, workspace)
    configure_gradio(workspace.root / "cache")
    pages = [describe_page(runs), describe_page(added_page)]
    context = Context(workspace, db, Queue(db, workspace))
    with serving_app(lambda port: server.create_app(context, "127.0.0.1", port, site_pages=pages)) as url:
        yield url
    db.close()


@pytest.mark.slow
def test_a_page_of_30_lines_has_a_deep_link_and_a_place_in_the_navigation(
    site: str, new_page: Callable[..., Any]
) -> None:
    tab = new_page()
    tab.goto(site)
    tab.get_by_role("navigation").get_by_role("link", name="Speed").click()
    tab.get_by_role("cell", name="recorded").wait_for()
    tab.locator(".rl-plot[data-drawn]").first.wait_for()
    tab.goto(f"{site}/speed?search=nothing")
    tab.locator(".rl-view table").wait_for(state="attached")
    assert tab.get_by_role("cell").count() == 0
    tab.go_back()
    tab.get_by_role("cell", name="recorded").wait_for()
    lines = Path(added_page.__file__).read_text("utf-8").splitlines()
    assert len(lines) <= 30 and tab.title() == "Speed · RL2F Studio"
