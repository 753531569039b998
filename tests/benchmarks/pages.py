"""`python -m tests.benchmarks.pages --old FOLDER`: the pages of an old checkout against the new ones.

Both servers run at once, each over its own copy of one generated workspace. One Chromium opens old and new pages in
turn. The first repeat fills caches and is not counted. Times are medians in milliseconds, measured in the browser.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rl2f_core.common.paths import ROOT

from . import page_workspace, studio_server
from .native_pages import NewPages
from .page_drivers import CLOCK, STEPS, Facts, Kind, OldPages, StepError

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

FLOOR = 100.0
"""Milliseconds that every interaction may take."""
LIMITS: dict[Kind, float] = {"type": 250.0, "yaml": 300.0}
"""Milliseconds of an interaction that has a limit of its own."""
CAPS: dict[Kind, float] = {"list": 300.0, "next": 100.0}
"""Milliseconds that may not be exceeded in a large workspace."""
LOAD, LOAD_EXTRA = 800.0, 200.0
"""Most milliseconds of a warm load, and of its difference to the old page."""
LIVE = 2500.0
"""Milliseconds after which a change by another process is shown: a poll interval of 2 s and half a second."""
IDLE, IDLE_SECONDS = 3.0, 10.0
"""Most percent of a core of an idle server, and the measured seconds."""
SIDES = ("old", "new")
NARROW: ViewportSize = {"width": 390, "height": 844}
WIDE: ViewportSize = {"width": 1440, "height": 900}


@dataclasses.dataclass
class Row:
    """One line of the table: a figure of both versions with its gate."""

    page: str
    name: str
    old: float
    new: float
    gate: float
    unit: str = "ms"
    samples: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    """Errors of steps, messages of the console, elements that are too wide."""

    @property
    def passed(self) -> bool:
        """Whether the new version is within the gate; a step that failed is infinite."""
        return self.new <= self.gate


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pages", description=__doc__)
    parser.add_argument("--old", type=Path, required=True, help="checkout with the old interface")
    parser.add_argument("--new", type=Path, default=ROOT, help="checkout with the new interface (default: this one)")
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


def gate(kind: Kind, old: float, large: bool) -> float:
    """Return the most milliseconds that the new page may take where the old one takes `old`."""
    if kind == "load":
        return min(LOAD, old + LOAD_EXTRA)
    if kind in LIMITS:
        return LIMITS[kind]
    limit = max(1.25 * old, LIVE if kind == "live" else FLOOR)
    return min(limit, CAPS[kind]) if large and kind in CAPS else limit


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text: old, new, gate and whether the gate is passed."""
    lines = [f"{'page':10} {'measure':34} {'old':>8} {'new':>8} {'gate':>8}       pass"]
    for row in rows:
        figures = " ".join(f"{_figure(value):>8}" for value in (row.old, row.new, row.gate))
        lines.append(f"{row.page:10} {row.name:34} {figures} {row.unit:5} {'✓' if row.passed else '✗'}")
        lines += [f"{'':10}   {note}" for note in row.notes]
    failed = sum(not row.passed for row in rows)
    return "\n".join([*lines, f"{len(rows) - failed} of {len(rows)} gates passed"])


def _figure(value: float) -> str:
    return "failed" if math.isinf(value) else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def as_json(rows: Sequence[Row], facts: Mapping[str, object]) -> str:
    """Return all numbers as JSON; a failed step is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return None if isinstance(value, float) and math.isinf(value) else value

    listed = [{**dataclasses.asdict(row), "passed": row.passed} for row in rows]
    return json.dumps({**facts, "rows": plain(listed)}, indent=2, allow_nan=False)


def environment(checkout: Path) -> dict[str, str]:
    """Return the environment of a process that runs a checkout's code."""
    return {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}


