"""The web server: files and Gradio's pages behind the security middleware."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterable, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.routing import Route

from app.common.context import Context
from app.common.http_status import http_status
from app.forms.own_data import MAX_FILE_BYTES
from app.web import files
from app.web.call_limits import CallLimits
from app.web.gradio_app import build, configure_gradio
from app.web.invalid_events import refuse_invalid_events
from app.web.mcp_server import McpServer
from app.web.page_registry import STATIC, PageInfo, pages
from app.web.program_access import MCP_ROUTE, ProgramAccess, PublishedEndpoint
from app.web.responses import PageResponses
from app.web.security import Security, check_binding, load_secret, own_names
from app.web.theme import make_theme
from rl2f_core.errors import RL2FError, shorten
from rl2f_core.models.store.store import cache_dir

QUEUE_POLL_SECONDS = 0.01
"""Poll interval of Gradio's empty queue; its default of 1 ms takes a tenth of a core in an idle server."""


def create_app(
    context: Context,
    host: str = "127.0.0.1",
    port: int = 7860,
    password: str | None = None,
    names: Iterable[str] = (),
    site_pages: list[PageInfo] | None = None,
    mcp: Sequence[str] = (),
) -> FastAPI:
    """Create the app of one workspace.

    Args:
        context: The workspace and its services.
        host, port: The bound address; requests with other Host headers are refused.
        password: Required on every route.
        names: Additional host names of the server.
        site_pages: The pages (default: all). Without pages only files are served.
        mcp: Toolsets that are served at `/mcp`, e.g. `default`; none by default.

    Raises `ServerError` if the address is not loopback and there is no password, or if `mcp` is not installed.
    """
    check_binding(host, password)
    if site_pages is None:
        configure_gradio(context.workspace.root / "cache")  # before the pages import Gradio
        site_pages = pages()
    tools = McpServer(context, mcp) if mcp else None
    lifespan = tools.lifespan if tools else None
    app = FastAPI(title="RL2F Studio", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _handle_errors(app)
    app.include_router(files.router(context))
    # Gradio serves its own files below the same path
    app.mount("/static", StaticFiles(directory=STATIC, packages=[("gradio", "templates/frontend/static")]))
    if tools:
        app.router.routes.append(Route(MCP_ROUTE, tools))
    published, limits = _add_pages(app, context, site_pages, host, port) if site_pages else ([], None)
    links = {"Runs": "/"} | {page.title: f"/{page.path}" for page in site_pages if page.in_navigation}
    app.add_middleware(PageResponses, pages=links)
    app.add_middleware(
        Security,
        secret=load_secret(context.workspace.root / "secret"),
        port=port,
        password=password,
        names={*own_names(host), *names},
        programs=ProgramAccess(context.db, published, mcp=bool(mcp)),
        limits=limits,
        exports=context.workspace.exports,
    )
    return app


def _add_pages(
    app: FastAPI, context: Context, site_pages: list[PageInfo], host: str, port: int
) -> tuple[list[PublishedEndpoint], CallLimits]:
    _end_heartbeats(app)
    warnings.filterwarnings("ignore", message="SSR mode is not supported")
    import gradio as gr  # after `configure_gradio`

    blocks, published = build(context, site_pages)
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        server_name=host,
        server_port=port,
        footer_links=[],
        run_history=False,
        allowed_paths=[str(context.workspace.exports)],
        blocked_paths=_blocked_paths(context),
        show_error=False,
        max_file_size=MAX_FILE_BYTES,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=make_theme(),
        head=_stylesheet(),
    )
    blocks._queue.sleep_when_free = QUEUE_POLL_SECONDS
    blocks._queue.progress_update_sleep_when_free = 10.0  # no page shows `gr.Progress`
    # no page shows a figure of Matplotlib, which Gradio imports with 40 MB at the first event
    gr.utils.MatplotlibBackendMananger = contextlib.nullcontext  # type: ignore[misc, assignment]
    # the queue must run events on the mounted app, not on the one that Gradio created before
    mounted = (getattr(route, "app", None) for route in app.routes)
    blocks.app = next(mount for mount in mounted if isinstance(mount, gr.routes.App))
    refuse_invalid_events(blocks, blocks.app)
    return published, CallLimits(blocks)


def _end_heartbeats(app: FastAPI) -> None:
    """End Gradio's heartbeat stream of each tab at once.

    A browser opens six connections to a server. An open heartbeat would hold one of them, so that the sixth tab waits
    (https://github.com/gradio-app/gradio/issues/8346).
    """
    from fastapi import Response

    @app.get("/gradio_api/heartbeat/{session}")
    def heartbeat(session: str) -> Response:
        return Response(media_type="text/event-stream")


def _stylesheet() -> str:
    """Return the link of the stylesheet. Gradio's `css_paths` would insert every rule twice, once with a prefix."""
    digest = hashlib.sha256((STATIC / "theme.css").read_bytes()).hexdigest()[:10]
    return f'<link rel="stylesheet" href="/static/theme.css?v={digest}">'


def _blocked_paths(context: Context) -> list[str]:
    """Return what Gradio must never serve: the workspace without its exports and cache, and the models."""
    w = context.workspace
    database = [f"{w.database}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
    folders = [w.runs, w.data, w.backups, w.trash, w.lock, w.root / "secret", cache_dir() / "models"]
    return [*database, *map(str, folders)]


def _handle_errors(app: FastAPI) -> None:
    def response(error: RL2FError, status: int) -> JSONResponse:
        return JSONResponse(as_json(error), status_code=status)

    @app.exception_handler(RL2FError)
    async def project_error(request: Request, error: RL2FError) -> JSONResponse:
        return response(error, http_status(error))

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        fix = "Reload the page, then try again."
        return response(RL2FError("The request cannot be read.", value=problems[:500], fix=fix), 400)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return response(RL2FError(str(error.detail), value=request.url.path[:200]), error.status_code)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> JSONResponse:
        fix = "Its log has the details; please report it."
        return response(RL2FError("Something went wrong in the server.", fix=fix), 500)


def as_json(error: RL2FError) -> dict[str, object]:
    """Return the response body of a failed request."""
    value = None if error.value is None else shorten(str(error.value))
    known = None if error.known is None else list(error.known)
    return {"error": {"what": error.what, "value": value, "known": known, "fix": error.fix}}
