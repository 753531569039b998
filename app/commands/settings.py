"""Options that are made from the fields of a settings model, which is imported only when its command runs.

    def export(out: Path, settings: ExportSettings = options_of("jobs.export.datasets.settings:ExportSettings")): ...

The name of an option is that of the field, its help text the docstring below the field. A field with several values is
an option that may be repeated; its name is singular. The fields of a nested model are options too.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from importlib import import_module
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

LIMITS = (("min", "ge"), ("max", "le"))
"""Limits of an option and of a field."""
RUNS = ("run", "runs")
"""Fields with numbers of runs; their options also take names and folders."""


@dataclass(frozen=True)
class SettingsOptions:
    """The options of a parameter of a command."""

    model: Callable[[], type[BaseModel]]
    fields: tuple[str, ...] = ()
    """Only these fields, as a dictionary of their values; empty for the whole model."""
    names: Mapping[str, str | None] = field(default_factory=dict)
    """Field → name of its option; None omits it."""


def options_of(model: str, *fields: str, **names: str | None) -> Any:
    """Return the default of a parameter that is a settings model, made from the command's options.

    Args:
        model: `module:Class`.
        fields: Only these fields; the parameter is then a dictionary of their values.
        names: Field → name of its option, if it has another name; None omits it.
    """

    def load() -> type[BaseModel]:
        module, _, name = model.partition(":")
        return cast("type[BaseModel]", getattr(import_module(module), name))

    return SettingsOptions(load, fields, names)


def add_command(app: typer.Typer, name: str, function: Callable[..., object], **options: Any) -> None:
    """Add a command to an app; its settings models are imported when it runs, or prints its help."""
    if not any(
        isinstance(parameter.default, SettingsOptions) for parameter in inspect.signature(function).parameters.values()
    ):
        app.command(name, **options)(function)
        return

    def stub() -> None:
        """Stand in for the function until it is known which command runs."""

    stub.__doc__ = function.__doc__
    app.command(name, cls=_lazy(function), **options)(stub)


def _lazy(function: Callable[..., object]) -> type[TyperCommand]:
    class LazyCommand(TyperCommand):
        @cached_property
        def command(self) -> Any:
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(self.name)(expand(function))
            return typer.main.get_command(app)

        def get_params(self, ctx: Any) -> Any:
            """Return the options, with those of the settings models."""
            return self.command.get_params(ctx)

        def make_context(self, *args: Any, **kwargs: Any) -> Any:
            """Return the context of the command with all options."""
            return self.command.make_context(*args, **kwargs)

    return LazyCommand


def expand(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function with an option for each field of a settings model, which calls the function."""
    parameters: list[inspect.Parameter] = []
    settings: dict[str, tuple[SettingsOptions, list[inspect.Parameter]]] = {}
    signature = inspect.signature(function)
    names = [
        name for name, parameter in signature.parameters.items() if not isinstance(parameter.default, SettingsOptions)
    ]
    known = type("Known", (), {"__annotations__": {name: function.__annotations__[name] for name in names}})
    hints = get_type_hints(known, vars(import_module(function.__module__)), include_extras=True)
    for name, parameter in signature.parameters.items():
        if isinstance(parameter.default, SettingsOptions):
            settings[name] = parameter.default, list(_options(parameter.default, parameter.default.model()))
            parameters += settings[name][1]
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    def call(**values: Any) -> object:
        for name, (wanted, options) in settings.items():
            given = [values.pop(option.name) for option in options]
            values[name] = _settings(wanted, options, given, values.get("workspace"))
        return function(**values)

    made: Any = call
    made.__name__, made.__doc__ = function.__name__, function.__doc__
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _options(wanted: SettingsOptions, model: type[BaseModel], above: str = "") -> Iterator[inspect.Parameter]:
    """Yield a parameter per option. Its name is that of the field, after those of the fields around it and `__`."""
    from pydantic import BaseModel

    for name, info in model.model_fields.items():
        if (wanted.fields and name not in wanted.fields) or wanted.names.get(name, "") is None:
            continue
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _options(wanted, info.annotation, f"{above}{name}__")
            continue
        kind, is_list, is_json = _option_type(info.annotation)
        singular = name[:-1] if is_list and re.search("[^us]s$", name) else name
        option = wanted.names.get(name) or f"--{singular.replace('_', '-')}"
        kind = str if name in RUNS else kind
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        default = list(default) if is_list and default else None if default in ("", ()) else default
        declaration = f"{option}/--no-{option[2:]}" if kind is bool and default is True else option
        more: dict[str, Any] = {"parser": _parse_json, "metavar": "JSON"} if is_json else {}
        if is_list and get_origin(kind) is Literal:  # the model checks the values
            kind, more = str, {"metavar": "|".join(get_args(kind))}
        elif kind in (int, float) and not is_list:
            more = {limit: getattr(mark, at) for mark in info.metadata for limit, at in LIMITS if hasattr(mark, at)}
        declared = typer.Option(declaration, help=info.description, **more)
        annotated = Annotated[(list[kind] if is_list else kind) | None, declared]  # type: ignore[valid-type]
        default = inspect.Parameter.empty if info.is_required() else default
        keyword = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(f"{above}{name}", keyword, annotation=annotated, default=default)


def _option_type(annotation: Any) -> tuple[Any, bool, bool]:
    """Return the type of an option, whether it may be repeated, and whether its value is JSON."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _option_type(args[0])
    if origin in (Union, UnionType):
        others = [arg for arg in args if arg is not type(None)]
        return _option_type(others[0]) if len(others) == 1 else (str, False, True)
    if origin is Literal:
        return Literal[tuple(arg for arg in args if arg != "")], False, False  # type: ignore[return-value]
    if origin in (tuple, list, Sequence):
        kind, is_nested, is_json = _option_type(args[0])
        return (kind, True, False) if not (is_nested or is_json) else (str, False, True)
    return (annotation, False, False) if annotation in (bool, int, float, str) else (str, False, True)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}") from error


def _settings(
    wanted: SettingsOptions, options: Sequence[inspect.Parameter], given: Sequence[Any], workspace: Path | None
) -> Any:
    """Return the settings model with the values of options; a field whose option is None has its default."""
    from pydantic import ValidationError

    from app.commands.options import find_number
    from rl2f_core.config.loading import known_keys
    from rl2f_core.errors import ConfigError

    data: dict[str, Any] = {}
    for option, value in zip(options, given, strict=True):
        if value is not None:
            *above, name = option.name.split("__")
            if name in RUNS:
                runs = [find_number(text, workspace) for text in ([value] if isinstance(value, str) else value)]
                value = runs[0] if isinstance(value, str) else runs
            reduce(lambda inner, key: inner.setdefault(key, {}), above, data)[name] = value
    if wanted.fields:
        return data
    try:
        return wanted.model().model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path, key = "__".join(str(part) for part in first["loc"]), ".".join(str(part) for part in first["loc"])
        found = next((candidate for candidate in options if f"{path}__".startswith(f"{candidate.name}__")), None)
        name = key if found is None else found.annotation.__metadata__[0].default
        inside = first["loc"][len(found.name.split("__")) :] if found else ()
        is_inside, is_unknown = any(isinstance(part, str) for part in inside), first["type"] == "extra_forbidden"
        reason = "unknown key" if is_unknown else first["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"Option {name}: {f'{key}: ' if is_inside else ''}{reason}.",
            value=first["input"],
            known=(known_keys(wanted.model(), first["loc"][:-1]) or None) if is_unknown else None,
            fix="The option --help shows what is allowed.",
        ) from error
