"""A workspace of its own for each test, and the whole app over it, without a network."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from sqlalchemy import Engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache
from starlette.testclient import TestClient
from stub_routes import add_stub_routes

from app.common.context import Context
from app.web.gradio_app import configure_gradio
from jobs.db import engine
from jobs.db.engine import Database
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

HOST, PORT = "127.0.0.1", 7860
BASE = f"http://{HOST}:{PORT}"
configure_gradio(Path(tempfile.gettempdir()) / "gradio")  # before the first import of Gradio


@pytest.fixture(scope="session", autouse=True)
def compiled_statements() -> Iterator[None]:
    """One cache of compiled statements for all databases; a tenth of the time is their compilation otherwise."""
    cache, create_engine = LRUCache(1000), engine.create_engine

    def create(*args: Any, **options: Any) -> Engine:
        made = create_engine(*args, **options)
        made._compiled_cache = cache  # type: ignore[assignment]
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "create_engine", create)
        patch.setattr(SQLiteDialect_pysqlite, "__eq__", lambda self, other: type(self) is type(other))
        patch.setattr(SQLiteDialect_pysqlite, "__hash__", lambda self: hash(type(self)))
        yield


@pytest.fixture
def context(workspace: Workspace, db: Database) -> Context:
    """What pages and routes are given; no scheduler, so nothing happens by itself."""
    return Context(workspace, db, Queue(db, workspace))


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """The event loop of all requests; a `TestClient` otherwise starts a thread and a loop for each."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="session")
def make_client(portal: BlockingPortal) -> Callable[..., TestClient]:
    """`make_client(context, secret=True, whole=False, password=None, names=())`: the app, asked like a page.

    With `secret` the client sends the cookie and headers of a page; without, it is a program without a token. `whole`
    builds Gradio's pages too, which takes seconds; the files and the routes of `stub_routes` are there
    without.
    """
    from app.web.program_access import ProgramAccess
    from app.web.security import Security, load_secret
    from app.web.server import create_app

    def make(context: Context, *, secret: bool = True, whole: bool = False, **options: Any) -> TestClient:
        app = create_app(context, HOST, PORT, site_pages=None if whole else [], **options)
        add_stub_routes(app, context)
        client = TestClient(app, base_url=BASE, raise_server_exceptions=False)
        client.portal = portal
        if secret:
            secret, programs = load_secret(context.workspace.root / "secret"), ProgramAccess(context.db)
            password = options.get("password")
            guard = Security(app, secret=secret, port=PORT, programs=programs, password=password)
            client.headers["Sec-Fetch-Site"] = "same-origin"
            client.cookies.set(guard.cookie_name, guard.cookie)
        return client

    return make


@pytest.fixture
def client(context: Context, make_client: Callable[..., TestClient]) -> TestClient:
    """The requests of a browser page over a new workspace."""
    return make_client(context)


@dataclass(frozen=True)
class Site:
    """The whole app with all pages over one workspace."""

    context: Context
    page: TestClient
    """Asks like a page of ours."""
    stranger: TestClient
    """Asks without the secret."""


@pytest.fixture(scope="session")
def whole_site(
    tmp_path_factory: pytest.TempPathFactory, make_client: Callable[..., TestClient]
) -> Iterator[tuple[Context, TestClient]]:
    """The whole app, built once."""
    workspace = Workspace(tmp_path_factory.mktemp("site") / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    context = Context(workspace, db, Queue(db, workspace))
    yield context, make_client(context, whole=True)
    db.close()


@pytest.fixture
def site(whole_site: tuple[Context, TestClient]) -> Iterator[Site]:
    """The whole app; what a test changes of the queue is undone."""
    context, made = whole_site
    page = TestClient(
        made.app, base_url=BASE, headers=made.headers, cookies=made.cookies, raise_server_exceptions=False
    )
    stranger = TestClient(made.app, base_url=BASE, raise_server_exceptions=False)
    page.portal = stranger.portal = made.portal
    yield Site(context, page, stranger)
    context.queue.resume_dispatch()
