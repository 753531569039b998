"""One run: details, charts, evaluation, files, actions; unknown ids, races and damaged files."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import replay_data
import yaml
from json_endpoints import JsonEndpoints
from run_data import BEGAN, GROUPS, SIZE, STEPS, add_run, dialogue

from app.common.context import Context
from app.common.log_tail import MAX_BYTES, read_tail
from app.endpoints.endpoint import ArgumentError
from app.endpoints.run import ACTIONS, RunEndpoints
from app.endpoints.runs import RunListEndpoints
from jobs.db.dialogue_models import DialogueRow
from jobs.db.errors import NotFoundError, UnknownRunError
from jobs.db.models import ACTIVE, ENDED, Run
from jobs.db.queries import dialogues, notes, runs
from jobs.ingest.ingester import ingest
from rl2f_core.errors import DataError, RL2FError, RunError
from rl2f_core.run.events import DialogueEvent, JsonlSink, MetricEvent
from rl2f_core.types import Task

READS: list[Callable[[RunEndpoints, int], object]] = [
    lambda e, run: e.get_run(run),
    lambda e, run: e.run_version(run),
    lambda e, run: e.list_notes(run),
    lambda e, run: e.run_charts(run),
    lambda e, run: e.run_charts(run, x="time", smoothing=0.9),
    lambda e, run: e.run_charts(run, names=["grad_norm", "time/"]),
    lambda e, run: e.run_metrics(run),
    lambda e, run: e.run_histogram(run, "rl", 1),
    lambda e, run: e.run_evaluation(run),
    lambda e, run: e.run_config(run),
    lambda e, run: e.run_environment(run),
    lambda e, run: e.run_log(run),
]


@pytest.fixture
def single(context: Context) -> Any:
    return JsonEndpoints(RunEndpoints(context))


@pytest.fixture
def run(context: Context) -> Run:
    """A finished training run with an evaluation, number 1."""
    return add_run(context.db, context.workspace, "1-small")


def test_leaks_are_shown_by_turn_and_left_out_of_the_learning_curve(single: RunEndpoints, context: Context) -> None:
    """Of four dialogues per group, one is solved at once, one after a hint, one never, one after a leak."""
    values = {"reward": 0.5, "cum_acc/1": 0.25, "cum_acc/5": 0.75}
    steps = [MetricEvent(id=f"metric:{n}", time=1.0 + n, stage="rl2f", step=n, values=values) for n in (1, 2, 3)]
    leaky = replay_data.add_run(context.db, context.workspace, "leaky", [*replay_data.training_events(), *steps])
    run_id = leaky.id or 0
    leaks = single.get_run(run_id)["cards"]["leaks"]
    assert leaks["source"] == "24 checked hints in training"
    assert [(bar["turn"], bar["value"]) for bar in leaks["bars"]] == [(1, pytest.approx(1 / 3)), (2, 0.0)]
    assert leaks["bars"][0]["text"].endswith("of 18 hints")
    lines = {
        (chart["key"], trace["name"]): trace
        for chart in single.run_charts(run_id)["charts"]
        for trace in chart["figure"]["data"]
        if trace.get("meta") == "line"
    }
    assert lines["cum_acc/", "t = 5"]["y"] == [0.75] * 3
    assert lines["cum_acc/", "no leak read"]["y"] == [pytest.approx(2 / 3)] * 3
    clean_reward = (1 - 0.1 + 1 - 0.2 + 0 - 0.3) / 3  # one format penalty of .1 per turn
    assert lines["reward", "no leak read"]["y"] == [pytest.approx(clean_reward)] * 3
    assert single.get_run(run_id)["cards"]["leaks"] == leaks


def test_a_run_without_leaks_has_one_learning_curve(single: RunEndpoints, run: Run) -> None:
    names = {name for chart in single.run_charts(1)["charts"] for name in chart["names"]}
    assert "reward" in names and not {"reward/clean", "solved/clean"} & names
    assert single.get_run(1)["cards"]["leaks"] is None, "no detector checked a hint"


# -- details -------------------------------------------------------------------------------------------------------
def test_details_contain_stages_checkpoints_and_cards(single: RunEndpoints, run: Run) -> None:
    details = single.get_run(1)
    assert details["run"]["name"] == "small" and details["run"]["status"] == "succeeded"
    assert details["run"]["folder"] == "1-small" and details["run"]["invalid_lines"] == 0
    assert details["actions"] == ["delete"]
    assert [(s["name"], s["done"], s["steps"], s["off_policy"]) for s in details["stages"]] == [
        ("warm", 2, 2, True),
        ("rl", STEPS, STEPS, False),
    ]
    assert [c["name"] for c in details["checkpoints"]] == ["rl@6"]
    assert details["cards"]["hints"]["source"] == "evaluation of rl@6"
    assert details["evaluation"] is not None and details["evaluation"]["complete"]
    assert details["evaluation"]["cells"] == 4 and details["steps"] == 2 + STEPS


def test_every_query_of_a_run_takes_less_than_a_second(single: RunEndpoints, run: Run) -> None:
    single.run_charts(1)  # imports
    for read in READS:
        began = time.process_time()
        read(single, 1)
        assert time.process_time() - began < 1


@pytest.mark.parametrize("read", READS)
def test_an_unknown_run_is_one_plain_message(single: RunEndpoints, read: Callable[..., object]) -> None:
    with pytest.raises(UnknownRunError) as caught:
        read(single, 99)
    assert caught.value.what == "There is no run 99." and "deleted" in (caught.value.fix or "")


@pytest.mark.parametrize("number", [0, -1, 99999999999999, "x", 1.5, "../1"])
def test_an_invalid_run_id_is_refused(single: RunEndpoints, number: Any) -> None:
    with pytest.raises(ArgumentError, match="get_run: argument run"):
        single.get_run(number)


# -- charts --------------------------------------------------------------------------------------------------------
def test_the_overview_excludes_demonstrations_and_has_bands_for_counted_dialogues(
    single: RunEndpoints, run: Run
) -> None:
    found = single.run_charts(1)
    charts = {chart["key"]: chart for chart in found["charts"]}
    reward = next(t for t in charts["reward"]["figure"]["data"] if t["meta"] == "line")
    assert len(reward["y"]) == STEPS and found["off_policy_stages"] == ["warm"]
    assert reward["customdata"][0] == ["rl", 1, "rl step 1"]
    assert [t["meta"] for t in charts["cum_acc/"]["figure"]["data"]].count("band") == 3
    evaluated = single.run_evaluation(1)
    assert evaluated and all(chart["help"] and chart["formula"] for chart in [*charts.values(), *evaluated["charts"]])
    named = single.run_charts(1, names=["grad_norm", "loss/kl", "time/"])["charts"]
    assert [chart["key"] for chart in named] == ["grad_norm", "time/"]


def test_bands_include_steps_that_were_ingested_later(single: RunEndpoints, context: Context, run: Run) -> None:
    before = single.run_charts(1)
    task = Task(id="t", environment="guess_number", split="train", level="", public={}, privileged={})
    events: list[Any] = [
        DialogueEvent.of("train", "rl", 7, task, dialogue(f"rl/7/{i}", task, at, random.Random(0), "rl/7/0", i))
        for i, at in enumerate([1, None, 2, None])
    ]
    values = {"cum_acc/1": 0.25, "cum_acc/2": 0.5, "cum_acc/3": 0.5}
    events.append(MetricEvent(id="metric:rl:7", time=BEGAN + 99, stage="rl", step=7, values=values))
    JsonlSink(context.workspace.folder("1-small") / "events.jsonl").emit(events)
    while ingest(context.db, context.workspace, runs.get(context.db, 1)):
        pass
    after = single.run_charts(1)
    assert after["version"] > before["version"] and single.run_version(1) == after["version"]

    def banded(found: Any) -> list[Any]:
        chart = next(c for c in found["charts"] if c["key"] == "cum_acc/")
        return [trace["x"] for trace in chart["figure"]["data"] if trace["meta"] == "band"]

    assert max(banded(before)[0]) == 6 and max(banded(after)[0]) == 7


@pytest.mark.parametrize("options", [{"x": "weeks"}, {"smoothing": 2}, {"smoothing": float("nan")}])
def test_an_invalid_chart_option_is_refused(single: RunEndpoints, run: Run, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"run_charts: argument {next(iter(options))}"):
        single.run_charts(1, **options)


def test_the_catalogue_names_every_metric_and_those_of_the_overview(single: RunEndpoints, run: Run) -> None:
    found = single.run_metrics(1)
    names = [entry["name"] for entry in found["metrics"]]
    assert {"reward", "grad_norm", "time/"} <= set(names)
    assert "reward" in found["overview"] and "grad_norm" not in found["overview"]


# -- rewards of a step ---------------------------------------------------------------------------------------------
def test_bins_of_a_step_name_their_dialogues(single: RunEndpoints, context: Context, run: Run) -> None:
    found = single.run_histogram(1, "rl", 3)
    events = [event for each in found["bins"] for event in each["dialogues"]]
    assert found["total"] == len(set(events)) == len(events) == GROUPS * SIZE
    for each in found["bins"]:  # at most two distinct rewards: one bin each
        assert each["low"] == each["high"]
        rewards = [dialogues.get(context.db, 1, event).row.reward for event in each["dialogues"]]
        assert set(rewards) == {each["low"]}


def test_many_distinct_rewards_are_binned_by_equal_widths(single: RunEndpoints, context: Context, run: Run) -> None:
    with context.db.write() as session:
        rows = dialogues.page(context.db, dialogues.DialogueFilter(run=1, phase="train", stage="rl", step_from=3,
                                                                   step_to=3)).rows  # fmt: skip
        for i, row in enumerate(rows):
            row.reward = float(i)
            session.add(row)
    found = single.run_histogram(1, "rl", 3, bins=2)
    assert [(b["low"], b["high"], len(b["dialogues"])) for b in found["bins"]] == [(0.0, 3.5, 4), (3.5, 7.0, 4)]


def test_bins_of_a_step_count_more_than_500_dialogues(single: RunEndpoints, context: Context, run: Run) -> None:
    first = dialogues.page(context.db, dialogues.DialogueFilter(run=1, phase="train", stage="rl", step_from=3)).rows[0]
    with context.db.write() as session:
        for i in range(500):
            session.add(DialogueRow(**{**first.model_dump(exclude={"id"}), "run_id": 1, "event_id": f"copy-{i}"}))
    assert single.run_histogram(1, "rl", 3)["total"] == GROUPS * SIZE + 500


def test_a_step_without_dialogues_has_no_bins(single: RunEndpoints, run: Run) -> None:
    assert single.run_histogram(1, "warm", 1) == {"total": 0, "bins": []}


# -- evaluation ----------------------------------------------------------------------------------------------------
def test_an_evaluation_comes_from_its_dialogues_until_its_report_is_written(
    single: RunEndpoints, context: Context
) -> None:
    add_run(context.db, context.workspace, "1-small", report=False)
    found = single.run_evaluation(1)
    assert found is not None and found["whole"] is False and len(found["table"]["rows"]) == 4
    assert single.get_run(1)["cards"]["hints"]["source"] == "evaluation of rl@6, in progress"


def test_a_run_without_evaluation_has_none(single: RunEndpoints, context: Context) -> None:
    add_run(context.db, context.workspace, "1-small", evaluated=False)
    assert single.run_evaluation(1) is None and single.get_run(1)["evaluation"] is None
    assert single.get_run(1)["cards"]["hints"] is None


def test_a_damaged_report_counts_as_missing(single: RunEndpoints, context: Context, run: Run) -> None:
    (context.workspace.folder("1-small") / "evaluation" / "report.json").write_text("{")
    found = single.run_evaluation(1)
    assert found is not None and found["whole"] is False


def test_an_evaluation_of_a_checkpoint_is_queued(single: RunEndpoints, context: Context, run: Run) -> None:
    folder = context.workspace.folder("1-small") / "checkpoints" / "rl@6"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"\0" * 8)
    made = single.evaluate_checkpoint(1, "rl@6")
    queued = runs.get(context.db, made["run"])
    assert (queued.kind, queued.status, queued.parent) == ("eval", "queued", 1)
    assert queued.name == made["name"] == "eval small rl-6" and made["url"] == f"/run?run={queued.id}"
    assert single.get_run(1)["children"][0]["id"] == queued.id
    adapters = {"base": None, "rl@6": str(folder)}
    draft = yaml.safe_load(single.draft_evaluation(1, "rl@6"))
    assert (draft["kind"], draft["name"], draft["adapters"]) == ("eval", "eval small rl-6", adapters)
    for name in ("rl@7", "../../1-small", "/etc/passwd", ""):
        with pytest.raises(NotFoundError) as caught:
            single.evaluate_checkpoint(1, name)
        assert caught.value.known == ("rl@6",)


# -- actions -------------------------------------------------------------------------------------------------------
def test_permitted_actions_follow_the_status(single: RunEndpoints, context: Context) -> None:
    assert set(ACTIONS) == {*ACTIVE, *ENDED}
    made = context.queue.add(
        "name: waits\nenvironment: {type: guess_number}\nstages: [{name: rl, method: rl2f, steps: 1}]\n"
    )
    run = made.id or 0
    assert single.get_run(run)["actions"] == ["stop"]
    assert single.stop_run(run)["status"] == "stopped"
    with pytest.raises(RunError, match="it is stopped"):  # the second of two tabs
        single.stop_run(run)
    with pytest.raises(RunError, match="it is stopped"):
        single.abort_run(run)
    assert single.resume_run(run)["status"] == "queued"
    with pytest.raises(RunError, match="it is queued"):
        single.resume_run(run)


def test_a_deleted_run_is_gone_with_its_directory(single: RunEndpoints, context: Context, run: Run) -> None:
    assert JsonEndpoints(RunListEndpoints(context)).delete_runs([1])["deleted"] == [1]
    with pytest.raises(UnknownRunError):
        single.run_version(1)
    assert not context.workspace.folder("1-small").exists()


def test_notes_of_other_runs_cannot_be_deleted(single: RunEndpoints, context: Context, run: Run) -> None:
    other = add_run(context.db, context.workspace, "2-other")
    note = notes.add(context.db, other.id or 0, "mine")
    assert single.tag_run(1, ["good", " good ", "baseline"]) == ["baseline", "good"]
    made = single.add_note(1, "<b>look</b>")
    details = single.get_run(1)
    assert details["tags"] == ["baseline", "good"] and [n["text"] for n in details["notes"]] == ["<b>look</b>"]
    with pytest.raises(NotFoundError, match="no such note"):
        single.delete_note(1, note.id or 0)
    single.delete_note(1, made["id"])
    with pytest.raises(DataError, match="between 1 and"):
        single.add_note(1, " ")
    assert single.list_notes(1) == []


def test_notes_on_a_dialogue_or_a_turn_are_stored_and_deleted(single: RunEndpoints, context: Context, run: Run) -> None:
    event = dialogues.page(context.db, dialogues.DialogueFilter(run=1)).rows[0].event_id
    added = single.add_note(1, "look <b>here</b>", author="anna", event_id=event)
    single.add_note(1, "and here", event_id=event, turn=0)
    view = dialogues.get(context.db, 1, event)
    assert [(note.turn, note.text, note.author) for note in view.notes] == [
        (None, "look <b>here</b>", "anna"), (0, "and here", "")
    ]  # fmt: skip
    single.delete_note(1, added["id"])
    with pytest.raises(NotFoundError, match="no such note"):
        single.delete_note(1, added["id"])
    assert len(dialogues.get(context.db, 1, event).notes) == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"text": " "}, DataError),
        ({"turn": 99}, NotFoundError),
        ({"event_id": "none"}, NotFoundError),
        ({"run": 99}, NotFoundError),
        ({"more": 1}, ArgumentError),
        ({"text": "x" * 20_001}, ArgumentError),
    ],
)
def test_an_invalid_note_on_a_dialogue_is_refused(
    single: RunEndpoints, context: Context, run: Run, change: dict[str, Any], error: type[RL2FError]
) -> None:
    event = dialogues.page(context.db, dialogues.DialogueFilter(run=1)).rows[0].event_id
    with pytest.raises(error):
        single.add_note(**{"run": 1, "event_id": event, "text": "x", **change})


def test_notes_on_dialogues_are_counted_apart(single: RunEndpoints, context: Context, run: Run) -> None:
    event = dialogues.page(context.db, dialogues.DialogueFilter(run=1)).rows[0].event_id
    notes.add(context.db, 1, "odd", event=event)
    details = single.get_run(1)
    assert details["dialogue_notes"] == 1 and details["notes"] == [] and single.list_notes(1) == []


# -- files ---------------------------------------------------------------------------------------------------------
def test_the_log_is_read_from_its_end_and_continues_at_an_offset(
    single: RunEndpoints, context: Context, run: Run
) -> None:
    path = context.workspace.folder("1-small") / "log.txt"
    assert single.run_log(1)["text"] == ""
    path.write_text("".join(f"line {i}\n" for i in range(20_000)))
    first = single.run_log(1)
    assert first["restarted"] and len(first["text"]) <= MAX_BYTES
    assert first["text"].startswith("line ") and first["text"].endswith("line 19999\n")
    assert [row["text"] for row in first["messages"]] == ["All went well."]
    with open(path, "a") as file:
        file.write("more\n")
    then = single.run_log(1, offset=first["offset"])
    assert (then["text"], then["restarted"], then["messages"]) == ("more\n", False, [])


def test_a_log_has_no_control_characters_and_no_incomplete_ones(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"\x1b[31mred\x1b[0m <script>\n 10%\r 20%\r 30%\nend " + "é".encode()[:1])
    found = read_tail(path)
    assert found.text == "\\x1b[31mred\\x1b[0m <script>\n 30%\nend "
    with open(path, "ab") as file:
        file.write("é".encode()[1:])
    assert read_tail(path, found.offset).text == "é"
    path.write_text("new")  # a later session replaced the file
    assert read_tail(path, found.offset).restarted and read_tail(path, found.offset).text == "new"


def test_the_environment_of_a_run_comes_from_its_directory(single: RunEndpoints, context: Context, run: Run) -> None:
    found = single.run_environment(1)
    assert found is not None and found["git"] == "abc123"
    meta = context.workspace.folder("1-small") / "meta.json"
    meta.write_text("{")
    with pytest.raises(DataError, match="environment cannot be read"):
        single.run_environment(1)
    meta.unlink()
    assert single.run_environment(1) is None


def test_the_configuration_is_the_yaml_of_the_run(single: RunEndpoints, context: Context, run: Run) -> None:
    assert single.run_config(1) == (context.workspace.folder("1-small") / "config.yaml").read_text()
