"""The decorator of endpoints: it validates arguments and declares the token scope that a program needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, Literal, TypeVar, cast, get_args, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError, validate_call

from app.endpoints.recorder import Action, recorded
from rl2f_core.errors import ConfigError, shorten_repr

Scope = Literal["read", "run", "label"]
"""What a token permits: read everything; start and change runs, exports and chats; write labels and notes."""
SCOPES: tuple[Scope, ...] = get_args(Scope)

F = TypeVar("F", bound=Callable[..., object])


class ArgumentError(ConfigError):
    """An argument of an endpoint has a wrong type or value."""


def endpoint(scope: Scope) -> Callable[[F], F]:
    """Return a decorator that makes a method an endpoint.

    The endpoint raises `ArgumentError` if an argument does not match its annotation. An endpoint whose scope is not
    `read` changes something: its calls are recorded in the audit log, and it raises `StoreReadOnlyError` if the server
    is read-only. The name of the endpoint is the method's name.

    Args:
        scope: Scope that a token needs for this endpoint. Every token may call endpoints of the scope `read`.
    """

    def decorate(function: F) -> F:
        checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)

        def run(*args: object, **kwargs: object) -> Any:
            try:
                return checked(*args, **kwargs)
            except ValidationError as error:
                if error.title != function.__qualname__:  # raised inside of the function
                    raise
                raise _argument_error(function, error) from None

        @contextmanager
        def admitted(args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[Action]:
            context = getattr(args[0], "_context", None) if args else None
            if scope == "read" or context is None:
                yield Action()
                return
            context.require_writable()
            with recorded(context.db, function, args, kwargs) as action:
                yield action

        @wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            with admitted(args, kwargs) as action:
                action.result = run(*args, **kwargs)
                return action.result

        @wraps(function)
        def stream(*args: object, **kwargs: object) -> Iterator[object]:
            with admitted(args, kwargs):
                yield from run(*args, **kwargs)

        made: Any = stream if inspect.isgeneratorfunction(function) else call
        made.endpoint_scope = scope
        return cast(F, made)

    return decorate


def to_json(function: Callable[..., object], result: object) -> Any:
    """Return a result of an endpoint as JSON data, by its annotated type; a `TypedDict` is JSON data already."""
    try:
        adapter = _result_adapter(inspect.unwrap(function))
    except PydanticUserError:
        return result
    return adapter.dump_python(result, mode="json")


@lru_cache(1000)
def _result_adapter(function: Callable[..., object]) -> TypeAdapter[Any]:
    returned = get_type_hints(function, include_extras=True)["return"]
    return TypeAdapter(get_args(returned)[0] if inspect.isgeneratorfunction(function) else returned)


def endpoints_of(group: object) -> Iterator[tuple[str, Scope, Callable[..., object]]]:
    """Yield name, scope and bound method of each endpoint of an object."""
    for name, method in inspect.getmembers(group, inspect.ismethod):
        scope = getattr(method, "endpoint_scope", None)
        if scope is not None:
            yield name, scope, method


def _argument_error(function: Callable[..., object], error: ValidationError) -> ArgumentError:
    names = list(inspect.signature(function).parameters)
    first = error.errors(include_url=False)[0]
    loc = [str(part) for part in first["loc"]]
    if loc and isinstance(first["loc"][0], int) and first["loc"][0] < len(names):
        loc[0] = names[first["loc"][0]]
    what = f"{function.__name__}: argument {'.'.join(loc)}: {first['msg']}."
    known = names[1:] if first["type"] in ("unexpected_keyword_argument", "missing_argument") else None
    value = None if first["type"] == "missing_argument" else shorten_repr(first["input"], 100)
    return ArgumentError(what, value=value, known=known, fix="Correct the argument and call it again.")
