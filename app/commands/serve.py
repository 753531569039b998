"""`rl2f serve`: the studio in a browser. Runs are processes of their own; they outlive this one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.chat.model_process.protocol import DEFAULT_IDLE_SECONDS
from rl2f_core.paths import EXAMPLE_RUNS

if TYPE_CHECKING:
    from app.common.context import Context

ENDING = 2
"""Seconds that open pages get when the server ends; then their connections are cut."""


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback a password is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 7860,
    workspace: Annotated[
        Path | None, typer.Option(help="Folder of database and runs; else RL2F_WORKSPACE, else ./workspace.")
    ] = None,
    executor: Annotated[
        str, typer.Option(envvar="RL2F_EXECUTOR", help="Where runs are worked on: local, or ray (RAY_ADDRESS).")
    ] = "local",
    password_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that holds the password.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further host name it is reached by; may be repeated.")
    ] = None,
    chat_idle_seconds: Annotated[
        float,
        typer.Option(envvar="RL2F_CHAT_IDLE_SECONDS", min=1, max=1e9, help="Unload the chat's model if idle so long."),
    ] = DEFAULT_IDLE_SECONDS,
) -> None:
    """Open the studio in a browser: launch, watch, replay, label, chat, compare. Ctrl-C ends it; runs go on."""
    from app.common.console import err
    from app.web.security import check_binding

    password = _password(password_env)
    check_binding(host, password)
    listener = _listen(host, port)
    console = err()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that what is open is closed, as with Ctrl-C
    with contextlib.ExitStack() as stack:
        stack.enter_context(listener)
        port = listener.getsockname()[1]
        context = open_workspace(workspace, f"http://{_shown(host)}:{port}", executor)
        context.chat_idle_seconds = chat_idle_seconds
        stack.callback(_close, context)
        if context.read_only:
            console.print(f"{context.holder} This one is read-only.", markup=False, soft_wrap=True)
        elif said := context.queue.workers.executor.describe():
            console.print(said, markup=False, soft_wrap=True)
        from app.web.server import create_app

        app = create_app(context, host, port, password, allow_host or ())
        _run(app, listener, f"http://{_shown(host)}:{port}", context)
    console.print("The server has ended. Runs that were under way go on.", markup=False)


def open_workspace(folder: Path | str | None, address: str = "", executor: str = "local") -> Context:
    """The workspace with its services started, at `address`; read-only where another server holds it.

    Raises `UnknownNameError` where there is no such executor, `RunError` where a package for it is missing.
    """
    from app.common.context import Context
    from jobs import executors
    from jobs.db.engine import Database
    from jobs.queue.queue import Queue
    from jobs.scheduler.scheduler import Scheduler, SchedulerLockedError
    from jobs.workspace import Workspace

    workspace = Workspace(folder)
    chosen = executors.make(executor, workspace)
    workspace.create()
    db = Database(workspace.database_url())
    db.migrate()
    queue = Queue(db, workspace, chosen)
    scheduler = Scheduler(db, workspace, queue, address=address)
    try:
        scheduler.start()
    except SchedulerLockedError as held:
        db.close()
        db = Database(workspace.database_url(), read_only=True)
        return Context(workspace, db, Queue(db, workspace), read_only=True, holder=held.what)
    context = Context(workspace, db, queue, scheduler=scheduler)
    add_examples(context)
    return context


def add_examples(context: Context, source: Path = EXAMPLE_RUNS) -> list[int]:
    """Copy the shipped example runs into a workspace that never had them and read them in; returns their ids."""
    from jobs.db import settings
    from jobs.db.queries import runs
    from jobs.ingest.ingester import reindex

    if settings.get(context.db, "examples.added", "") or not source.is_dir():
        return []
    folders = []
    for example in sorted(path for path in source.iterdir() if (path / "config.yaml").is_file()):
        folder = context.workspace.folder(example.name)
        if not folder.exists():
            part = folder.with_name(f".{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(example, part)
            part.rename(folder)
        folders.append(folder.name)
    reindex(context.db, context.workspace)
    ids = []
    for name in folders:
        run = runs.find(context.db, folder=name)
        if run is not None and run.id is not None:
            runs.update(context.db, run.id, origin="example")
            ids.append(run.id)
    settings.put(context.db, "examples.added", "yes")
    return ids


def _password(variable: str | None) -> str | None:
    if variable is None:
        return None
    from app.web.security import ServerError

    password = os.environ.get(variable, "")
    if not password:
        raise ServerError(
            "The environment variable for the password is empty or not set.",
            value=variable,
            fix=f"{variable}=… rl2f serve --password-env {variable}",
        )
    return password


def _listen(host: str, port: int) -> socket.socket:
    from app.web.security import ServerError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        taken = isinstance(error, PermissionError) is False
        raise ServerError(
            f"The server cannot listen there: {error.strerror or error}.",
            value=f"{host}:{port}",
            fix=f"Another program may use the port: rl2f serve --port {port + 1 if port < 65535 else 0}"
            if taken
            else "Ports below 1024 need rights: rl2f serve --port 7860",
        ) from error
    return listener


def _shown(host: str) -> str:
    named = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"[{named}]" if ":" in named else named


def _run(app: Any, listener: socket.socket, url: str, context: Context) -> None:
    import uvicorn

    from app.common.console import err

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                console = err()
                console.print(f"RL2F Studio is open at {url}", markup=False)
                console.print(f"Its data lies in {context.workspace.root}", markup=False)
                console.print(f"Start a run: {url}/new?preset=quickstart  (Ctrl-C ends the server)", markup=False)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=ENDING,
    )
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # the server raises the signal again once it has ended
        Server(config).run(sockets=[listener])


def _close(context: Context) -> None:
    if context.scheduler is not None:
        context.scheduler.stop()
    context.db.close()
