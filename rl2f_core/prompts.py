"""Prompt templates for model teachers and judges: files of text, named and versioned.

A file has two parts, the system message and the user's, with a line `---` between them; without that line all of it is
the user's. Both are Jinja templates in a sandbox that reaches nothing but the values it is given: what a teacher is not
to see is None there, so no wording of a template can show it. Values are inserted as they are and never read as
templates themselves.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl2f_core.errors import ConfigError
from rl2f_core.types import Message

FOLDER = Path(__file__).resolve().parent.parent / "data" / "prompts"
MAX_BYTES = 100_000
_BREAK = re.compile(r"^---[ \t]*\n", re.MULTILINE)


@dataclass(frozen=True)
class Prompt:
    """A template as it stood in its file."""

    name: str
    """Name of the file without its ending."""
    text: str

    @property
    def version(self) -> str:
        """`name@` and the first eight hex digits of the file's SHA-256."""
        return f"{self.name}@{hashlib.sha256(self.text.encode()).hexdigest()[:8]}"

    def render(self, values: Mapping[str, Any]) -> tuple[Message, ...]:
        """The messages. Raises `ConfigError` where the template is broken or asks for a value that it is not given."""
        from jinja2 import TemplateError

        system, _, user = self._parts()
        try:
            parts = (("system", system), ("user", user))
            said = [(role, _environment().from_string(part).render(values).strip()) for role, part in parts]
        except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError, LookupError) as error:
            raise ConfigError(f"The prompt template {self.name} cannot be filled: {error}.", known=sorted(values),
                              fix="Correct the template; `known` lists what it is given.") from error  # fmt: skip
        messages = tuple(Message(role=role, content=text) for role, text in said if text)
        if not messages or messages[-1]["role"] != "user":
            raise ConfigError(f"The prompt template {self.name} has no words for the user's message.",
                              fix="Write them below the line ---.")  # fmt: skip
        return messages

    def _parts(self) -> tuple[str, str, str]:
        found = _BREAK.search(self.text)
        return ("", "", self.text) if found is None else (self.text[: found.start()], "---", self.text[found.end() :])


def names() -> list[str]:
    """The shipped templates."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def load(name: str) -> Prompt:
    """A shipped template by its name, or one in a file by its path (which ends in `.txt`).

    Raises `ConfigError` where there is none or where it cannot be read.
    """
    own = name.endswith(".txt")
    if not own and name not in names():
        raise ConfigError("There is no such prompt template.", value=name, known=names(),
                          fix="Name one of these, or the path of a .txt file.")  # fmt: skip
    path = Path(name).expanduser() if own else FOLDER / f"{name}.txt"
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode().replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"The prompt template cannot be read: {error}.", value=name) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"A prompt template has at most {MAX_BYTES} bytes.", value=name)
    return Prompt(path.stem, text)


@functools.lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
