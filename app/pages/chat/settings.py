"""Fields of the page Chat: their choices, values that the address names, and checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import gradio as gr

from jobs.chat.checkpoints import ChatRun
from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.types import JsonObject

MAX_ACTIONS = 1000
"""Buttons of actions; more are on further pages."""
SAMPLING = {"max_new_tokens": "Tokens", "temperature": "Temperature", "top_p": "Top p", "seed": "Seed"}
"""Sampling parameter → label of its field."""


class Draft(TypedDict):
    """Settings of a new chat that the address may name."""

    model: str
    checkpoints: list[str]
    source: str
    index: str


def sampling_field(name: str, schema: JsonObject) -> gr.Number:
    """Return the field of a sampling parameter with the limits of its JSON schema."""
    is_whole = schema["type"] == "integer"
    return gr.Number(
        schema["default"],
        label=SAMPLING[name],
        minimum=schema.get("minimum", 0.01),
        maximum=schema.get("maximum", schema.get("exclusiveMaximum", 0) - 1),
        precision=0 if is_whole else None,
        step=1 if is_whole else 0.1,
        min_width=110,
    )


def action_buttons() -> gr.Dataset:
    """Return the buttons of the actions that a person can take in a stateful interactive task."""
    return gr.Dataset(
        components=["textbox"],
        samples=[],
        samples_per_page=MAX_ACTIONS,
        label="Your actions",
        visible=False,
        elem_id="chat-actions",
    )


def offered_checkpoints(runs: Sequence[ChatRun], model: str) -> list[tuple[str, str]]:
    """Return name and reference of the checkpoints of a base model, newest first."""
    found = [
        (f"{run.run}:{name} · {run.name}", f"{run.run}:{name}")
        for run in runs
        if run.model == model
        for name in reversed(run.checkpoints)
    ]
    return [("base", "base"), *found]


def offered_sources(runs: Sequence[ChatRun], presets: Sequence[str]) -> list[tuple[str, str]]:
    """Return name and reference of the runs and presets whose environment can set a task."""
    named = [(f"run {run.run} · {run.name} ({run.environment})", f"run:{run.run}") for run in runs]
    return [*named, *((f"preset {name}", f"preset:{name}") for name in presets)]


def default_checkpoints(runs: Sequence[ChatRun], source: str, model: str) -> list[str]:
    """Return base and newest checkpoint of the run that sets the task, if they fit the base model."""
    run = _source_run(runs, source)
    if run is None or run.model != model or not run.checkpoints:
        return ["base"]
    return ["base", f"{run.run}:{run.checkpoints[-1]}"]


def source_model(runs: Sequence[ChatRun], source: str | None) -> str | None:
    """Return the base model of the run that sets the task."""
    run = _source_run(runs, source)
    return None if run is None else run.model


def draft(
    query: Mapping[str, str], models: Sequence[str], runs: Sequence[ChatRun], presets: Sequence[str]
) -> tuple[Draft, JsonObject | None]:
    """Return the settings that an address names, and an error about checkpoints that cannot be used."""
    wanted = [name for name in query.get("checkpoints", "").split(",") if name]
    runs_by_number = {str(run.run): run for run in runs}
    run = next((run for name in wanted if (run := runs_by_number.get(name.partition(":")[0]))), None)
    source = query.get("source") or (f"run:{run.run}" if run else "")
    source = source or next((value for _, value in offered_sources(runs, presets)), "")
    model = run.model if run else ""
    if not run:
        named = [query.get("model"), source_model(runs, query.get("source")), *(run.model for run in runs[:1])]
        model = next((candidate for candidate in [*named, *models] if candidate in models), None) or ""
    offered = [reference for _, reference in offered_checkpoints(runs, model)]
    usable = [name for name in dict.fromkeys(wanted) if name in offered][:4]
    missing = [name for name in wanted if name not in offered]
    if not usable:
        newest = default_checkpoints(runs, source, model) if "play" in query else offered[:2]
        usable = ["base"] if wanted else newest
    error: JsonObject | None = None
    if missing:
        what = f"{', '.join(missing)} does not fit this base model: no such checkpoint, or one of another base model."
        error = {"what": what, "value": None, "known": None, "fix": "Choose another checkpoint."}
    index = query.get("index", "")
    return {"model": model, "checkpoints": usable, "source": source, "index": index}, error


def parse_index(text: str) -> int | None:
    """Return the number of a task, None for a random one; raise `ConfigError` if it is not a number."""
    text = (text or "").strip()
    number = whole_number(text, None)
    if text and number is None:
        raise ConfigError("The task number is not a whole number.", value=text, fix="Write one, or leave it empty.")
    return number


def check_message(message: str, limit: int) -> None:
    """Raise `DataError` if a message is empty or too long."""
    if not message.strip():
        raise DataError("The message is empty.", fix="Type something.")
    if len(message) > limit:
        what = f"The message has more than {limit:,} characters; the field does not take the rest of a longer text."
        raise DataError(what, fix="Shorten it.")


def chosen_sampling(form: JsonObject, names: Iterable[str] = SAMPLING) -> JsonObject:
    """Return the sampling parameters of the form."""
    return {name: form[name] for name in names}


def _source_run(runs: Sequence[ChatRun], source: str | None) -> ChatRun | None:
    return next((run for run in runs if f"run:{run.run}" == source), None)
