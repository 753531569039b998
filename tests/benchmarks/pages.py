"""`python -m tests.benchmarks.pages`: how fast the pages load and answer in a browser, against absolute limits.

The server runs over a copy of a generated workspace. The first repeat fills caches and is not counted. Times are
medians in milliseconds, measured in the browser.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from . import page_workspace, studio_server
from .page_driver import CLOCK, STEPS, Facts, Kind, PageDriver, StepError

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, ViewportSize

LIMITS: dict[Kind, float] = {
    "load": 800.0, "change": 400.0, "action": 100.0, "list": 200.0, "groups": 500.0, "next": 100.0, "type": 250.0,
    "yaml": 300.0, "live": 2500.0,
}  # fmt: skip
"""Maximum median in milliseconds of each kind of step. A change by another process is polled every 2 s."""
MAX_IDLE_PERCENT, IDLE_SECONDS = 3.0, 10.0
"""Maximum percentage of a core that an idle server uses, and the measured seconds."""
NARROW: ViewportSize = {"width": 390, "height": 844}
WIDE: ViewportSize = {"width": 1440, "height": 900}


@dataclasses.dataclass
class Row:
    """One line of the table: a figure with its limit."""

    page: str
    name: str
    value: float
    limit: float
    unit: str = "ms"
    samples: list[float] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    """Errors of steps, messages of the console, elements that are too wide."""

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limit; a step that failed is infinite."""
        return self.value <= self.limit


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pages", description=__doc__)
    parser.add_argument("--size", choices=page_workspace.SIZES, default="small")
    parser.add_argument("--pages", help=f"comma-separated, of {','.join(STEPS)} (default: all)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workspace", type=Path, help="generate the workspace here once, and reuse it")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    args = parser.parse_args(argv)
    args.pages = args.pages.split(",") if args.pages else list(STEPS)
    if unknown := [page for page in args.pages if page not in STEPS]:
        parser.error(f"unknown page {unknown[0]}; known: {', '.join(STEPS)}")
    if args.repeats < 1:
        parser.error("at least 1 repeat")
    return args


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text: figure, limit and whether it is kept."""
    lines = [f"{'page':10} {'measure':34} {'value':>8} {'limit':>8}       pass"]
    for row in rows:
        figures = " ".join(f"{_figure(value):>8}" for value in (row.value, row.limit))
        lines.append(f"{row.page:10} {row.name:34} {figures} {row.unit:5} {'✓' if row.passed else '✗'}")
        lines += [f"{'':10}   {note}" for note in row.notes]
    failed = sum(not row.passed for row in rows)
    return "\n".join([*lines, f"{len(rows) - failed} of {len(rows)} measures are within their limits"])


def _figure(value: float) -> str:
    return "failed" if math.isinf(value) else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def as_json(rows: Sequence[Row], facts: Mapping[str, object]) -> str:
    """Return all numbers as JSON; a failed step is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and math.isinf(value) else value

    listed = [{**dataclasses.asdict(row), "passed": row.passed} for row in rows]
    return json.dumps({**facts, "rows": plain(listed)}, indent=2, allow_nan=False)


def generated(folder: Path, size: str) -> Path:
    """Return the workspace in `folder`, generated if there is none."""
    done = folder / page_workspace.DONE
    if not done.is_file():
        print(f"Generating a {size} workspace …", flush=True)
        page_workspace.build(folder, size)
    if (found := json.loads(done.read_text())["size"]) != size:
        raise SystemExit(f"The workspace {folder} is {found}, not {size}. Fix: name another folder.")
    return folder


def read_facts(root: Path, size: str) -> Facts:
    """Read what the driver needs to know of the generated workspace."""
    import sqlite3

    with contextlib.closing(sqlite3.connect(root / "rl2f.sqlite")) as db:
        query = "SELECT event_id FROM dialogue WHERE run_id = ? AND length > 2 ORDER BY id LIMIT 1"
        (event,) = db.execute(query, (page_workspace.LARGEST,)).fetchone()
    return Facts(page_workspace.LARGEST, event, page_workspace.SIZES[size][0])


