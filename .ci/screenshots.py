"""Take pictures of every page with the example run: `python .ci/screenshots.py data/screenshots`.

`--all` takes each page at 1440 and 390 pixels in light and dark, to look at before a release.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Page, sync_playwright  # noqa: E402

from tests.benchmarks.studio_server import serving  # noqa: E402

CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SHOWN = {"runs", "run", "dialogues", "labels", "report", "fork"}
"""Pages in the documentation."""
FORKABLE = """
    SELECT run_id, event_id FROM dialogue
    WHERE phase = 'evaluation' AND "condition" = 'hints' AND solved_at = 2 ORDER BY checkpoint DESC, id LIMIT 1
"""
SETTLE_MS = 1500


def addresses(run: int, event: str) -> dict[str, str]:
    """Return the address of each page by its name."""
    return {
        "runs": "/",
        "run": f"/run?run={run}",
        "evaluation": f"/run?run={run}&tab=evaluation",
        "checkpoints": f"/run?run={run}&tab=checkpoints",
        "config": f"/run?run={run}&tab=config",
        "log": f"/run?run={run}&tab=log",
        "dialogues": f"/dialogues?run={run}",
        "group": f"/dialogues?run={run}&dialogue={event}&view=group",
        "new": "/new?preset=quickstart",
        "labels": "/labels?annotator=ada",
        "report": "/labels?view=report",
        "benchmark": "/labels?view=benchmark",
        "chat": "/chat",
        "compare": f"/compare?runs={run}",
        "exports": "/exports",
        "fork": f"/fork?run={run}&dialogue={event}&turn=0",
    }


def take(page: Page, url: str, path: Path) -> None:
    """Save a picture of the visible part of a page."""
    page.goto(url)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=path)


def main() -> None:
    """Start a server over a new workspace and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="all pages, two widths and two themes")
    parser.add_argument("--pages", help="comma-separated names")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    chromium = next(found for name in CHROMIUM if (found := shutil.which(name)))
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server, sync_playwright() as playwright:
        with sqlite3.connect(Path(folder) / "rl2f.sqlite") as db:
            run, event = db.execute(FORKABLE).fetchone()
        named = args.pages.split(",") if args.pages else None
        shown = {k: v for k, v in addresses(run, event).items() if (k in named if named else args.all or k in SHOWN)}
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for theme in ("light", "dark") if args.all else ("light",):
            for width, height in ((1440, 900), (390, 844)) if args.all else ((1440, 900),):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
                for name, address in shown.items():
                    suffix = f"-{width}-{theme}" if args.all else ""
                    take(page, server.url + address, args.folder / f"{name}{suffix}.png")
                    print(f"{name}{suffix}", flush=True)
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
