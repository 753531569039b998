"""Endpoints validate their arguments, keep their signature, and declare the scope of a token."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Literal

import pytest

from app.endpoints.endpoint import ArgumentError, endpoint, endpoints_of


class Group:
    @endpoint("read")
    def find(self, word: str, order: Literal["newest", "oldest"] = "newest", limit: int = 5) -> list[str]:
        """Find words."""
        return [word, order, str(limit)]

    @endpoint("run")
    def count(self, until: int) -> Iterator[int]:
        """Count."""
        yield from range(until)

    def helper(self) -> None:
        """No endpoint."""


def test_endpoints_of_an_object_have_names_scopes_and_signatures() -> None:
    found = {name: (scope, method) for name, scope, method in endpoints_of(Group())}
    assert {name: scope for name, (scope, _) in found.items()} == {"find": "read", "count": "run"}
    assert list(inspect.signature(found["find"][1]).parameters) == ["word", "order", "limit"]
    assert found["find"][1].__doc__ == "Find words."


def test_valid_arguments_are_passed_on() -> None:
    assert Group().find("a", limit=3) == ["a", "newest", "3"]
    assert list(Group().count(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"word": "a", "order": "best"}, "find: argument order: Input should be 'newest' or 'oldest'."),
        ({"word": "a", "limit": "many"}, "find: argument limit:"),
        ({"word": "a", "size": 1}, "find: argument size:"),
        ({}, "find: argument word: Missing required argument."),
    ],
)
def test_an_invalid_argument_is_named_with_its_value(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Group().find(**arguments)  # type: ignore[arg-type]
    assert caught.value.what.startswith(message)


def test_a_missing_argument_is_named_without_the_object_of_the_endpoint() -> None:
    with pytest.raises(ArgumentError) as caught:
        Group().find(limit=3)  # type: ignore[call-arg]
    assert str(caught.value) == (
        "find: argument word: Missing required argument. Known: word, order, limit. "
        "Fix: Correct the argument and call it again."
    )


def test_an_invalid_argument_of_a_stream_is_an_argument_error() -> None:
    with pytest.raises(ArgumentError, match="argument until"):
        list(Group().count("x"))  # type: ignore[arg-type]
