"""The page Run without a browser: address, heading, checkpoints, notes, log, cards as elements."""

from __future__ import annotations

import json
from typing import Any

import pytest
from page_nodes import elements, text
from run_data import add_run

from app.common.context import Context
from app.components.elements.metric_strip import metric_cards
from app.endpoints.run import RunDetails, RunEndpoints, RunLog
from app.pages.run import view
from app.pages.run.page import chart_options, current_tab, run_number, series_choices
from jobs.db.models import Log, Run
from jobs.db.queries.dialogues import DialogueFilter

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def endpoints(context: Context) -> RunEndpoints:
    return RunEndpoints(context)


@pytest.fixture
def run(context: Context) -> Run:
    """A finished training run with an evaluation, number 1."""
    return add_run(context.db, context.workspace, "1-small")


def changed(details: RunDetails, **columns: Any) -> RunDetails:
    """Return details of a run with other columns."""
    return details.model_copy(update={"run": details.run.model_copy(update=columns)})


# -- address -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("written", "number"), [("17", 17), ("", None), ("x", None), ("0", None), ("-1", None), ("²", None)]
)
def test_only_a_positive_number_names_a_run(written: str, number: int | None) -> None:
    assert run_number({"run": written}) == number


@pytest.mark.parametrize(
    ("kind", "tab"), [("train", "Overview"), ("eval", "Evaluation"), ("levels", "Evaluation"), ("export", "Log")]
)
def test_without_a_tab_the_address_opens_the_one_that_suits_the_kind_of_run(kind: str, tab: str) -> None:
    assert current_tab({}, kind) == tab
    assert current_tab({"tab": "config"}, kind) == "Config"
    assert current_tab({"tab": "dialogues"}, kind) == current_tab({"tab": "nonsense"}, kind) == tab


def test_invalid_chart_options_give_the_defaults() -> None:
    assert chart_options({}) == {"x": "step", "smoothing": 0.6}
    assert chart_options({"x": "time", "smooth": "0.9"}) == {"x": "time", "smoothing": 0.9}
    assert chart_options({"x": "weeks", "smooth": "nan"}) == {"x": "step", "smoothing": 0.6}
    assert chart_options({"smooth": "many"})["smoothing"] == chart_options({"smooth": "2"})["smoothing"] == 0.6


def test_a_series_is_found_by_name_title_and_unit() -> None:
    metric = {"name": "grad_norm", "title": "Gradient norm", "unit": "before clipping", "help": "…"}
    unknown = {"name": "odd", "title": "odd", "unit": "", "help": ""}
    assert series_choices([metric, unknown]) == [
        ("grad_norm · Gradient norm · before clipping", "grad_norm"),
        ("odd", "odd"),
    ]


# -- heading -------------------------------------------------------------------------------------------------------
def test_the_heading_has_the_actions_that_the_status_permits(endpoints: RunEndpoints, run: Run) -> None:
    details = endpoints.get_run(1)
    heading = view.heading(details, "Overview", read_only=False)
    assert [(button[1]["data-action"], text(button)) for button in elements(heading, "button")] == [
        ("delete", "Delete")
    ]
    assert "run 1" in text(heading) and "guess_number" in text(heading) and "seed 0" in text(heading)
    current = [link for link in elements(heading, "a") if link[1].get("aria-current")]
    assert [text(link) for link in current] == ["Overview"]
    locked = view.heading(details, "Overview", read_only=True)
    assert elements(locked, "button")[0][1]["disabled"] is True


def test_a_running_run_shows_progress_speed_and_the_remaining_time(endpoints: RunEndpoints, run: Run) -> None:
    running = {"status": "running", "done": 3, "total": 6, "eta": 125.0, "phase": "rl", "tokens_per_second": 1234.5}
    details = changed(endpoints.get_run(1), **running).model_copy(update={"actions": ["stop", "abort"]})
    heading = view.heading(details, "Log", read_only=False)
    for part in ("step 3/6", "ETA 2 min 5 s", "1,234 tokens/s", "Stop", "Abort"):
        assert part in text(heading)
    bar = next(each for each in elements(heading, "div") if each[1].get("role") == "progressbar")
    assert bar[1]["aria-valuenow"] == 50
    abort = next(button for button in elements(heading, "button") if text(button) == "Abort")
    assert "Progress since the last saved state is lost" in abort[1]["data-confirm"]


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"status": "queued", "detail": "Slot 1 is used."}, "Queued. Starts automatically. Slot 1 is used."),
        ({"status": "failed", "detail": "Out of memory."}, "Out of memory."),
        ({"invalid_lines": 1}, "1 line of the run's events is invalid and was omitted."),
        ({"invalid_lines": 3}, "3 lines of the run's events are invalid and were omitted."),
        ({"kind": "fork"}, "View fork results"),
        ({"kind": "hint_value", "parent": 4}, "Sort by hint value"),
        ({"parent": 4}, "from run 4"),
        ({"origin": "example", "started": 1.0, "ended": 12781.0}, "duration 3 h 33 min on another machine"),
    ],
)
def test_the_heading_reports_what_is_unusual(
    endpoints: RunEndpoints, run: Run, columns: dict[str, Any], part: str
) -> None:
    assert part in text(view.heading(changed(endpoints.get_run(1), **columns), "Overview", False))


