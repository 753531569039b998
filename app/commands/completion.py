"""Values that a shell completes (`rl2f --install-completion`): presets and runs; files complete if none matches."""

from __future__ import annotations

import re
from pathlib import Path


def complete_config(incomplete: str) -> list[str]:
    """Return the presets that begin with a text."""
    from rl2f_core.config.presets import presets

    return [preset.name for preset in presets() if preset.name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Return the folders of runs below runs/ that begin with a text, newest first, without names that need quotes."""
    folders = sorted(Path("runs").glob("*/config.yaml"), key=lambda path: -path.stat().st_mtime)
    names = [str(path.parent) for path in folders]
    return [name for name in names if name.startswith(incomplete) and re.fullmatch(r"[\w./@+-]+", name)]


def complete_run_or_number(incomplete: str) -> list[str]:
    """Return the numbers of the workspace's newest runs, and folders as `complete_run`."""
    from jobs.db.queries.runs import page
    from jobs.export.datasets.resolve_sources import open_workspace
    from rl2f_core.errors import RL2FError

    try:
        with open_workspace() as (_, db):
            numbers = [str(run.id) for run in page(db).rows]
    except RL2FError:
        numbers = []
    return [*(number for number in numbers if number.startswith(incomplete)), *complete_run(incomplete)]
