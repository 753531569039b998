"""The card of page New run that schedules a run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import gradio as gr

from app.components.form import Form
from app.components.view import View
from app.endpoints.launch import ConfigSource, LaunchEndpoints, Trigger
from app.endpoints.types import validated
from app.pages._events import FAST, LATEST, QUEUED, EventOptions, Updates, handler
from app.pages.new_run import view as show
from app.pages.new_run.draft import Draft
from rl2f_core.types import JsonObject

TRIGGERS = [("once", "date"), ("repeat (cron)", "cron")]
BROWSER_ZONE = "(draft, zone) => [draft, Intl.DateTimeFormat().resolvedOptions().timeZone]"


class ScheduleCard:
    """Name, trigger, time and time zone of a schedule, and its next times. It is hidden until it is opened."""

    def __init__(self) -> None:
        with gr.Column(visible=False, elem_id="nr-plan", elem_classes="rl-card") as self.card:
            gr.Markdown("## Schedule this run")
            self.name = gr.Textbox(label="Name", max_length=100, elem_id="nr-plan-name")
            self.trigger = gr.Radio(TRIGGERS, value="date", show_label=False)
            self.at = gr.DateTime(label="Time", type="string", elem_id="nr-plan-at")
            self.cron = gr.Textbox("0 2 * * *", label="Cron fields", visible=False, elem_id="nr-plan-cron")
            self.examples = View(show.cron_examples())
            self.zone = gr.Dropdown([], label="Time zone", elem_id="nr-plan-zone")
            self.upcoming = View(elem_id="nr-next")
            with gr.Row(elem_classes="nr-buttons"):
                self.cancel = gr.Button("Cancel", min_width=80)
                self.save = gr.Button("Schedule", variant="primary", elem_id="nr-plan-save", min_width=80)
        self.browser_zone = gr.Textbox(visible="hidden", elem_classes="rl-hidden")

    def connect(
        self,
        launch: LaunchEndpoints,
        draft: gr.State,
        opener: gr.Button,
        form: Form,
        lead_to_error: Callable[[Draft], Updates | None],
        ordered: EventOptions,
    ) -> None:
        """Add the events.

        Args:
            launch: Endpoints of new runs.
            draft: The draft that is scheduled.
            opener: Button that opens the card.
            form: The form of the draft.
            lead_to_error: Returns updates of an invalid draft, or None.
            ordered: Options of an event that reads the draft.
        """

        def preview(kind: Trigger, at: str | None, cron: str, zone: str | None) -> list[object]:
            found = launch.preview_schedule(kind, when_of(kind, at, cron), zone or "UTC")
            return [
                gr.update(visible=kind == "date"),
                gr.update(visible=kind == "cron"),
                show.next_times(found),
                gr.update(interactive=found.error is None),
            ]

        @handler
        def open_card(edited: Draft, here: str) -> list[object]:
            if lost := lead_to_error(edited):
                return [lost[form], *[gr.skip()] * 4]
            assert edited.checked is not None and edited.checked.data is not None
            zones, name = launch.list_timezones(), str(edited.checked.data.get("name", "run"))
            here = here if here in zones else "UTC"
            return [gr.skip(), gr.update(visible=True), name, in_an_hour(here), gr.update(choices=zones, value=here)]

        @handler
        def take_example(zone: str, at: str | None, event: gr.EventData) -> list[object]:
            when = event._data["when"]
            return ["cron", gr.skip(), gr.update(value=when, visible=True), *preview("cron", at, when, zone)[2:]]

        @handler
        def save(edited: Draft, name: str, kind: Trigger, at: str | None, cron: str, zone: str) -> JsonObject:
            assert edited.checked is not None
            when, yaml = when_of(kind, at, cron), edited.checked.yaml
            made = launch.schedule_run(kind, when, validated(ConfigSource, {"yaml": yaml}), timezone=zone, name=name)
            gr.Info(f"Scheduled: {show.date_text(made.times[0])}. The page Runs lists the schedules.")
            return gr.update(visible=False)

        times = [self.trigger, self.at, self.cron, self.zone]
        edits = [self.trigger.change, self.at.change, self.cron.change, self.zone.change]
        previewed = [self.at, self.cron, self.upcoming, self.save]
        opened = [form, self.card, self.name, self.at, self.zone]
        opener.click(open_card, [draft, self.browser_zone], opened, js=BROWSER_ZONE, **ordered)
        gr.on(edits, handler(preview), times, previewed, **LATEST)
        self.examples.click(take_example, [self.zone, self.at], [self.trigger, *previewed], **FAST)
        self.save.click(save, [draft, self.name, *times], self.card, **QUEUED)
        self.cancel.click(lambda: gr.update(visible=False), None, self.card, **FAST)


def when_of(kind: Trigger, at: str | None, cron: str) -> str:
    """Return when a schedule runs: an ISO time or cron fields."""
    return (at or "").replace(" ", "T") if kind == "date" else cron


def in_an_hour(zone: str) -> str:
    """Return the time in one hour in a time zone."""
    return f"{datetime.now(ZoneInfo(zone)) + timedelta(hours=1):%Y-%m-%d %H:%M:%S}"
