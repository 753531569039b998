"""The studio's folder: where database, runs, exports and backups lie.

rl2f.sqlite        the database, unless RL2F_DATABASE_URL names another
runs/ID-NAME/      one folder a run (see `rl2f_core.run.RunDir`), with log.txt, progress.json and exit.json beside
exports/           the only folder whose files are handed out
backups/           copies of the database
trash/             what was deleted, until retention removes it
scheduler.lock     held by the one server that schedules
ray.json, ray.log  the Ray cluster that was started on this machine, and what Ray says (executor ray)
"""

from __future__ import annotations

import os
from pathlib import Path


class Studio:
    """Paths of one studio. Nothing is made until `create` is called."""

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root or os.environ.get("RL2F_STUDIO") or "studio").resolve()
        self.database = self.root / "rl2f.sqlite"
        self.runs = self.root / "runs"
        self.exports = self.root / "exports"
        self.backups = self.root / "backups"
        self.trash = self.root / "trash"
        self.lock = self.root / "scheduler.lock"

    def create(self) -> Studio:
        """Make the folders that are missing."""
        for folder in (self.root, self.runs, self.exports, self.backups, self.trash):
            folder.mkdir(parents=True, exist_ok=True)
        return self

    def database_url(self) -> str:
        """`RL2F_DATABASE_URL`, else SQLite in the folder."""
        return os.environ.get("RL2F_DATABASE_URL") or f"sqlite:///{self.database}"

    def folder(self, name: str) -> Path:
        """The folder of a run by its name below `runs/`."""
        return self.runs / name