class Bench:
    """Measures pages in a browser.

    Args:
        driver: Operates the pages.
        messages: Errors in the console since they were last read.
    """

    def __init__(self, driver: PageDriver, messages: list[str]) -> None:
        self.driver, self.messages = driver, messages

    def page(self, page: str, repeats: int) -> list[Row]:
        """Measure a page: its steps, errors in the console, and overflow in a narrow window."""
        rows = [Row(page, step.name, math.inf, LIMITS[step.kind]) for step in STEPS[page]]
        for repeat in range(repeats + 1):
            for row, (value, error) in zip(rows, self._round(page), strict=True):
                if error and error not in row.notes:
                    row.notes.append(error)
                if repeat:
                    row.samples.append(value)
        for row in rows:
            row.value = median(row.samples)
        wide = self._overflow(page)
        rows += [_counted(page, "errors in the console", self.messages), _counted(page, "elements beyond 390 px", wide)]
        self.messages.clear()
        return rows

    def _round(self, page: str) -> Iterator[tuple[float, str]]:
        """Run the steps of a page once; yield milliseconds and error of each."""
        from playwright.sync_api import Error

        loaded = True
        for step in STEPS[page]:
            if not loaded:
                yield math.inf, "the page did not load"
                continue
            try:
                yield getattr(self.driver, step.method)(), ""
            except (StepError, Error) as error:
                loaded = step.kind != "load"
                yield math.inf, str(error).partition("\n")[0][:160]
        self._leave()

    def _overflow(self, page: str) -> list[str]:
        """Return the elements that are wider than a window of 390 pixels."""
        from tests.browser.conftest import WIDE as too_wide

        tab = self.driver.tab
        tab.set_viewport_size(NARROW)
        tab.goto(self.driver.url + self.driver.paths[page])
        tab.wait_for_timeout(1500)
        found = list(tab.evaluate(too_wide))
        tab.set_viewport_size(WIDE)
        self._leave()
        return found

    def _leave(self) -> None:
        """Forget drafts and stop the page's polling."""
        tab = self.driver.tab
        tab.wait_for_timeout(500)  # requests on their way; an interrupted one is an error in the console
        tab.evaluate("() => { localStorage.clear(); sessionStorage.clear(); window.name = ''; }")
        tab.goto("about:blank")


def _counted(page: str, name: str, found: Sequence[str]) -> Row:
    return Row(page, name, float(len(found)), 0.0, "", notes=[text[:160] for text in dict.fromkeys(found)][:6])


@contextlib.contextmanager
def browser(url: str, workspace: Path, facts: Facts) -> Iterator[Bench]:
    """Open a Chromium with a tab."""
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import CHROMIUM, FLAGS

    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit("There is no Chromium. Fix: apt-get install chromium-headless-shell.")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        context = chromium.new_context(viewport=WIDE, reduced_motion="reduce")
        context.add_init_script(CLOCK)
        context.new_page().goto(f"{url}/static/icon.svg")  # keeps the process and its compiled scripts
        tab = context.new_page()
        tab.set_default_timeout(20_000)
        messages: list[str] = []
        _listen(tab, messages)
        yield Bench(
            PageDriver(tab, url, facts, lambda run, text: page_workspace.add_note(workspace, run, text)), messages
        )
        chromium.close()


def _listen(tab: Page, messages: list[str]) -> None:
    from tests.browser.conftest import LEFT_PAGE

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not LEFT_PAGE.fullmatch(f"{message.text} ({message.location.get('url', '')})"):
            messages.append(message.text)

    tab.on("console", note)
    tab.on("pageerror", lambda error: messages.append(f"exception: {error}"))


def idle(server: studio_server.Server) -> Row:
    """Measure the server without a request."""
    time.sleep(2)
    before = server.cpu()
    time.sleep(IDLE_SECONDS)
    return Row("server", "idle, of a core", 100 * (server.cpu() - before) / IDLE_SECONDS, MAX_IDLE_PERCENT, "%")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table; return 1 if a limit is exceeded."""
    args = arguments(argv)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        source = generated((args.workspace or Path(folder) / "workspace").resolve(), args.size)
        workspace = Path(folder) / "copy"
        shutil.copytree(source, workspace)
        with studio_server.serving(workspace) as server:
            with browser(server.url, workspace, read_facts(workspace, args.size)) as bench:
                for page in args.pages:
                    rows += bench.page(page, args.repeats)
                    print(f"{page} measured", file=sys.stderr, flush=True)
            rows.append(idle(server))
    load = [round(value, 1) for value in os.getloadavg()]
    print(table(rows))
    print(f"{args.size} workspace, {args.repeats} repeats, load {load[0]} on {os.cpu_count()} cores")
    if args.out:
        args.out.write_text(as_json(rows, {"size": args.size, "repeats": args.repeats, "load": load}))
    return int(not all(row.passed for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
