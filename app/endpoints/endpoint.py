"""The decorator of endpoints, and the models of their arguments and results.

The signature of an endpoint is its settings model: Gradio's API, the tools of MCP and `rl2f call` are made from it.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, wraps
from typing import Annotated, Any, Literal, Self, TypeVar, cast, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.errors import PydanticUserError
from pydantic_core import InitErrorDetails, to_jsonable_python

from app.common.context import Context
from app.common.urls import page_url
from app.endpoints.recorder import Action, known_arguments, recorded
from app.endpoints.types import OldName, QueuedRun
from jobs.db.models import Run
from rl2f_core.config.loading import known_keys
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject

Scope = Literal["read", "run", "label"]
"""What a token permits: read everything; start and change runs, exports and chats; write labels and notes."""
SCOPES: tuple[Scope, ...] = get_args(Scope)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])
_FLAT = "flat"
Flat = Annotated[T, _FLAT]
"""A settings model whose fields are arguments of an endpoint."""


COMMON = {
    "action": "An action.",
    "annotator": "Name of the annotator.",
    "config": "YAML of the run.",
    "content": "Its text.",
    "created": "When it was created, in seconds since 1970, UTC.",
    "detail": "Why it ended.",
    "ended": "When it ended, in seconds since 1970, UTC.",
    "environment": "Name of the environment.",
    "error": "What is wrong.",
    "event_id": "Id of a dialogue; permanent in its run.",
    "format": "Format of the result.",
    "id": "Its number.",
    "label": "Its label.",
    "leaked": "The hint reveals the answer.",
    "level": "Level of the task.",
    "message": "What is wrong.",
    "name": "Its name.",
    "phase": "Current activity.",
    "reason": "Why not.",
    "role": "Who wrote it.",
    "run": "Number of a run.",
    "samples": "Dialogues per arm and checkpoint.",
    "score": "Its score.",
    "seed": "Its seed.",
    "started": "When it started, in seconds since 1970, UTC.",
    "status": "State of the run.",
    "text": "Its text.",
    "time": "Seconds since 1970, UTC.",
    "title": "Its title.",
    "turn": "0-based turn.",
    "weight": "Its weight.",
    "yaml": "Configuration as YAML.",
}
"""Descriptions of properties without one of their own."""


class ArgumentError(ConfigError):
    """An argument of an endpoint has a wrong type or value."""


class Arguments(BaseModel):
    """Base of the models of arguments: without unknown keys; booleans are no numbers, as in configurations."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_booleans(cls, data: object, validate: ModelWrapValidatorHandler[Self]) -> Self:
        valid = validate(data)
        errors = [InitErrorDetails(type="float_type", loc=loc, input=value) for loc, value in _converted(data, valid)]
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return valid


def _converted(data: object, valid: object, loc: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, bool]]:
    """Yield location and value of each boolean that became a number."""
    if isinstance(data, bool):
        if isinstance(valid, int | float) and not isinstance(valid, bool):
            yield loc, data
    elif isinstance(data, Mapping):
        values = dict(valid) if isinstance(valid, BaseModel | Mapping) else {}
        for key in data.keys() & values.keys():
            yield from _converted(data[key], values[key], (*loc, key))
    elif isinstance(data, list | tuple) and isinstance(valid, list | tuple):
        for i, (item, value) in enumerate(zip(data, valid, strict=False)):
            yield from _converted(item, value, (*loc, i))


