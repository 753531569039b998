"""`rl2f models`: list and fetch base models, export trained ones."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from app.commands.completion import complete_run_or_number
from app.commands.options import Root, parse_checkpoint
from app.common.console import err, human_bytes, out, table
from rl2f_core.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="List, fetch and export models.", rich_markup_mode=None)


@app.command("list")
def list_() -> None:
    """Show the models known by name and those in the cache."""
    from rl2f_core.models.store.store import cache_dir, list_models

    rows = []
    for entry in list_models():
        state = human_bytes(entry.bytes) if entry.path else "not fetched"
        rows.append((entry.name, state, entry.license, entry.checksum[:12] or "-", entry.description))
    out().print(table("name", "size", "license", "checksum", "what", rows=rows))
    out().print(f"\nCache: {cache_dir() / 'models'}", markup=False)
    out().print("Instead of a name, use a local folder with safetensors or a hub id (org/model).")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A name from `rl2f models list`, a hub id, or a local folder to check.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read all files and compare checksums.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Fetch again and replace the cached model.")] = False,
) -> None:
    """Fetch a model, or check that the cache has it completely; prints its folder."""
    from rl2f_core.models.store.store import get_model

    model = get_model(name, verify=verify, force=force, on_message=lambda text: err().print(text, markup=False))
    err().print(f"{model.name} {'verified' if verify else 'ready'}, checksum {model.checksum[:16]}…", markup=False)
    out().print(str(model.path), markup=False)


@app.command("export")
def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="RUN@STEP",
            help="RUN is a run's folder or its number in the workspace; STEP is 24 or, if stages share it, rl2f@24.",
            autocompletion=complete_run_or_number,
        ),
    ],
    format: Annotated[
        str,
        typer.Option(help="safetensors, peft, or gguf- with f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0."),
    ] = "safetensors",
    target: Annotated[Path | None, typer.Option("--out", help="New folder of the model.")] = None,
    dtype: Annotated[str, typer.Option(help="Type of safetensors: float32, bfloat16 or float16.")] = "float32",
    repository: Annotated[
        str | None,
        typer.Option("--push", metavar="ORG/NAME", help="Upload to the hub with the token in HF_TOKEN."),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the files and their sizes; write and upload nothing.")
    ] = False,
    workspace: Root = None,
) -> None:
    """Export a checkpoint with a model card: merged weights, the PEFT adapter, or GGUF with an Ollama Modelfile.

    Without --out, --push uploads the files and keeps no copy. HF_ENDPOINT names another hub.
    """
    from jobs.export.model.exporter import export_model
    from jobs.export.model.hub import check_upload, push

    if target is None and repository is None and not dry_run:
        raise ConfigError("The export needs a destination.", fix="Add --out FOLDER or --push ORG/NAME.")
    run, name = parse_checkpoint(checkpoint, workspace)
    if repository is not None and not dry_run:
        check_upload(repository)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model" if target is None or dry_run else target
        manifest = export_model(
            run, name, folder, format=format, dtype=dtype, on_message=lambda text: err().print(text, markup=False)
        )
        rows = [(file.name, human_bytes(file.stat().st_size)) for file in sorted(folder.iterdir())]
        err().print(table("file", "size", rows=rows))
        if dry_run:
            err().print(f"Nothing was written{' or uploaded' if repository else ''}.")
            return
        if target is not None:
            out().print(str(target), markup=False)
        if repository is not None:
            url = push(folder, repository, public=public, message=f"Upload {manifest['name']}")
            out().print(url, markup=False)
