"""The workspace: the directory with database, runs, exports and backups.

rl2f.sqlite        database, unless RL2F_DATABASE_URL names another
runs/ID-NAME/      run directories (see `rl2f_core.run.directory.RunDir`), with log.txt, progress.json and exit.json
detectors/mentions/ weights of detector `mentions` that were fitted to labels: v1.json, v2.json, …
data/              uploaded files of own questions; the name contains a hash of the content
exports/           the only directory whose files are served
backups/           copies of the database
trash/             deleted runs, until retention removes them
scheduler.lock     lock file of the server that schedules; `studies.lock` is held while a study is queued
ray.json, ray.log  Ray cluster that was started on this machine, and Ray's output (executor ray)
"""

from __future__ import annotations

import os
from pathlib import Path


class Workspace:
    """Paths of one workspace."""

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root or os.environ.get("RL2F_WORKSPACE") or "workspace").resolve()
        self.database = self.root / "rl2f.sqlite"
        self.runs = self.root / "runs"
        self.detectors = self.root / "detectors"
        self.data = self.root / "data"
        self.exports = self.root / "exports"
        self.backups = self.root / "backups"
        self.trash = self.root / "trash"
        self.lock = self.root / "scheduler.lock"

    def create(self) -> Workspace:
        """Create the missing directories."""
        for path in (self.root, self.runs, self.exports, self.backups, self.trash):
            path.mkdir(parents=True, exist_ok=True)
        return self

    def database_url(self) -> str:
        """Return `RL2F_DATABASE_URL`; by default SQLite in the workspace."""
        return os.environ.get("RL2F_DATABASE_URL") or f"sqlite:///{self.database}"

    def folder(self, name: str) -> Path:
        """Return a run directory by its name."""
        return self.runs / name

    def fitted_detectors(self) -> list[Path]:
        """Return the fitted versions of detector `mentions`, the oldest first."""
        files = [path for path in self.detectors.glob("mentions/v*.json") if path.stem[1:].isdecimal()]
        return sorted(files, key=lambda path: int(path.stem[1:]))
