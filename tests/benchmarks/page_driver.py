"""How `pages` operates each page in a browser.

A method returns milliseconds. Its condition is a JavaScript expression that is false before the action and true as soon
as the result is on the page. The clock is the browser's: it starts at the last key, pointer or input event before the
condition is true, so that opening a dropdown list is not counted, and stops in the animation frame that shows the
result. The steps of `STEPS` run in their order on one tab, so a method finds the page as the previous one left it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlsplit

Kind = Literal["load", "change", "action", "list", "groups", "next", "live", "type", "yaml"]
TIMEOUT_MS = 20_000
PAUSE_MS = 250
"""Milliseconds before each action in which requests of the previous one end."""
CLOCK = """
window.bench = {
  held(test) { try { return Boolean(test()); } catch { return false; } },
  watch(test, started) {
    const end = performance.now() + TIMEOUT;
    return new Promise((resolve) => {
      const look = () => {
        const now = performance.now();
        if (started() !== null && this.held(test)) resolve(now - started());
        else if (now > end) resolve(null);
        else requestAnimationFrame(look);
      };
      look();
    });
  },
  arm(test) {
    if (this.held(test)) throw new Error(`the condition holds before the action: ${test}`);
    let start = null;
    const note = (event) => { start = event.timeStamp; };
    for (const type of ["keydown", "pointerdown", "input", "change"]) addEventListener(type, note, true);
    this.done = this.watch(test, () => start);
  },
};
""".replace("TIMEOUT", str(TIMEOUT_MS))


@dataclass(frozen=True)
class Step:
    """A measured step of a page; `kind` selects its limit."""

    name: str
    method: str
    kind: Kind = "action"


CHANGE = Step("click in the navigation → content", "change", "change")
STEPS: dict[str, tuple[Step, ...]] = {
    "audit": (Step("warm load", "load_audit", "load"), CHANGE),
    "api": (Step("warm load", "load_api", "load"), CHANGE),
    "exports": (
        Step("warm load", "load_exports", "load"),
        CHANGE,
        Step("choose a run → count", "exports_count"),
        Step("open a file of a finished export", "exports_open"),
    ),
    "runs": (
        Step("warm load", "load_runs", "load"),
        CHANGE,
        Step("next page", "runs_next_page", "list"),
        Step("sort", "runs_sort", "list"),
        Step("filter text → rows", "runs_filter", "list"),
        Step("change by another process → shown", "runs_refresh", "live"),
        Step("group by seed", "runs_group", "groups"),
    ),
    "compare": (
        Step("warm load", "load_compare", "load"),
        CHANGE,
        Step("add a run → charts", "compare_add"),
    ),
    "run": (
        Step("warm load", "load_run", "load"),
        CHANGE,
        Step("smoothing → redrawn, zoom kept", "run_redraw"),
        Step("open the configuration", "run_config"),
        Step("open the log", "run_log"),
    ),
    "chat": (
        Step("warm load", "load_chat", "load"),
        CHANGE,
        Step("open a chat", "chat_open"),
        Step("search → list", "chat_search", "list"),
    ),
    "fork": (
        Step("warm load", "load_fork", "load"),
        CHANGE,
        Step("open from a dialogue", "fork_open", "load"),
    ),
    "labels": (
        Step("warm load", "load_labels", "load"),
        CHANGE,
        Step("label key → saved", "labels_answer"),
        Step("key n → next hint", "labels_next", "next"),
    ),
    "dialogues": (
        Step("warm load", "load_dialogues", "load"),
        CHANGE,
        Step("key j → next turn", "dialogues_turn"),
        Step("key n → next dialogue", "dialogues_next", "next"),
        Step("click → replay", "dialogues_click"),
        Step("filter → rows", "dialogues_filter", "list"),
        Step("filter over all runs → rows", "dialogues_filter_all", "list"),
    ),
    "new": (
        Step("warm load", "load_new", "load"),
        CHANGE,
        Step("type change → form", "new_type", "type"),
        Step("edit → YAML", "new_edit", "yaml"),
        Step("error beside the field", "new_error"),
    ),
}


class StepError(Exception):
    """A step did not lead to its condition."""


@dataclass(frozen=True)
class Facts:
    """What a driver knows of the workspace."""

    run: int
    """The largest run; the runs after it exist too."""
    event: str
    """A dialogue of it."""
    last_run: int
    """The first run of the page Runs."""


class PageDriver:
    """The pages of a server in a tab.

    Args:
        tab: A Playwright page with `CLOCK` as init script.
        url: Address of the server.
        facts: What is in the workspace.
        note: Adds a note to a run from another process; returns seconds since the epoch.
    """

    def __init__(self, tab: Any, url: str, facts: Facts, note: Callable[[int, str], float]) -> None:
        self.tab, self.url, self.facts, self.note = tab, url, facts, note
        self.serial = 0
        one = f"run={facts.run}&dialogue={quote(facts.event, safe='')}"
        self.paths = {
            "exports": "/exports", "runs": "/", "compare": f"/compare?runs={facts.run},{facts.run + 1}",
            "run": f"/run?run={facts.run}", "chat": "/chat", "fork": f"/fork?{one}&turn=0",
            "labels": f"/labels?run={facts.run}&annotator=bench", "dialogues": f"/dialogues?run={facts.run}",
            "new": "/new?preset=quickstart", "all_dialogues": "/dialogues", "audit": "/audit", "api": "/api",
        }  # fmt: skip
        """Address of each page, and of the dialogues of all runs."""
        self.loaded = ("", "")
        """The page that was loaded last, and the condition that it shows its content."""

    # Tools

    def visit(self, page: str, condition: str) -> float:
        """Open a page; return the time from the start of the navigation to the condition."""
        self.loaded = page, condition
        self.tab.goto(self.url + self.paths[page], wait_until="commit")
        return self._result(self.tab.evaluate(f"() => bench.watch(() => {condition}, () => 0)"), condition)

    def change(self) -> float:
        """Open the last loaded page by a click on a link to it, which is added to a page that was open for 2 s."""
        page, condition = self.loaded
        self.tab.wait_for_timeout(2 * PAUSE_MS)
        self.load_api() if page == "audit" else self.load_audit()
        self.loaded = page, condition
        self.tab.wait_for_timeout(8 * PAUSE_MS)
        self.tab.evaluate(
            """(address) => {
              const link = Object.assign(document.createElement("a"), { href: address, textContent: "measured" });
              document.querySelector(".nav-holder nav").append(link);
              const note = (event) => { window.name = String(performance.timeOrigin + event.timeStamp); };
              addEventListener("click", note, { capture: true, once: true });
            }""",
            self.url + self.paths[page],
        )
        path = self.paths[page].partition("?")[0]
        self.tab.locator(".nav-holder a", has_text="measured").click(no_wait_after=True)
        self.tab.wait_for_url(lambda address: urlsplit(address).path == path, wait_until="commit")
        shown = self.tab.evaluate(
            f"() => bench.watch(() => {condition}, () => 0)"
            ".then((ms) => ms && performance.timeOrigin + ms - Number(window.name))"
        )
        return self._result(shown, condition)

    def act(self, action: Callable[[], object], condition: str) -> float:
        """Do something as a person does; return the time from its last event to the condition."""
        self.tab.wait_for_timeout(PAUSE_MS)
        self.tab.evaluate(f"() => {{ bench.arm(() => {condition}); }}")
        action()
        return self._result(self.tab.evaluate("() => bench.done"), condition)

    def changed(self, selector: str) -> str:
        """Return the condition that there are elements and that their text is not what it is now."""
        self.tab.wait_for_timeout(PAUSE_MS)
        text = f"[...document.querySelectorAll({selector!r})].map((n) => n.textContent).join('|')"
        self.tab.evaluate(f"() => {{ bench.before = {text}; }}")
        return f"{text} && {text} !== bench.before"

    def key(self, name: str) -> Callable[[], object]:
        """Return the action of pressing a key."""
        return lambda: self.tab.keyboard.press(name)

    def _choose(self, label: str, option: str | re.Pattern[str], condition: str) -> float:
        """Choose an option of a dropdown; the clock starts at the click on it."""
        self.tab.get_by_label(label, exact=True).click()
        found = self.tab.get_by_role("option", name=option, exact=isinstance(option, str)).first
        found.wait_for()
        return self.act(found.click, condition)

    def next_number(self) -> int:
        """Return a number that was not used before in this session."""
        self.serial += 1
        return self.serial

    @staticmethod
    def _result(milliseconds: float | None, condition: str) -> float:
        if milliseconds is None:
            raise StepError(f"Not true within {TIMEOUT_MS / 1000:.0f} s: {condition}")
        return milliseconds

    # Audit log and API

    def load_audit(self) -> float:
        """Wait for the list, which has no action yet."""
        return self.visit("audit", "document.querySelector('main .rl-empty, main table')")

    def load_api(self) -> float:
        """Wait for the description of an endpoint."""
        return self.visit("api", "document.querySelector('main pre')")

    # Exports

    def load_exports(self) -> float:
        """Wait for the form, the count and the finished exports."""
        return self.visit(
            "exports", "document.querySelector('.export-done') && document.querySelector('#export-count p')"
        )

    def exports_count(self) -> float:
        """Choose the first run offered; the clock starts at the click on its name."""
        count = "/^\\d/.test(document.querySelector('#export-count p').textContent)"
        return self._choose("Runs", re.compile(""), count)

    def exports_open(self) -> float:
        """Download the manifest of a finished export."""
        self.tab.wait_for_timeout(PAUSE_MS)
        link = self.tab.get_by_role("link", name="manifest").first
        begin = time.perf_counter()
        with self.tab.expect_download():
            link.click()
        return 1000 * (time.perf_counter() - begin)

    # Runs

    ROWS = "[data-part=list] tbody tr"

    def load_runs(self) -> float:
        """Wait for the first page of the list."""
        return self.visit("runs", f"document.querySelector({self.ROWS!r})")

    def runs_next_page(self) -> float:
        """Go to the second page."""
        return self.act(lambda: self.tab.click("text=Next page"), self.changed(f"{self.ROWS} .runs-name"))

    def runs_sort(self) -> float:
        """Sort by name."""
        return self._choose("Order", "name", self.changed(f"{self.ROWS} .runs-name"))

    def runs_filter(self) -> float:
        """Search for a word that a quarter of the runs have."""
        rows = f"[...document.querySelectorAll('{self.ROWS} .runs-name')]"
        return self.act(
            lambda: self.tab.get_by_label("Search runs").fill("sweep"),
            f"{rows}.length && {rows}.every((n) => n.textContent.includes('sweep'))",
        )

    def runs_refresh(self) -> float:
        """Wait for the note that another process adds to the newest run."""
        self.visit("runs", f"document.querySelector({self.ROWS!r})")
        text = f"note {self.next_number()}-{id(self)}"
        self.tab.evaluate(
            f"() => {{ bench.done = bench.watch(() => document.body.textContent.includes('{text}'), () => 0)"
            ".then((ms) => ms && performance.timeOrigin + ms); }"
        )
        written = self.note(self.facts.last_run, text)
        shown = self._result(self.tab.evaluate("() => bench.done"), text)
        return shown - 1000 * written

    def runs_group(self) -> float:
        """Fold the seeds of each configuration."""
        self.visit("runs", f"document.querySelector({self.ROWS!r})")
        return self._choose("Rows", "grouped by seed", f"document.querySelector('{self.ROWS} .runs-group')")

    # Compare

    LINES = "document.querySelector('[data-key=reward] .rl-plot[data-drawn]')?.data.filter((t) => t.meta === 'line')"

    def load_compare(self) -> float:
        """Wait for the curves of two runs."""
        return self.visit("compare", f"{self.LINES}.length === 2")

    def compare_add(self) -> float:
        """Add a third run; the clock starts at the click on its name."""
        return self._choose("Runs", re.compile(rf"^{self.facts.run + 2} "), f"{self.LINES}.length === 3")

    # Run

    PLOT = "document.querySelector('[data-key=reward] .rl-plot')"

    def load_run(self) -> float:
        """Wait for the curve of the reward."""
        return self.visit("run", f"{self.PLOT}.dataset.drawn")

    def run_redraw(self) -> float:
        """Zoom by dragging, change the smoothing; the curve is redrawn and the zoom is kept."""
        plot = self.tab.locator("[data-key=reward] .rl-plot")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        y = box["y"] + box["height"] / 2
        self.tab.mouse.move(box["x"] + 0.4 * box["width"], y)
        self.tab.mouse.down()
        self.tab.mouse.move(box["x"] + 0.7 * box["width"], y, steps=5)
        self.tab.mouse.up()
        self.tab.wait_for_timeout(PAUSE_MS)
        span = f"{self.PLOT}._fullLayout.xaxis.range.map((v) => v.toFixed(3)).join()"
        line = f"{self.PLOT}.data.find((t) => t.meta === 'line').y.join()"
        self.tab.evaluate(f"() => {{ bench.span = {span}; bench.line = {line}; }}")
        elapsed = self.act(lambda: self._smooth(0.9), f"{line} !== bench.line")
        self.tab.wait_for_timeout(PAUSE_MS)
        if not self.tab.evaluate(f"() => {span} === bench.span && !{self.PLOT}._fullLayout.xaxis.autorange"):
            raise StepError("The zoom is lost when the chart is redrawn.")
        return elapsed

    def _smooth(self, weight: float) -> None:
        self.tab.get_by_label("number input for Smoothing").fill(str(weight))

    def run_config(self) -> float:
        """Open the tab of the configuration."""
        return self._tab("Config", "#run-yaml .cm-content")

    def run_log(self) -> float:
        """Open the tab of the log."""
        return self._tab("Log", "#run-output pre")

    def _tab(self, name: str, content: str) -> float:
        link = self.tab.get_by_role("navigation", name="run").get_by_role("link", name=name, exact=True)
        return self.act(link.click, f"document.querySelector('{content}')?.textContent.length > 100")

    # Chat

    def load_chat(self) -> float:
        """Wait for the list of chats and the message field."""
        return self.visit(
            "chat", "document.querySelector('.ch-item') && document.querySelector('#chat-field textarea')"
        )

    def chat_open(self) -> float:
        """Open the fourth chat of the list."""
        return self.act(
            lambda: self.tab.click(".ch-item >> nth=3"),
            "document.querySelector('.ch-message[data-role=assistant]')?.textContent.includes('The sum is')",
        )

    def chat_search(self) -> float:
        """Search for the title of one chat."""
        items = "document.querySelectorAll('.ch-item')"
        return self.act(
            lambda: self.tab.get_by_label("Search chats").fill("Question 17"),
            f"{items}.length === 1 && {items}[0].textContent.includes('Question 17')",
        )

    # Fork

    FORM = "document.querySelector('#fork-arms input:checked')"

    def load_fork(self) -> float:
        """Wait for the form."""
        return self.visit("fork", self.FORM)

    def fork_open(self) -> float:
        """Press f in a dialogue; the time includes the navigation."""
        self.load_dialogues()
        self.tab.wait_for_timeout(PAUSE_MS)
        self.tab.evaluate(
            "() => addEventListener('keydown',"
            " (e) => { window.name = String(performance.timeOrigin + e.timeStamp); }, true)"
        )
        self.tab.keyboard.press("f")
        self.tab.wait_for_url("**/fork?**", wait_until="commit")
        shown = self.tab.evaluate(
            f"() => bench.watch(() => {self.FORM}, () => 0)"
            ".then((ms) => ms && performance.timeOrigin + ms - Number(window.name))"
        )
        return self._result(shown, self.FORM)

    # Labels

    def load_labels(self) -> float:
        """Wait for the first hint."""
        return self.visit("labels", "document.querySelector('#label-stage .lb-card')")

    def labels_answer(self) -> float:
        """Label a hint."""
        return self.act(self.key("2"), "document.querySelector('.lb-state')?.textContent.includes('saved')")

    def labels_next(self) -> float:
        """Go to the next hint."""
        return self.act(self.key("n"), self.changed("#label-stage .lb-card .lb-hint"))

    # Dialogues

    def load_dialogues(self) -> float:
        """Wait for the list and the first dialogue of the largest run."""
        return self._open_dialogues("dialogues")

    def _open_dialogues(self, page: str) -> float:
        return self.visit(page, "document.querySelector('.dl-row') && document.querySelector('.dv-turn')")

    def dialogues_turn(self) -> float:
        """Go to the next turn, in a dialogue that has one."""
        while not self.tab.evaluate("() => document.querySelectorAll('.dv-turn').length > 1"):
            self.dialogues_next()
        return self.act(self.key("j"), "document.querySelector(\".dv-turn[data-turn='1'][data-current]\")")

    def dialogues_next(self) -> float:
        """Go to the next dialogue."""
        return self.act(self.key("n"), self._another_dialogue())

    def dialogues_click(self) -> float:
        """Open a dialogue further down by the mouse."""
        return self.act(lambda: self.tab.click(".dl-row >> nth=9"), self._another_dialogue())

    def _another_dialogue(self) -> str:
        return self.changed("#dl-replay .dv-turn")

    def dialogues_filter(self) -> float:
        """Show dialogues with leaks only."""
        rows = "[...document.querySelectorAll('.dl-row')]"
        leaked = f"{rows}.length && {rows}.every((n) => n.querySelector('.rl-leak'))"
        return self._choose("leak", "⚑ leaked", leaked)

    def dialogues_filter_all(self) -> float:
        """Show dialogues with leaks of all runs only."""
        self._open_dialogues("all_dialogues")
        return self.dialogues_filter()

    # New run

    def load_new(self) -> float:
        """Wait for the form."""
        return self.visit(
            "new",
            "document.querySelector('#nr-form .rf-row input') && document.querySelector('#nr-yaml textarea').value",
        )

    def field(self, path: str) -> Any:
        """Return the field of a configuration value, e.g. `stages.1.steps`."""
        return self.tab.locator(f'#nr-form [data-field="{path}"]')

    def new_type(self) -> float:
        """Choose another environment; its fields appear."""
        select = self.field("environment.type")
        return self.act(
            lambda: select.select_option("guess_number"),
            "document.querySelector('#nr-form [data-field=\"environment.size\"]')",
        )

    def new_edit(self) -> float:
        """Change a number; it appears in the YAML."""
        self.tab.wait_for_timeout(2 * PAUSE_MS)  # the check after the change of the type
        field = self.field("stages.1.steps")
        text = "document.querySelector('#nr-yaml textarea').value.includes('\\n  steps: 37\\n')"
        return self.act(lambda: field.fill("37"), text)

    def new_error(self) -> float:
        """Enter a number out of bounds; the error appears beside the field."""
        field = self.field("stages.1.steps")
        error = '#nr-form [id="field-stages.1.steps"] > .rf-error'
        return self.act(lambda: field.fill("0"), f"document.querySelector({error!r})?.textContent")
