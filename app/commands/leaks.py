"""`rl2f leaks`: how well leak detectors do."""

from __future__ import annotations

import typer

from app.commands import leaks_board

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Leak detectors and how well they do.")
app.command("board")(leaks_board.board)


@app.callback()
def common() -> None:
    """Leak detectors and how well they do."""
