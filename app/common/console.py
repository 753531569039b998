"""Terminal output: consoles, tables, and model text with control characters escaped."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable

from rich import filesize
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 240
"""Characters per line of redirected output, so that tables are not wrapped."""
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def out() -> Console:
    """Return the console for results (standard output), without highlighting or truncation."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def err() -> Console:
    """Return the console for messages and progress (standard error)."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def visible(text: str) -> str:
    """Escape control and format characters except line feeds, e.g. as `\\x1b`.

    Model text can thus not color, move or clear anything, or change the writing direction.
    """
    return "".join(_escape(ch) if ch != "\n" and unicodedata.category(ch) in _HIDDEN_CATEGORIES else ch for ch in text)


def _escape(ch: str) -> str:
    return "\\0" if ch == "\0" else ch.encode("unicode_escape").decode()


def model_text(text: str, style: str = "") -> Text:
    """Return model text as a Rich object without markup or control characters."""
    return Text(visible(text), style=style)


def table(*columns: str, rows: Iterable[Iterable[str]] = (), title: str | None = None) -> Table:
    """Return a plain table whose cells are literal text."""
    result = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        result.add_row(*(model_text(cell) for cell in row))
    return result


def fail(message: str) -> None:
    """Print a red message on standard error."""
    err().print(Text("Error: ", style="bold red") + model_text(message, "red"))


def human_bytes(count: float) -> str:
    """Format bytes in decimal units with one digit, e.g. `272.6 MB`."""
    return filesize.decimal(round(count))
