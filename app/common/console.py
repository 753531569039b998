"""What the terminal shows: consoles, tables, progress bars, and model text that cannot do anything to the terminal."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 240
"""Characters of a line where the output is no terminal, so that tables are not folded in files and pipes."""


_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def out() -> Console:
    """The console for results (standard output). Numbers and paths are not coloured, lines are not cut."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def err() -> Console:
    """The console for messages and progress (standard error)."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def visible(text: str) -> str:
    """Text with every control and format character but the line feed written out, e.g. `\\x1b` for escape.

    What a model wrote can so neither colour, move nor clear anything, nor turn the direction of writing.
    """
    return "".join(_escaped(ch) if ch != "\n" and unicodedata.category(ch) in _HIDDEN else ch for ch in text)


def _escaped(ch: str) -> str:
    named = {"\t": "\\t", "\r": "\\r", "\0": "\\0"}
    code = ord(ch)
    return named.get(ch) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}")


def model_text(text: str, style: str = "") -> Text:
    """Model text as a Rich object: no markup, no control characters."""
    return Text(visible(text), style=style)


def table(*columns: str, rows: Iterable[Iterable[str]] = (), title: str | None = None) -> Table:
    """A plain table whose cells are literal text."""
    made = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        made.add_row(*(model_text(cell) for cell in row))
    return made


def fail(message: str) -> None:
    """One red message on standard error."""
    err().print(Text("Error: ", style="bold red") + model_text(message, "red"))


def progress() -> Progress:
    """A progress bar with count, elapsed time and ETA, on standard error; plain silence where that is no terminal."""
    console = err()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        speed_estimate_period=3600,  # a step may take a minute; the default of 30 s would never give an ETA
        disable=not console.is_terminal,
    )


def human_bytes(count: float) -> str:
    """`272.6 MB`: decimal units, one digit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
