"""Endpoints of forks: choices, preview, start, result, and invalid arguments."""

from __future__ import annotations

from typing import Any

import pytest
from fork_data import LEAKED, add_leak, event_of, make_run
from json_endpoints import JsonEndpoints
from workspace_copies import build_once

from app.common.context import Context
from app.endpoints.dialogues import DialogueEndpoints
from app.endpoints.endpoint import ArgumentError, endpoints_of
from app.endpoints.fork import ForkEndpoints
from jobs.db.errors import NotFoundError, StoreReadOnlyError
from jobs.db.queries import runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.ingest.ingester import ingest, reindex
from rl2f_core.config.loading import load_config
from rl2f_core.errors import ConfigError, DataError, RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute

ARMS: list[Any] = [{"hint": "original"}, {"hint": "contentless"}, {"hint": "edited", "text": "Up."}, {"hint": "empty"}]
LABELS = ["original", "contentless", "edited", "empty"]


@pytest.fixture
def endpoints(context: Context) -> Any:
    return JsonEndpoints(ForkEndpoints(context))


@pytest.fixture
def run(context: Context) -> int:
    """A run whose dialogues can be forked."""

    def add() -> None:
        make_run(context.workspace.folder("1-numbers"))
        reindex(context.db, context.workspace)

    build_once(context.db, context.workspace, b"numbers", add)
    found = runs.find(context.db, folder="1-numbers")
    assert found is not None and found.id is not None
    return found.id


def settings(run: int, /, **changes: Any) -> dict[str, Any]:
    fork = {"run": run, "event_id": event_of(0), "turn": 0, "checkpoints": ["base"], "arms": ARMS, "samples": 3}
    return {**fork, **changes}


def work(context: Context, run_id: int) -> None:
    """Execute a queued run, as a worker does."""
    row = runs.get(context.db, run_id)
    run_dir = RunDir.open(context.workspace.folder(row.folder))
    assert execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
    while ingest(context.db, context.workspace, row):
        pass


def test_choices_list_checkpoints_hints_and_teachers(endpoints: ForkEndpoints, run: int) -> None:
    choices = endpoints.fork_choices(run, event_of(0))
    assert [each["label"] for each in choices["checkpoints"]] == ["base"] and choices["forks"] == []
    assert choices["default_checkpoint"] == "base" and choices["hints"][:2] == ["original", "edited"]
    assert "scripted" in choices["teachers"] and not {"human", "shuffled"} & set(choices["teachers"])


def test_a_preview_starts_nothing(endpoints: ForkEndpoints, context: Context, run: int) -> None:
    preview = endpoints.preview_fork(**settings(run))
    assert (preview["arms"], preview["checkpoints"], preview["dialogues"]) == (LABELS, ["base"], 12)
    assert "source: 1-numbers\n" in preview["config"]
    assert len(runs.page(context.db).rows) == 1


def test_a_hint_is_screened_without_a_model(endpoints: ForkEndpoints, context: Context, run: int) -> None:
    found = endpoints.screen_hint(run, event_of(1), 1, "The number is 4.")
    assert (found["leaked"], found["detector"]) == (True, "mentions")
    assert "mentions" in found["detectors"] and "llm_judge" not in found["detectors"]
    assert endpoints.screen_hint(run, event_of(1), 1, "Too low.")["leaked"] is False
    with pytest.raises(DataError, match="correct"):
        endpoints.screen_hint(run, event_of(1), 2, "Too low.")
    assert len(runs.page(context.db).rows) == 1


def test_a_started_fork_is_queued_with_its_settings(endpoints: ForkEndpoints, context: Context, run: int) -> None:
    queued = endpoints.start_fork(**settings(run, attempts=1, later_hints="contentless"))
    row = runs.get(context.db, queued["run"])
    config: Any = load_config(context.workspace.folder(row.folder) / "config.yaml")
    assert (row.kind, row.status, row.parent, queued["url"]) == ("fork", "queued", run, f"/run?run={row.id}")
    assert (config.source, config.turns, config.later_hints) == ("1-numbers", 1, "contentless")
    assert config.checkpoints == {"base": None}
    waiting = endpoints.fork_result(queued["run"])
    assert (waiting["report"], waiting["run"], waiting["turn"], waiting["job"]["status"]) == (None, run, 0, "queued")


