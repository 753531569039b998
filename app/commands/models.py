"""`rl2f models`: list and fetch base models."""

from __future__ import annotations

from typing import Annotated

import typer

from app.common.console import err, human_bytes, out, table

app = typer.Typer(no_args_is_help=True, help="List and fetch base models.", rich_markup_mode=None)


@app.command("list")
def list_() -> None:
    """Show the models known by name and those in the cache."""
    from rl2f_core.model_store.store import cache_dir, list_models

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
    from rl2f_core.model_store.store import get_model

    model = get_model(name, verify=verify, force=force, on_message=lambda text: err().print(text, markup=False))
    err().print(f"{model.name} {'verified' if verify else 'ready'}, checksum {model.checksum[:16]}…", markup=False)
    out().print(str(model.path), markup=False)
