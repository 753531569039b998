"""`rl2f serve`: the studio in a browser. Runs are separate processes that outlive the server."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import Root
from app.common.console import err
from jobs.model_server.limits import STUDIO_LIMITS

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from app.common.context import Context

SHUTDOWN_SECONDS = 2
"""Time after which open connections are closed when the server ends."""


McpTools = Annotated[
    str,
    typer.Option(
        envvar="RL2F_MCP_TOOLS",
        metavar="NAMES",
        help="Tools of --mcp, separated by commas: default (30 tools), all, or of a subject: runs, run, compare, "
        "dialogues, labels, detectors, training, fork, chat, launch, own_data, exports, audit.",
    ),
]
ChatIdle = Annotated[
    float,
    typer.Option(envvar="RL2F_CHAT_IDLE_SECONDS", min=1, max=1e9, help="Unload the chat's model after this idle time."),
]
ChatMemory = Annotated[
    float, typer.Option(envvar="RL2F_CHAT_MEMORY_GB", min=0, max=1e9, help="Memory limit of the chat's model; 0: none.")
]
ChatReserve = Annotated[
    float,
    typer.Option(
        envvar="RL2F_CHAT_RESERVE_GB", min=0, max=1e9, help="Memory that stays free when the chat loads a model."
    ),
]


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback require a password.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")] = 7860,
    workspace: Root = None,
    executor: Annotated[
        str, typer.Option(envvar="RL2F_EXECUTOR", help="Where workers run: local, or ray (RAY_ADDRESS).")
    ] = "local",
    password_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that holds the password.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Additional host name of the server; may be repeated.")
    ] = None,
    mcp: Annotated[
        bool, typer.Option("--mcp", help="Serve the endpoints as MCP tools at /mcp, for programs with a token.")
    ] = False,
    mcp_tools: McpTools = "default",
    chat_idle_seconds: ChatIdle = STUDIO_LIMITS.idle_seconds or 0,
    chat_memory_gb: ChatMemory = STUDIO_LIMITS.memory_gb,
    chat_reserve_gb: ChatReserve = STUDIO_LIMITS.reserve_gb or 0,
) -> None:
    """Serve the studio: launch, watch, replay, label, chat, compare. Ctrl-C stops the server; runs continue."""
    from app.web.security import check_binding
    from rl2f_core.models.device import limit_arenas

    limit_arenas()
    password = read_secret(password_env, "password", "rl2f serve --password-env")
    check_binding(host, password)
    listener = listen(host, port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # release resources, as with Ctrl-C
    with contextlib.ExitStack() as stack:
        stack.enter_context(listener)
        port = listener.getsockname()[1]
        url = f"http://{display_name(host)}:{port}"
        context = open_workspace(workspace, url, executor)
        chat = {"idle_seconds": chat_idle_seconds, "memory_gb": chat_memory_gb, "reserve_gb": chat_reserve_gb}
        context.chat_limits = STUDIO_LIMITS.model_copy(update=chat)
        stack.callback(_close, context)
        if context.read_only:
            err().print(f"{context.lock_owner} This one is read-only.", markup=False, soft_wrap=True)
        elif description := context.queue.workers.executor.describe():
            err().print(description, markup=False, soft_wrap=True)
        from app.web.server import create_app

        if mcp:
            err().print(f"MCP tools are at {url}/mcp; a program needs a token of `rl2f token new`.", markup=False)
        messages = (
            f"RL2F Studio is open at {url}",
            f"Its data is in {context.workspace.root}",
            f"Start a run: {url}/new?preset=first_look  (Ctrl-C stops the server)",
        )
        toolsets = [name for text in mcp_tools.split(",") if (name := text.strip())] or ["default"]
        app = create_app(context, host, port, password, allow_host or (), mcp=toolsets if mcp else ())
        run_server(app, listener, messages, _preload)
    err().print("The server has stopped. Active runs continue.", markup=False)


def open_workspace(folder: Path | str | None, address: str = "", executor: str = "local") -> Context:
    """Open a workspace and start its services; read-only if another server has its lock.

    Raises `UnknownNameError` for an unknown executor, `RunError` if its package is missing.
    """
    from app.common.context import Context
    from app.common.example_runs import add_examples
    from jobs.db.engine import Database
    from jobs.executors.factory import create_executor
    from jobs.queue.queue import Queue
    from jobs.scheduler.scheduler import Scheduler, SchedulerLockedError
    from jobs.workspace import Workspace

    workspace = Workspace(folder)
    runner = create_executor(executor, workspace)
    workspace.create()
    db = Database(workspace.database_url())
    db.migrate(workspace.lock)
    queue = Queue(db, workspace, runner)
    scheduler = Scheduler(db, workspace, queue, address=address)
    try:
        scheduler.start()
    except SchedulerLockedError as error:
        db.close()
        db = Database(workspace.database_url(), read_only=True)
        return Context(workspace, db, Queue(db, workspace), read_only=True, lock_owner=error.what)
    context = Context(workspace, db, queue, scheduler=scheduler)
    add_examples(context)
    return context


def read_secret(variable: str | None, what: str, command: str) -> str | None:
    """Return the value of an environment variable; None without one. Raises `ServerError` if it is empty.

    Args:
        variable: Its name.
        what: What it holds, e.g. password.
        command: Command and option for the fix.
    """
    if variable is None:
        return None
    from app.web.security import ServerError

    secret = os.environ.get(variable, "")
    if not secret:
        raise ServerError(
            f"The environment variable for the {what} is empty or not set.",
            value=variable,
            fix=f"{variable}=… {command} {variable}",
        )
    return secret


def listen(host: str, port: int, command: str = "rl2f serve") -> socket.socket:
    """Return a listening socket. Raises `ServerError` if the address is not free; `command` is part of its fix."""
    from app.web.security import ServerError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm, which delays answers by 40 ms, only for sockets with this protocol number
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        fix = f"Another program may use the port: {command} --port {port + 1 if port < 65535 else 0}"
        if isinstance(error, PermissionError):
            fix = f"Ports below 1024 require privileges: {command} --port 7860"
        what = f"The server cannot listen on this address: {error.strerror or error}."
        raise ServerError(what, value=f"{host}:{port}", fix=fix) from error
    return listener


def display_name(host: str) -> str:
    """Return the host as a part of a URL; a server bound to all addresses has the name of this machine."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"[{name}]" if ":" in name else name


def run_server(
    app: ASGIApp, listener: socket.socket, messages: Sequence[str], preload: Callable[[], None] | None = None
) -> None:
    """Serve until Ctrl-C or SIGTERM; once the server is ready, print the messages and call `preload` in a thread."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                err().print("\n".join(messages), markup=False, soft_wrap=True)
                if preload is not None:
                    threading.Thread(target=preload, daemon=True).start()

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # the server raises the signal again after its end
        Server(config).run(sockets=[listener])


def _preload() -> None:
    """Load what the first pages would wait for: the library of the intervals, and the presets."""
    importlib.import_module("scipy.special")
    from app.forms import run_form

    for preset in run_form.presets():
        run_form.runs_on_cpu(preset)


def _close(context: Context) -> None:
    if context.scheduler is not None:
        context.scheduler.stop()
    context.chat_service.close()
    context.db.close()
