"""The web server: our JSON routes, our static files, and Gradio's pages, behind one security middleware."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.web.gradio_setup import quiet_gradio
from app.web.page_registry import STATIC, PageInfo, pages, routers

if TYPE_CHECKING:
    from types import ModuleType

    from fastapi import FastAPI
    from fastapi.responses import JSONResponse

    from app.common.context import Context

UPLOAD_LIMIT = "1mb"
"""Of a file given to a page: configurations are small."""
LOOK = 0.05
"""Seconds between Gradio's looks into its empty queue, as on Windows; elsewhere it looks each millisecond, which costs
a tenth of a core while nobody asks for anything."""


def create_app(
    context: Context,
    host: str = "127.0.0.1",
    port: int = 7860,
    password: str | None = None,
    names: Iterable[str] = (),
    found: list[PageInfo] | None = None,
    routed: list[ModuleType] | None = None,
) -> FastAPI:
    """The whole app for one workspace.

    Args:
        context: The workspace and its services.
        host, port: What it is bound to; other Host headers are refused.
        password: Asked on every route; needed beyond loopback, else `ServerError`.
        names: Further host names under which it is reached.
        found: The pages; by default all there are. With none of them only the JSON routes and static files are there.
        routed: The modules with JSON routes; by default all there are.
    """
    from app.web.security import Security, check_binding, load_secret

    check_binding(host, password)
    from fastapi import FastAPI

    from app.web.shell import Shell

    found = pages() if found is None else found
    app = FastAPI(title="RL2F Studio", docs_url=None, redoc_url=None, openapi_url=None)
    _handle_errors(app)
    for module in routers() if routed is None else routed:
        app.include_router(module.router(context))
    _add_static(app)
    if found:
        _add_pages(app, context, found, host, port)
    app.add_middleware(Shell, pages=found, read_only=context.read_only, holder=context.holder)
    app.add_middleware(
        Security,
        secret=load_secret(context.workspace.root / "secret"),
        host=host,
        port=port,
        password=password,
        names=tuple(names),
    )
    return app


def _add_static(app: FastAPI) -> None:
    from fastapi.staticfiles import StaticFiles

    # Gradio asks for files of its own below the same word
    app.mount("/static", StaticFiles(directory=STATIC, packages=[("gradio", "templates/frontend/static")]))


def _add_pages(app: FastAPI, context: Context, found: list[PageInfo], host: str, port: int) -> None:
    quiet_gradio(context.workspace.root / "cache")
    warnings.filterwarnings("ignore", message="SSR mode is not supported")
    import gradio as gr

    from app.web.gradio_app import build
    from app.web.theme import make_theme

    blocks = build(context, found)
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        server_name=host,
        server_port=port,
        footer_links=[],
        run_history=False,
        allowed_paths=[str(context.workspace.exports)],
        blocked_paths=blocked(context),
        show_error=False,
        max_file_size=UPLOAD_LIMIT,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=make_theme(),
    )
    blocks._queue.sleep_when_free = LOOK
    # what the queue runs events on; Gradio left its own there
    mounted = (getattr(route, "app", None) for route in app.routes)
    blocks.app = next(each for each in mounted if isinstance(each, gr.routes.App))


def blocked(context: Context) -> list[str]:
    """What is never served as a file: everything of the workspace but its exports and cache, models, keys."""
    from rl2f_core.model_store.store import cache_dir

    workspace = context.workspace
    own = [
        workspace.database,
        workspace.runs,
        workspace.backups,
        workspace.trash,
        workspace.lock,
        workspace.root / "secret",
    ]
    own += [Path(f"{workspace.database}{tail}") for tail in ("-wal", "-shm", "-journal")]
    return [str(path) for path in [*own, cache_dir() / "models"]]


def _handle_errors(app: FastAPI) -> None:
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

    from app.common.errors import as_json, http_status
    from rl2f_core.errors import RL2FError

    @app.exception_handler(RL2FError)
    async def ours(request: Request, error: RL2FError) -> JSONResponse:
        return JSONResponse(as_json(error), status_code=http_status(error))

    @app.exception_handler(RequestValidationError)
    async def wrong_input(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        return _error(400, "The request cannot be read.", "; ".join(problems)[:500], "Reload the page, then try again.")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, str(error.detail), request.url.path[:200], None)

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> JSONResponse:
        return _error(500, "Something went wrong in the server.", None, "Its log has the details; please report it.")


def _error(status: int, what: str, value: Any, fix: str | None) -> JSONResponse:
    from fastapi.responses import JSONResponse

    return JSONResponse({"error": {"what": what, "value": value, "known": None, "fix": fix}}, status_code=status)