def test_a_finished_fork_has_a_report_and_measures_the_hint(
    endpoints: ForkEndpoints, context: Context, run: int
) -> None:
    before = context.workspace.folder("1-numbers").joinpath("events.jsonl").read_bytes()
    fork = endpoints.start_fork(**settings(run, attempts=1, later_hints="contentless"))["run"]
    work(context, fork)
    report = endpoints.fork_result(fork)["report"]
    assert report is not None and [result["arm"] for result in report["results"]] == LABELS
    assert report["done"] == report["total"] == 12
    assert report["hints"][0]["hints_by_arm"]["edited"]["text"] == "Up."
    listed = DialogueEndpoints(context).list_dialogues(DialogueFilter(run=fork, condition="edited", phase="fork"))
    assert listed.total == 3
    (earlier,) = endpoints.fork_choices(run, event_of(0))["forks"]
    assert (earlier["run"], earlier["turn"], earlier["arms"]) == (fork, 0, LABELS)
    runs.update(context.db, fork, parent=None)  # as a fork of the command line that was ingested later
    assert endpoints.fork_choices(run, event_of(0))["forks"] == [earlier]
    dialogue = DialogueEndpoints(context).get_dialogue(run, event_of(0))
    hint = dialogue.turns[0].hint
    assert hint is not None and len(hint.hint_values) == 1
    assert (hint.hint_values[0].run_id, hint.hint_values[0].value) == (fork, dialogue.best_hint_value)
    assert context.workspace.folder("1-numbers").joinpath("events.jsonl").read_bytes() == before


def test_a_flagged_hint_is_redacted_and_rerun_under_the_same_seed(endpoints: ForkEndpoints, context: Context) -> None:
    add_leak(make_run(context.workspace.folder("1-numbers")))
    reindex(context.db, context.workspace)
    found = runs.find(context.db, folder="1-numbers")
    assert found is not None
    run = found.id or 0
    assert endpoints.redacted_reruns(run, LEAKED) == []
    fork = endpoints.rerun_redacted(run, LEAKED, 0, samples=3)["run"]
    (waiting,) = endpoints.redacted_reruns(run, LEAKED)
    assert (waiting["run"], waiting["status"], waiting["hint"], waiting["same_seed"]) == (fork, "queued", None, {})
    work(context, fork)
    (result,) = endpoints.redacted_reruns(run, LEAKED)
    assert (result["turn"], result["checkpoint"], result["samples"], result["error"]) == (0, "base", 3, None)
    assert result["hint"] == "Too […]. Really […].", "no detector flags the rest"
    assert result["stored"] is True, "the stored student guessed 3"
    assert result["same_seed"] == {"original": False, "redacted": False}, "the scripted student guesses 1 and 2"
    assert {arm: rate["n"] for arm, rate in result["solved"].items()} == {"original": 3, "redacted": 3}
    with pytest.raises(NotFoundError, match="No detector flagged this hint"):
        endpoints.rerun_redacted(run, event_of(0), 0)


@pytest.mark.parametrize("name", ["preview_fork", "start_fork"])
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"checkpoints": ["/etc"]}, NotFoundError, "Unknown checkpoint"),
        ({"checkpoints": ["2:rl@1"]}, NotFoundError, "Unknown checkpoint"),
        ({"arms": [{"hint": "edited"}]}, ConfigError, "is required for arms"),
        (
            {"arms": [{"hint": "teacher", "teacher": {"type": "llm", "adapter": "/etc"}}]},
            ArgumentError,
            "arms.0.teacher",
        ),
        ({"arms": [{"hint": "teacher", "teacher": "nobody"}]}, ConfigError, "unknown teacher 'nobody'; known: "),
        ({"arms": [{"hint": "original", "name": "a/b"}]}, ArgumentError, "arms.0.name: String should match.*'a/b'"),
        ({"arms": [{"hint": "louder"}]}, ArgumentError, "arms.0.hint"),
        ({"event_id": "dialogue:other"}, DataError, "no such dialogue"),
        ({"turn": 1}, DataError, "is correct"),
        ({"run": 77}, NotFoundError, "no run 77"),
        ({"samples": 100_000}, ArgumentError, "samples"),
        ({"source": "/etc"}, ArgumentError, "source"),
    ],
)
def test_an_invalid_fork_is_refused(
    endpoints: ForkEndpoints,
    context: Context,
    run: int,
    name: str,
    changes: dict[str, Any],
    error: type[RL2FError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        getattr(endpoints, name)(**settings(run, **changes))
    assert len(runs.page(context.db).rows) == 1


def test_a_read_only_server_starts_no_fork(endpoints: ForkEndpoints, context: Context, run: int) -> None:
    context.read_only = True
    with pytest.raises(StoreReadOnlyError, match="Read-only"):
        endpoints.start_fork(**settings(run))
    assert len(runs.page(context.db).rows) == 1


def test_the_result_of_a_run_of_another_kind_is_not_found(endpoints: ForkEndpoints, run: int) -> None:
    with pytest.raises(NotFoundError, match="not a fork"):
        endpoints.fork_result(run)


def test_only_starting_a_fork_needs_the_scope_run(endpoints: ForkEndpoints) -> None:
    scopes = {name: scope for name, scope, _ in endpoints_of(endpoints.group)}
    assert [scopes.pop(name) for name in ("start_fork", "rerun_redacted")] == ["run", "run"]
    assert set(scopes.values()) == {"read"}
