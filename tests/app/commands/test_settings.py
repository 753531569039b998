"""Options of commands that are made from the fields of settings models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from app.commands.settings import add_command, options_of
from rl2f_core.config.fields import BaseConfig
from rl2f_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


class Place(BaseConfig):
    """Where."""

    city: str = ""
    """Name of the city."""


class Trip(BaseConfig):
    """Settings of a trip."""

    days: int = Field(3, ge=1, le=9)
    """Length of the trip."""
    by: Literal["", "train", "boat"] = ""
    """Means of transport."""
    guests: tuple[Annotated[str, Field(min_length=2)], ...] = ("Ada",)
    """Who travels."""
    place: Place = Place()
    """The destination."""
    budget: dict[str, int] | None = None
    """Amount by purpose."""
    insured: bool = False
    """Insure the trip."""
    guide: bool = True
    """Hire a guide."""
    notes: str = ""
    """What else to know."""


def plan(title: str, trip: Trip = options_of(f"{__name__}:Trip", by="--with", notes=None), loud: bool = False) -> None:
    """Plan a trip."""
    typer.echo(f"{title} {loud} {trip.model_dump_json()}")


def part(values: dict[str, Any] = options_of(f"{__name__}:Trip", "days", "by")) -> None:
    """Use some settings."""
    typer.echo(repr(values))


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None)
    add_command(app, "plan", plan)
    add_command(app, "part", part)
    return app


def run(app: typer.Typer, *arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def test_options_have_names_help_texts_defaults_and_limits_of_the_fields(app: typer.Typer) -> None:
    lines = [" ".join(line.split()) for line in run(app, "plan", "--help").stdout.splitlines()]
    assert "Plan a trip." in lines
    assert "--days <int range> Length of the trip. [default: 3; 1<=x<=9]" in lines
    assert "--with <train|boat> Means of transport." in lines
    assert "--guest <list[str]> Who travels. [default: Ada]" in lines
    assert "--city <str> Name of the city." in lines and "--budget JSON Amount by purpose." in lines
    assert "--insured Insure the trip." in lines
    assert "--guide / --no-guide Hire a guide. [default: guide]" in lines
    assert not any("--note" in line for line in lines)


def test_the_function_gets_a_validated_model(app: typer.Typer) -> None:
    assert run(app, "plan", "x").stdout == f"x False {Trip().model_dump_json()}\n"
    options = ("--days", "5", "--with", "boat", "--guest", "Bo", "--guest", "Cy", "--city", "Rome", "--insured")
    expected = Trip(
        days=5, by="boat", guests=("Bo", "Cy"), place=Place(city="Rome"), insured=True, guide=False, budget={"food": 3}
    )
    done = run(app, "plan", "x", *options, "--no-guide", "--budget", '{"food": 3}', "--loud")
    assert done.stdout == f"x True {expected.model_dump_json()}\n"


def test_a_part_of_the_fields_is_a_dictionary(app: typer.Typer) -> None:
    assert run(app, "part").stdout == "{'days': 3}\n"
    assert run(app, "part", "--by", "train").stdout == "{'days': 3, 'by': 'train'}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--days", "0"), "--days"),
        (("--with", "car"), "'boat'"),
        (("--budget", "{"), "not JSON"),
        (("--note", "x"), "--note"),
    ],
)
def test_a_wrong_value_is_refused_by_the_command_line(app: typer.Typer, options: tuple[str, ...], said: str) -> None:
    done = run(app, "plan", "x", *options)
    assert done.exit_code == 2 and said in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--guest", "B"), "Option --guest: String should have at least 2 characters. Got: 'B'"),
        (("--budget", '{"food": "much"}'), "Option --budget: budget.food: Input should be a valid integer"),
    ],
)
def test_an_error_of_the_model_names_the_option(app: typer.Typer, options: tuple[str, ...], said: str) -> None:
    error = run(app, "plan", "x", *options).exception
    assert isinstance(error, ConfigError) and said in str(error)


@pytest.mark.slow
def test_settings_models_are_not_imported_before_their_command_runs() -> None:
    code = "import sys, app.cli; print(*(name for name in sys.modules if name.startswith(('jobs.', 'app.endpoints'))))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"jobs.export.datasets.settings", "jobs.imports.importer", "app.endpoints.endpoint"}
