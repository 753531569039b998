"""Prompt templates for model teachers and judges: named, versioned text files.

A file contains the system message and the user message, separated by a line `---`; without that line, only the user
message. Examples are further messages, each below a line `--- assistant` or `--- user`; the last message is the user's.
All are sandboxed Jinja templates that can access only the given values. A value that a teacher must not see is None, so
no template can show it. Values are not rendered as templates.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rl2f_core.common.paths import PROMPTS
from rl2f_core.errors import ConfigError
from rl2f_core.types import Message

if TYPE_CHECKING:
    from jinja2 import Environment, Template

MAX_BYTES = 100_000
_SEPARATOR = re.compile(r"^---[ \t]*\n", re.MULTILINE)
_ROLE = re.compile(r"^--- (assistant|user)[ \t]*\n", re.MULTILINE)


@dataclass(frozen=True)
class PromptTemplate:
    """The content of a template file."""

    name: str
    """File name without its extension."""
    text: str

    @property
    def version(self) -> str:
        """`name@` and the first eight hexadecimal digits of the file's SHA-256."""
        return f"{self.name}@{hashlib.sha256(self.text.encode()).hexdigest()[:8]}"

    def render(self, values: Mapping[str, object]) -> tuple[Message, ...]:
        """Render the messages. Raises `ConfigError` if the template is invalid or uses an unknown value."""
        from jinja2 import TemplateError

        first, *examples = _ROLE.split(self.text)
        *system, user = _SEPARATOR.split(first, maxsplit=1)
        parts = [("system", "".join(system)), ("user", user), *zip(examples[::2], examples[1::2], strict=True)]
        try:
            texts = [(role, _compile(part).render(values).strip()) for role, part in parts]
        except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError, LookupError) as error:
            raise ConfigError(f"The prompt template {self.name} cannot be filled: {error}.", known=sorted(values),
                              fix="Correct the template; `known` lists its values.") from error  # fmt: skip
        messages = tuple(Message(role=role, content=text) for role, text in texts if text)
        if texts[-1][0] != "user" or not all(text for role, text in texts if role != "system"):
            raise ConfigError(f"The prompt template {self.name} has no user message at its end, or an empty message.",
                              fix="Write the last one below ---, and after examples below --- user.")  # fmt: skip
        return messages


def names() -> list[str]:
    """List the shipped templates."""
    return sorted(path.stem for path in PROMPTS.glob("*.txt"))


def load(name: str) -> PromptTemplate:
    """Load a shipped template by name, or a `.txt` file by path.

    Raises `ConfigError` if it does not exist or cannot be read.
    """
    is_file = name.endswith(".txt")
    if not is_file and name not in names():
        raise ConfigError("There is no such prompt template.", value=name, known=names(),
                          fix="Name one of these, or the path of a .txt file.")  # fmt: skip
    path = Path(name).expanduser() if is_file else PROMPTS / f"{name}.txt"
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode().replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"The prompt template cannot be read: {error}.", value=name) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"A prompt template has at most {MAX_BYTES} bytes.", value=name)
    return PromptTemplate(path.stem, text)


@functools.lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)


@functools.lru_cache(maxsize=64)
def _compile(text: str) -> Template:
    return _environment().from_string(text)