def test_names_and_notes_remain_text(endpoints: RunEndpoints, run: Run) -> None:
    endpoints.add_note(1, EVIL)
    endpoints.tag_run(1, [EVIL])
    details = changed(endpoints.get_run(1), name=EVIL, detail=EVIL, status="failed")
    for shown in (view.heading(details, "Overview", False), view.tags_and_notes(details, False)):
        assert EVIL in text(shown) and elements(shown, "img") == []


# -- contents ------------------------------------------------------------------------------------------------------
def test_checkpoints_have_their_actions_and_the_overview_lists_the_newest(endpoints: RunEndpoints, run: Run) -> None:
    details = endpoints.get_run(1)
    assert [row.has_files for row in details.checkpoints] == [False]
    without = next(each for each in elements(view.checkpoint_table(details, False), "tr") if each[1].get("data-key"))
    assert [text(each) for each in elements(without, "button") + elements(without, "a")] == ["Copy hash"]
    assert "its files were not kept" in text(without)
    saved = [row.model_copy(update={"has_files": True}) for row in details.checkpoints]
    details = details.model_copy(update={"checkpoints": saved})
    table = view.checkpoint_table(details, read_only=False)
    row = next(each for each in elements(table, "tr") if each[1].get("data-key"))
    assert row[1]["data-key"] == "rl@6"
    models = ["Merged model (safetensors)", "Adapter (PEFT)", "GGUF f16", "GGUF q8_0"]
    assert [text(each) for each in elements(row, "button") + elements(row, "a")] == [
        *models, "Serve in the studio", "rl2f serve-model 1@rl@6", "Copy hash", "Evaluate", "Chat", "Dialogues of rl",
    ]  # fmt: skip
    (serve,) = [each[1] for each in elements(row, "button") if each[1].get("data-text") == "rl2f serve-model 1@rl@6"]
    assert serve["data-action"] == "copy"
    links = ["/new?evaluate=1:rl@6", "/chat?checkpoints=1:rl@6", "/exports?run=1&stage=rl"]
    assert [link[1]["href"] for link in elements(row, "a")] == links
    asked = [each[1] for each in elements(row, "button") if each[1].get("data-action") == "export_model"]
    assert {each["data-checkpoint"] for each in asked} == {"rl@6"}
    assert [each["data-format"] for each in asked] == ["safetensors", "peft", "gguf-f16", "gguf-q8_0"]
    assert not [each for each in elements(view.checkpoint_table(details, read_only=True), "button")
                if each[1].get("data-action") == "export_model"]  # fmt: skip
    many = details.model_copy(update={"checkpoints": details.checkpoints * 9})
    assert "4 more" in text(view.checkpoint_table(many, read_only=False, limit=5))


def test_stages_name_their_state_and_demonstrations(endpoints: RunEndpoints, run: Run) -> None:
    stages = elements(view.overview_sides(endpoints.get_run(1), [], 0.0, False), "li")
    assert "warm sft, demonstrations" in text(stages[0]) and "2/2" in text(stages[0])
    assert elements(stages[0], "span")[0][1]["aria-label"] == "done"


def test_a_run_without_charts_says_why(endpoints: RunEndpoints, run: Run) -> None:
    details = endpoints.get_run(1)
    assert "warm: demonstrations" in text(view.charts_note(details, active=False))
    without = details.model_copy(update={"steps": 0})
    assert "Waiting for the first step…" in text(view.charts_note(without, active=True))
    assert "no training step" in text(view.charts_note(without, active=False))
    assert view.charts_note(changed(without, kind="eval"), active=False) is None


def test_a_missing_run_has_a_way_back() -> None:
    missing = view.not_found("There is no run 99.")
    assert missing[1]["role"] == "alert" and elements(missing, "a")[0][1]["href"] == "/"  # type: ignore[index, call-overload]