def script(checkout: Path, *args: str) -> str:
    """Run `page_workspace` with a checkout's packages; return what it prints."""
    command = [sys.executable, str(Path(page_workspace.__file__)), *args]
    done = subprocess.run(
        command, cwd=checkout, env=environment(checkout), stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def generated(folder: Path, size: str, old: Path) -> Path:
    """Return the workspace in `folder`, generated by the old checkout if there is none."""
    done = folder / page_workspace.DONE
    if not done.is_file():
        print(f"Generating a {size} workspace …", flush=True)
        script(old, str(folder), "--size", size)
    if (found := json.loads(done.read_text())["size"]) != size:
        raise SystemExit(f"The workspace {folder} is {found}, not {size}. Fix: name another folder.")
    return folder


def read_facts(root: Path, size: str) -> Facts:
    """Read what the drivers need to know of the generated workspace."""
    import sqlite3

    with contextlib.closing(sqlite3.connect(root / "rl2f.sqlite")) as db:
        query = "SELECT event_id FROM dialogue WHERE run_id = ? AND length > 2 ORDER BY id LIMIT 1"
        (event,) = db.execute(query, (page_workspace.LARGEST,)).fetchone()
    return Facts(page_workspace.LARGEST, event, page_workspace.SIZES[size][0])


@contextlib.contextmanager
def servers(source: Path, checkouts: Mapping[str, Path]) -> Iterator[dict[str, tuple[studio_server.Server, Path]]]:
    """Start a server of each checkout over a copy of the workspace; yield server and copy of each side."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder, contextlib.ExitStack() as stack:
        made = {}
        for side, checkout in checkouts.items():
            copy = Path(folder) / side
            shutil.copytree(source, copy)
            made[side] = (stack.enter_context(studio_server.serving(copy, checkout)), copy)
        yield made


class Bench:
    """The drivers of both versions in one browser.

    Args:
        drivers: Side → driver.
        messages: Side → errors in the console since they were last read.
    """

    def __init__(self, drivers: Mapping[str, OldPages], messages: Mapping[str, list[str]]) -> None:
        self.drivers, self.messages = drivers, messages

    def page(self, page: str, repeats: int, large: bool) -> list[Row]:
        """Measure a page: its steps, errors in the console, and overflow in a narrow window."""
        steps = STEPS[page]
        times: dict[str, dict[str, list[float]]] = {step.name: {side: [] for side in SIDES} for step in steps}
        notes: dict[str, dict[str, None]] = {step.name: {} for step in steps}
        for repeat in range(repeats + 1):
            for side in SIDES if repeat % 2 else reversed(SIDES):
                for name, value, error in self._round(page, side):
                    if error:
                        notes[name][f"{side}: {error}"] = None
                    if repeat:
                        times[name][side].append(value)
        rows = []
        for step in steps:
            old, new = (median(times[step.name][side]) for side in SIDES)
            limit = gate(step.kind, old, large)
            rows.append(Row(page, step.name, old, new, limit, samples=times[step.name], notes=list(notes[step.name])))
        wide = {side: self._overflow(page, side) for side in SIDES}
        rows.append(_counted(page, "errors in the console", {side: list(self.messages[side]) for side in SIDES}))
        rows.append(_counted(page, "elements beyond 390 px", wide))
        for side in SIDES:
            self.messages[side].clear()
        return rows

    def _round(self, page: str, side: str) -> Iterator[tuple[str, float, str]]:
        """Run the steps of a page once; yield name, milliseconds and error of each."""
        from playwright.sync_api import Error

        driver, loaded = self.drivers[side], True
        for step in STEPS[page]:
            if not loaded:
                yield step.name, math.inf, "the page did not load"
                continue
            try:
                yield step.name, getattr(driver, step.method)(), ""
            except (StepError, Error) as error:
                loaded = step.kind != "load"
                yield step.name, math.inf, str(error).partition("\n")[0][:160]
        self._leave(driver)

    def _overflow(self, page: str, side: str) -> list[str]:
        """Return the elements that are wider than a window of 390 pixels."""
        from tests.browser.conftest import WIDE as too_wide

        driver = self.drivers[side]
        driver.tab.set_viewport_size(NARROW)
        driver.tab.goto(driver.url + driver.paths[page])
        driver.tab.wait_for_timeout(1500)
        found = list(driver.tab.evaluate(too_wide))
        driver.tab.set_viewport_size(WIDE)
        self._leave(driver)
        return found

    @staticmethod
    def _leave(driver: OldPages) -> None:
        """Forget drafts and stop the page's polling."""
        driver.tab.wait_for_timeout(500)  # requests on their way; an interrupted one is an error in the console
        driver.tab.evaluate("() => { localStorage.clear(); sessionStorage.clear(); window.name = ''; }")
        driver.tab.goto("about:blank")


def _counted(page: str, name: str, found: Mapping[str, list[str]]) -> Row:
    notes = [f"{side}: {text[:160]}" for side in SIDES for text in dict.fromkeys(found[side])][:6]
    return Row(page, name, float(len(found["old"])), float(len(found["new"])), 0.0, "", notes=notes)


@contextlib.contextmanager
def browser(
    made: Mapping[str, tuple[studio_server.Server, Path]], checkouts: Mapping[str, Path], facts: Facts
) -> Iterator[Bench]:
    """Open a Chromium with a tab for each side."""
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import CHROMIUM, FLAGS

    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit("There is no Chromium. Fix: apt-get install chromium-headless-shell.")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        drivers: dict[str, OldPages] = {}
        messages: dict[str, list[str]] = {side: [] for side in SIDES}
        for side, (server, workspace) in made.items():
            context = chromium.new_context(viewport=WIDE, reduced_motion="reduce")
            context.add_init_script(CLOCK)
            context.new_page().goto(f"{server.url}/static/icon.svg")  # keeps the process and its compiled scripts
            tab = context.new_page()
            tab.set_default_timeout(20_000)
            _listen(tab, messages[side])

            def note(run: int, text: str, side: str = side, workspace: Path = workspace) -> float:
                return float(script(checkouts[side], str(workspace), "--note", str(run), text))

            drivers[side] = (OldPages if side == "old" else NewPages)(tab, server.url, facts, note)
        yield Bench(drivers, messages)
        chromium.close()


def _listen(tab: Page, messages: list[str]) -> None:
    tab.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: messages.append(f"exception: {error}"))


def idle(made: Mapping[str, tuple[studio_server.Server, Path]]) -> Row:
    """Measure both servers without a request."""
    time.sleep(2)
    before = {side: server.cpu() for side, (server, _) in made.items()}
    time.sleep(IDLE_SECONDS)
    used = {side: 100 * (server.cpu() - before[side]) / IDLE_SECONDS for side, (server, _) in made.items()}
    return Row("server", "idle, of a core", used["old"], used["new"], IDLE, "%")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table; return 1 if a gate is not passed."""
    args = arguments(argv)
    checkouts = {"old": args.old.resolve(), "new": args.new.resolve()}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        source = generated((args.workspace or Path(folder) / "workspace").resolve(), args.size, checkouts["old"])
        facts = read_facts(source, args.size)
        with servers(source, checkouts) as made:
            with browser(made, checkouts, facts) as bench:
                for page in args.pages:
                    rows += bench.page(page, args.repeats, args.size == "large")
                    print(f"{page} measured", file=sys.stderr, flush=True)
            rows.append(idle(made))
    load = [round(value, 1) for value in os.getloadavg()]
    print(table(rows))
    print(f"{args.size} workspace, {args.repeats} repeats, load {load[0]} on {os.cpu_count()} cores")
    if args.out:
        args.out.write_text(as_json(rows, {"size": args.size, "repeats": args.repeats, "load": load}))
    return int(not all(row.passed for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