class Operation:
    """The function of an endpoint, and the models of its arguments and of its result.

    Args:
        function: A method.
        scope: Scope that a token needs for it.
    """

    def __init__(self, function: Callable[..., Any], scope: Scope) -> None:
        self.function, self.scope, self.name = function, scope, function.__name__
        self.is_stream = inspect.isgeneratorfunction(function)
        text, _, arguments = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
        self.description = text
        self._texts = {
            name: " ".join(text.split()) for name, text in re.findall(r"^    (\w+): ((?:.|\n {8})+)", arguments, re.M)
        }
        self._parameters = list(inspect.signature(function).parameters.values())[1:]

    @property
    def summary(self) -> str:
        """First line of the description."""
        return self.description.partition("\n")[0]

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.function, include_extras=True)

    @cached_property
    def _settings(self) -> dict[str, type[BaseModel]]:
        """The settings models by parameter."""
        marked = ((name, getattr(hint, "__metadata__", ())) for name, hint in self._hints.items())
        return {name: get_args(self._hints[name])[0] for name, marks in marked if _FLAT in marks}

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """Model of the arguments, in the order of the signature; the fields of settings models are arguments."""
        fields: dict[str, Any] = {}
        for parameter in self._parameters:
            if parameter.name in self._settings:
                fields |= {n: (f.annotation, f) for n, f in self._settings[parameter.name].model_fields.items()}
                continue
            text = self._texts.get(parameter.name)
            default = ... if parameter.default is parameter.empty else parameter.default
            info = Field(default, description=text) if text else Field(default)
            fields[parameter.name] = (self._hints[parameter.name], info)
        return create_model(self.name, __base__=Arguments, **fields)

    @cached_property
    def old_names(self) -> dict[str, str]:
        """Old names of arguments and their names."""
        fields = self.arguments.model_fields.items()
        return {mark.name: name for name, field in fields for mark in field.metadata if isinstance(mark, OldName)}

    @cached_property
    def _returned(self) -> TypeAdapter[Any]:
        hint = self._hints["return"]
        hint = get_args(hint)[0] if self.is_stream else hint
        try:  # rows of a list are described by the docstrings of their fields
            return TypeAdapter(hint, config=ConfigDict(use_attribute_docstrings=True))
        except PydanticUserError:  # a model has a configuration of its own
            return TypeAdapter(hint)

    def defaults(self) -> dict[str, object]:
        """Return the defaults of the arguments as JSON data, in order; `...` if there is none."""
        return {
            name: ... if field.is_required() else to_jsonable_python(field.get_default(call_default_factory=True))
            for name, field in self.arguments.model_fields.items()
        }

    def given(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Return the arguments of a call by name. Raises `ArgumentError` if one is given twice."""
        pairs: list[tuple[str, object]] = []
        names = list(self.arguments.model_fields)
        for number, value in enumerate(args):
            if isinstance(value, BaseModel) and type(value) in self._settings.values():
                kwargs = {**kwargs, next(n for n, model in self._settings.items() if model is type(value)): value}
                names = names[len(type(value).model_fields) :]
            else:
                pairs.append((names.pop(0) if names else str(number), value))
        for name, value in kwargs.items():
            if name in self._settings:
                pairs += [(field, getattr(value, field)) for field in cast(BaseModel, value).model_fields_set]
            elif name not in self.old_names or value is not None:
                pairs.append((self.old_names.get(name, name), value))
        given: dict[str, object] = {}
        for name, value in pairs:
            if value is not None and given.get(name) is not None:
                raise ArgumentError(f"{self.name}: argument {name} is given twice.", fix="Give it once.")
            given[name] = given.get(name) if value is None else value
        return given

    def known(self, given: Mapping[str, object]) -> dict[str, object]:
        """Return the known ones of arguments by name, for the audit log."""
        return known_arguments(given, self.arguments.model_fields, self.old_names)

    def bind(self, given: Mapping[str, object]) -> dict[str, object]:
        """Return valid arguments of the function. Raises `ArgumentError`."""
        try:
            valid = self.arguments(**given)
            values = {name: getattr(valid, name) for name in self.arguments.model_fields}
            for name, model in self._settings.items():
                values[name] = model(**{field: values.pop(field) for field in model.model_fields})
            return values
        except ValidationError as error:
            raise self._error(error) from None

    def _error(self, error: ValidationError) -> ArgumentError:
        first = error.errors(include_url=False)[0]
        is_missing, is_unknown = first["type"] == "missing", first["type"] == "extra_forbidden"
        reason = "Missing required argument" if is_missing else "unknown key" if is_unknown else first["msg"]
        return ArgumentError(
            f"{self.name}: argument {'.'.join(map(str, first['loc']))}: {reason}.",
            value=None if is_missing else first["input"],
            known=(known_keys(self.arguments, first["loc"][:-1]) or None) if is_missing or is_unknown else None,
            fix="Correct the argument and call it again.",
        )

    def to_json(self, result: object) -> Any:
        """Return a result, or an item of a stream, as JSON data."""
        return self._returned.dump_python(result, mode="json")

    @cached_property
    def _schemas(self) -> tuple[JsonObject, JsonObject]:
        """The JSON schemas of the arguments and of the result; their generation takes milliseconds."""
        returned = self._returned.json_schema(mode="serialization")
        return describe_properties(self.arguments.model_json_schema()), describe_properties(returned)

    def input_schema(self) -> JsonObject:
        """Return the JSON schema of the arguments."""
        return copy.deepcopy(self._schemas[0])

    def output_schema(self) -> JsonObject:
        """Return the JSON schema of the result, or of an item of a stream."""
        return copy.deepcopy(self._schemas[1])


OPERATIONS: dict[str, Operation] = {}
"""All operations by the name of their endpoint, as far as their modules are imported."""


def describe_properties(schema: JsonObject) -> JsonObject:
    """Return a schema without titles, with a description of every property.

    A property without one has that of its model, or of its name: `COMMON`, or the number of what the name says.
    """
    models = schema.get("$defs", {})
    for model in [schema, *models.values()]:
        model.pop("title", None)
        for name, field in model.get("properties", {}).items():
            field.pop("title", None)
            used = next((found for found in re.findall(r"#/\$defs/(\w+)", str(field)) if found in models), None)
            text = COMMON.get(name) if used is None else models[used].get("description")
            is_count = field.get("type") == "integer" and name.endswith("s")
            field.setdefault("description", text or (f"Number of {name.replace('_', ' ')}." if is_count else ""))
    return schema


def queued_run(run: Run) -> QueuedRun:
    """Return a run that was put into the queue, with the address of its page."""
    return QueuedRun(run=run.id, name=run.name, url=page_url("run", run=run.id))


class Endpoints:
    """Endpoints of one subject.

    Args:
        context: The workspace and its services.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def _queue(self, config: BaseRun | str, parent: int | None, name: str | None = None) -> QueuedRun:
        """Put a configuration, or its YAML, into the queue."""
        return queued_run(self._context.queue.add(config, name=name, parent=parent))

    def _folder(self, run: Run) -> RunDir:
        """Return the directory of a run, which may have disappeared."""
        return RunDir(self._context.workspace.folder(run.folder))

    def _open(self, run: Run) -> RunDir:
        """Return the directory of a run. Raises `RunError` if there is none."""
        return RunDir.open(self._context.workspace.folder(run.folder))


def endpoint(scope: Scope, *, uses_models: bool = False) -> Callable[[F], F]:
    """Return a decorator that makes a method an endpoint.

    The endpoint raises `ArgumentError` if an argument does not match its annotation. An endpoint whose scope is not
    `read` changes something: its calls are recorded in the audit log, and it raises `StoreReadOnlyError` if the server
    is read-only. The name of the endpoint is the method's name.

    Args:
        scope: Scope that a token needs for this endpoint. Every token may call endpoints of the scope `read`.
        uses_models: It uses the model process of the chats, so it raises `RunError` in a command and
            `StoreReadOnlyError` if the server is read-only.
    """

    def decorate(function: F) -> F:
        operation = Operation(function, scope)

        @contextmanager
        def admitted(owner: object, given: Mapping[str, object]) -> Iterator[Action]:
            context = getattr(owner, "_context", None)
            if uses_models and context is not None:
                context.require_model_process()
            if scope == "read" or context is None:
                yield Action()
                return
            context.require_writable()
            with recorded(context.db, operation.name, operation.known(given)) as action:
                yield action

        @wraps(function)
        def call(self: object, /, *args: object, **kwargs: object) -> object:
            given = operation.given(args, kwargs)
            with admitted(self, given) as action:
                action.result = function(self, **operation.bind(given))
                return action.result

        @wraps(function)
        def stream(self: object, /, *args: object, **kwargs: object) -> Iterator[object]:
            given = operation.given(args, kwargs)
            with admitted(self, given):
                yield from cast(Iterator[object], function(self, **operation.bind(given)))

        made: Any = stream if operation.is_stream else call
        made.operation = OPERATIONS[operation.name] = operation
        return cast(F, made)

    return decorate


def operation_of(function: Callable[..., object]) -> Operation:
    """Return the operation of an endpoint."""
    return cast(Operation, cast(Any, function).operation)


def endpoints_of(group: object) -> Iterator[tuple[str, Scope, Callable[..., object]]]:
    """Yield name, scope and bound method of each endpoint of an object."""
    for name, method in inspect.getmembers(group, inspect.ismethod):
        if hasattr(method, "operation"):
            yield name, operation_of(method).scope, method
