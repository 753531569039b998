"""Endpoints validate their arguments, keep their signature, and declare the scope of a token."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from gradio_client.utils import json_schema_to_python_type
from pydantic import BaseModel, Field

from app.common.context import Context
from app.endpoints.endpoint import ArgumentError, Flat, endpoint, endpoints_of, operation_of
from app.endpoints.studio import Studio
from app.web.gradio_app import result_schema
from jobs.db.errors import UnknownRunError


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


# -- schemas of all endpoints ----------------------------------------------------------------------------------------
def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and schema of every property of a schema and of the models in it."""
    for model in (schema, *schema.get("$defs", {}).values()):
        yield from model.get("properties", {}).items()


def test_every_property_has_a_description_and_no_schema_names_a_python_path(context: Context) -> None:
    for name, _, function in Studio(context).endpoints():
        operation = operation_of(function)
        for schema in (operation.input_schema(), operation.output_schema()):
            described = [key for key, each in properties(schema) if not each.get("description")]
            assert not described, (name, described)
            paths = re.findall(r"\b(?:rl2f_core|jobs|app)[._]\w+", json.dumps(schema))
            assert not paths, (name, paths)
            json_schema_to_python_type(result_schema(operation))  # as Gradio's client does


def test_one_name_stands_for_a_run_and_the_old_one_is_accepted(context: Context) -> None:
    operations = [operation_of(function) for _, _, function in Studio(context).endpoints()]
    names = {name for each in operations for name in each.arguments.model_fields}
    assert {"run", "runs"} <= names and not {"run_id", "run_ids"} & names
    with pytest.raises(UnknownRunError):
        Studio(context).run.get_run(run_id=7)  # type: ignore[call-arg]


def test_the_fields_of_a_settings_model_are_arguments() -> None:
    class Words(BaseModel):
        word: str
        limit: int = Field(5, description="Maximum number.")

    class Search:
        @endpoint("read")
        def search(self, words: Flat[Words], exact: bool = False) -> list[Any]:
            """Search.

            Args:
                exact: Whole words only.
            """
            return [words.word, words.limit, exact]

    Search.search.operation._hints = {"words": Flat[Words], "exact": bool, "return": list[Any]}  # type: ignore[attr-defined]  # local names
    found = Search()
    assert found.search(Words(word="a")) == found.search(word="a") == found.search("a") == ["a", 5, False]  # type: ignore[call-arg, arg-type]
    schema = operation_of(found.search).input_schema()["properties"]
    assert list(schema) == ["word", "limit", "exact"]
    assert schema["limit"]["description"] == "Maximum number." and schema["exact"]["description"] == "Whole words only."
