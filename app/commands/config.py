"""`rl2f config`: schema, defaults and validation of configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from app.commands.completion import complete_config
from app.commands.options import Sets
from rl2f_core import registry
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config import matrix
from rl2f_core.config.loading import dump_yaml, find_config, load_config
from rl2f_core.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Inspect run configurations.", rich_markup_mode=None)
Config = Annotated[Path, typer.Argument(help="YAML file or preset.", autocompletion=complete_config)]


@app.command()
def schema(kind: Annotated[str, typer.Option(help="Kind of run.")] = "train") -> None:
    """Print the JSON schema of a run's configuration, with every registered component."""
    run_config = registry.get("run_kind", kind).config_class
    typer.echo(json.dumps(run_config.model_json_schema(), indent=2))


@app.command()
def show(config: Config, sets: Sets = None) -> None:
    """Print the configuration as YAML with every default written out."""
    typer.echo(dump_yaml(load_config(config, sets or [])), nl=False)


@app.command()
def cells(config: Config) -> None:
    """List the configurations in a file with a matrix, one per line, as arguments of the other commands."""
    try:
        data = load_yaml(find_config(config).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"The configuration file cannot be read: {error}.", value=str(config)) from error
    for name in matrix.cells(data) if matrix.is_matrix(data) else [""]:
        typer.echo(f"{config}:{name}" if name else str(config))


@app.command()
def validate(config: Config, sets: Sets = None) -> None:
    """Validate the configuration; each error names its field."""
    load_config(config, sets or [])
    typer.echo(f"{config}: ok")
