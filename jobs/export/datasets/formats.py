"""A dataset type with its columns, for Parquet and for the card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from jobs.export.datasets.export_records import ExportRecord
from jobs.export.datasets.label_choice import Decision
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

FileType = Literal["jsonl", "parquet"]
Decisions: TypeAlias = Sequence[Decision | None]
"""One per turn of a record; None if the turn has no hint."""
RowBuilder: TypeAlias = Callable[[ExportRecord, Decisions, bool], Iterator[JsonObject]]
"""Yields the rows of a dialogue; the flag says whether prompts contain privileged data."""
Build = TypeVar("Build", bound=RowBuilder)


@dataclass(frozen=True)
class Format:
    """One dataset type."""

    name: str
    title: str
    short: str
    """Description on the form; plain text."""
    about: str
    """Description in the card; Markdown."""
    columns: dict[str, tuple[str, str]]
    """Column → (type of `_arrow`, meaning)."""
    build: RowBuilder | None = None
    """None for `preference`, whose rows `PairFinder` builds."""

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of its rows."""
        import pyarrow as pa

        return pa.schema([(name, _arrow(kind)) for name, (kind, _) in self.columns.items()])

    def features(self) -> list[JsonObject]:
        """Return the types of its columns for a card: from JSON lines, `datasets` would guess them."""
        return [{"name": name, **_feature(kind)} for name, (kind, _) in self.columns.items()]


def _arrow(kind: str) -> pa.DataType:
    import pyarrow as pa

    plain = {"string": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    if kind in plain:
        return plain[kind]
    if kind.startswith("list "):
        return pa.list_(_arrow(kind.removeprefix("list ")))
    return pa.struct([(name, plain[of]) for name, of in _STRUCTS[kind].items()])


def _feature(kind: str) -> JsonObject:
    if kind.startswith("list "):
        inner = _feature(kind.removeprefix("list "))
        return {"list": inner.get("struct", inner.get("dtype"))}
    if kind in _STRUCTS:
        return {"struct": [{"name": name, **_feature(of)} for name, of in _STRUCTS[kind].items()]}
    return {"dtype": {"int": "int64", "float": "float64"}.get(kind, kind)}


_STRUCTS = {
    "message": {"role": "string", "content": "string"},
    "verdict": {"correct": "bool", "score": "float", "parsed": "string", "parsable": "bool", "well_formed": "bool"},
    "term": {"turn": "int", "name": "string", "score": "float", "weight": "float"},
    "leak": {
        "state": "string",
        "detector": "string",
        "leak_type": "string",
        "start": "int",
        "end": "int",
        "answer_fraction": "float",
        "action": "string",
    },
}


STUDENT_TYPES = ("messages", "prompt_completion")
"""Types whose prompts are those of the student."""
FORMATS: dict[str, Format] = {}
"""The dataset types by name."""


def dataset_type(
    name: str, title: str, short: str, about: str, columns: dict[str, tuple[str, str]]
) -> Callable[[Build], Build]:
    """Register a dataset type, whose rows the decorated function builds; see `Format` for the parameters."""

    def register(build: Build) -> Build:
        FORMATS[name] = Format(name, title, short, about, columns, build)
        return build

    return register
