"""`rl2f serve-model`: checkpoints behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.completion import complete_run_or_number
from app.commands.options import Root, find_run, parse_checkpoint
from app.commands.server.serve import display_name, listen, read_secret, run_server
from app.commands.settings import options_of
from app.common.console import err
from rl2f_core.config.model import ModelConfig
from rl2f_core.errors import ConfigError
from rl2f_core.run.directory import RunDir

if TYPE_CHECKING:
    from jobs.model_server.limits import ServerLimits

COMMAND = "rl2f serve-model …"


def serve_model(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN@STEP…",
            help="RUN is a run's folder or its number in the workspace; STEP is 24 or, if stages share it, rl2f@24. "
            "RUN alone selects all its checkpoints.",
            autocompletion=complete_run_or_number,
        ),
    ],
    base: Annotated[bool, typer.Option("--base", help="Also serve the base model.")] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback require an API key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")] = 8000,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that holds the API key.")
    ] = None,
    backend: Annotated[str, typer.Option(help="auto, hf, or vllm, which runs `vllm serve`.")] = "auto",
    limits: ServerLimits = options_of(
        "jobs.model_server.limits:ServerLimits",
        **dict.fromkeys(("max_body_bytes", "body_seconds", "idle_seconds", "memory_gb", "reserve_gb")),
        max_model_len="--context",
        request_seconds="--timeout",
    ),
    workspace: Root = None,
) -> None:
    """Serve checkpoints with one base model to OpenAI clients. Ctrl-C stops the server."""
    from jobs.model_server import vllm
    from jobs.model_server.models import base_name, find_models
    from jobs.model_server.server import ModelServer

    api_key = read_secret(api_key_env, "API key", f"{COMMAND} --api-key-env")
    check_access(host, api_key)
    models = find_models(find_checkpoints(checkpoints, workspace), base=base)
    source = next(iter(models.values()))
    if _backend_name(backend, ModelConfig(name=source.base, dtype=source.dtype, device=source.device)) == "vllm":
        raise typer.Exit(
            vllm.run(vllm.serve_options(models, host, port, limits.max_model_len, limits.max_running), api_key)
        )
    with listen(host, port, COMMAND) as listener:
        url = f"http://{display_name(host)}:{listener.getsockname()[1]}/v1"
        err().print(f"Loading {base_name(source)} …", markup=False)
        with contextlib.closing(ModelServer(limits, models, api_key)) as server:
            server.load_models()
            messages = [f"Serving at {url}  (Ctrl-C stops the server)", *(f"  {name}" for name in models)]
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # release resources, as with Ctrl-C
            run_server(server.app(), listener, messages)
    err().print("The server has stopped.", markup=False)


def check_access(host: str, api_key: str | None) -> None:
    """Raise `ServerError` if other machines can reach the server and there is no API key, or a short one."""
    from app.web.security import check_secret

    check_secret(
        host,
        api_key,
        "The model server can be reached from other machines, so it needs an API key",
        "Put one into the environment and name its variable: RL2F_API_KEY=… rl2f serve-model … "
        f"--host {host} --api-key-env RL2F_API_KEY.",
    )


def find_checkpoints(texts: Iterable[str], root: Path | None) -> list[tuple[Path, str]]:
    """Return run directory and name of each checkpoint that `RUN@STEP`, or `RUN` for all, selects."""
    found = []
    for text in texts:
        if "@" in text:
            found.append(parse_checkpoint(text, root))
        else:
            run = RunDir.open(find_run(text, root))
            found += [(run.path, name) for name in run.checkpoint_names()]
            if missing := run.missing_checkpoints():
                err().print(f"Not served, because their weights are missing: {', '.join(missing)}", markup=False)
    return found


def _backend_name(name: str, model: ModelConfig) -> str:
    """Return hf or vllm. Raises `ConfigError` for another backend."""
    from rl2f_core import registry
    from rl2f_core.models.backends.auto import resolve_backend

    if name not in (known := ("auto", "hf", "vllm")):
        raise ConfigError("There is no such backend for serving.", value=name, known=known)
    return resolve_backend(registry.get("backend", name).Config(), model).config.type
