"""How `pages` operates the pages of Gradio components in a browser; see `page_drivers`."""

from __future__ import annotations

import re
from typing import Any

from .page_drivers import PAUSE_MS, OldPages


class NewPages(OldPages):
    """The pages of Gradio components."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.paths["labels"] = f"/labels?run={self.facts.run}&annotator=bench"

    def _choose(self, label: str, option: str | re.Pattern[str], condition: str) -> float:
        """Choose an option of a dropdown; the clock starts at the click on it."""
        self.tab.get_by_label(label, exact=True).click()
        found = self.tab.get_by_role("option", name=option, exact=isinstance(option, str)).first
        found.wait_for()
        return self.act(found.click, condition)

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

    # Runs

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

    # Compare

    def compare_add(self) -> float:
        """Add a third run; the clock starts at the click on its name."""
        return self._choose("Runs", re.compile(rf"^{self.facts.run + 2} "), f"{self.LINES}.length === 3")

    # Run

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

    def chat_search(self) -> float:
        """Search for the title of one chat."""
        items = "document.querySelectorAll('.ch-item')"
        return self.act(
            lambda: self.tab.get_by_label("Search chats").fill("Question 17"),
            f"{items}.length === 1 && {items}[0].textContent.includes('Question 17')",
        )

    # Fork

    FORM = "document.querySelector('#fork-arms input:checked')"

    # Labels

    def load_labels(self) -> float:
        """Wait for the first hint."""
        return self.visit("labels", "document.querySelector('#label-stage .lb-card')")

    def labels_next(self) -> float:
        """Go to the next hint."""
        return self.act(self.key("n"), self.changed("#label-stage .lb-card .lb-hint"))

    # Dialogues

    def _another_dialogue(self) -> str:
        return self.changed("#dl-replay .dv-turn")

    def dialogues_filter(self) -> float:
        """Show dialogues with leaks only."""
        rows = "[...document.querySelectorAll('.dl-row')]"
        leaked = f"{rows}.length && {rows}.every((n) => n.querySelector('.rl-leak'))"
        return self._choose("leak", "⚑ leaked", leaked)

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