def test_the_record_of_the_environment_is_a_list_of_pairs(endpoints: RunEndpoints, run: Run) -> None:
    shown = view.environment_table(endpoints.run_environment(1))
    pairs = dict(zip(map(text, elements(shown, "dt")), map(text, elements(shown, "dd")), strict=True))
    assert pairs["git"] == "abc123" and pairs["torch"] == "2.13.0"
    assert "no record" in text(view.environment_table(None))
    assert (
        text(view.environment_table({"backend": {"type": "hf", "reason": "small"}})) == "backendtype: hf; reason: small"
    )


def test_a_long_log_says_that_its_beginning_is_omitted() -> None:
    message = Log(run_id=1, event_id="log", time=1.0, level="warning", text="# Preflight\nmore")
    log = RunLog(text=f"{EVIL}\n", offset=9, size=100_000, restarted=True, status="running", messages=[message])
    shown = view.log_view(log)
    assert "100.0 kB; the last 64 kB are shown" in text(shown) and EVIL in text(shown)
    assert "warning" in text(shown) and text(elements(shown, "summary")[0]).endswith("Preflight")
    assert "has printed nothing" in text(view.log_view(log.model_copy(update={"size": 0, "text": ""})))


# -- cards ---------------------------------------------------------------------------------------------------------
def test_the_cards_summarize_the_newest_evaluation_and_explain_themselves(endpoints: RunEndpoints, run: Run) -> None:
    cards = metric_cards(endpoints.get_run(1).cards, "train", active=False)
    titles = [text(each[2]) for each in elements(cards, "h2")]
    assert titles == ["Did the hints help?", "Solved by turn", "Revisions after feedback", "Groups"]
    assert "evaluation of rl@6" in text(cards) and "contentless" in text(cards)
    assert len(elements(cards, "details")) >= 4
    json.dumps(cards)


def test_the_cards_say_when_the_evaluation_will_come() -> None:
    nothing = {"hints": None, "solved": None, "changes": None, "groups": None}
    assert "Available after the final evaluation." in text(metric_cards(nothing, "train", active=True))
    assert "Evaluate a checkpoint." in text(metric_cards(nothing, "train", active=False))
    assert "An evaluation trains nothing." in text(metric_cards(nothing, "eval", active=False))
    assert metric_cards(nothing, "export", active=True) is None


def test_dialogues_of_the_newest_step_stand_beside_the_curves_of_an_active_run(context: Context, run: Run) -> None:
    from app.endpoints.studio import Studio

    rows = Studio(context).dialogues.list_dialogues(DialogueFilter(run=run.id, phase="train"), newest_first=True).rows
    newest = view.newest_dialogues(rows)
    assert f"Dialogues of {rows[0].stage} step {rows[0].step}" in text(newest)
    same = [row for row in rows if (row.stage, row.step) == (rows[0].stage, rows[0].step)]
    assert len([b for b in elements(newest, "button") if b[1]["data-action"] == "open"]) == len(same) < len(rows)
    assert view.newest_dialogues([]) is None


def test_the_log_has_levels_absolute_times_and_a_search() -> None:
    texts = (("info", "Step 1"), ("warning", "Slow step"), ("info", "Step 2"))
    messages = [Log(run_id=1, event_id=name, time=1.0, level=level, text=name) for level, name in texts]
    log = RunLog(text="loading\nstep 2 of 9\n", offset=0, size=20, restarted=True, messages=messages, status="running")
    every = text(view.log_view(log))
    assert "all levelsinfo (2)warning (1)" in every and "19" in every and "Slow step" in every
    warnings = text(view.log_view(log, "warning"))
    assert "Slow step" in warnings and "Step 1" not in warnings
    found = text(view.log_view(log, "", "STEP 2"))
    assert "Step 2" in found and "Slow step" not in found and "step 2 of 9" in found and "loading" not in found
    nothing = text(view.log_view(log, "warning", "absent"))
    assert "No message of this level matches." in nothing and "No line of the output matches." in nothing


def test_a_refused_run_offers_its_configuration_first_and_a_stopping_one_says_what_it_waits_for(
    endpoints: RunEndpoints, run: Run
) -> None:
    details = endpoints.get_run(run.id or 0)
    why = "Stage rl is not worth starting. No group is mixed."
    refused = changed(details, status="failed", detail=why).model_copy(update={"actions": ["resume"]})
    shown = view.heading(refused, "Overview", False)
    primary = [
        node for tag in ("a", "button") for node in elements(shown, tag) if "rl-primary" in str(node[1].get("class"))
    ]
    assert [text(node) for node in primary] == ["Change the configuration"]
    assert [text(node) for node in elements(shown, "button")] == ["Resume"]
    stopping = text(view.heading(changed(details, status="stopping", phase="stage rl"), "Overview", False))
    assert "waits until the current step of stage rl has ended and is saved" in stopping
