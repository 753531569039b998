"""The endpoint that imports rollouts, and the pages' endpoints on an imported run."""

from __future__ import annotations

import json

import pytest
from json_endpoints import JsonEndpoints

from app.common.context import Context
from app.endpoints.dialogues import DialogueEndpoints
from app.endpoints.fork import ForkEndpoints
from app.endpoints.launch import LaunchEndpoints
from app.endpoints.run import RunEndpoints
from app.endpoints.runs import RunListEndpoints
from rl2f_core.errors import ConfigError, DataError, RunError

ROW = {"input": "user\n<b>3 + 4?</b>\nassistant\n", "output": "7", "gts": "7", "score": 1.0, "step": 2}


def test_a_program_imports_rollouts_and_reads_their_dialogues(context: Context) -> None:
    listed = JsonEndpoints(RunListEndpoints(context))
    content = json.dumps(ROW) + "\n" + json.dumps({**ROW, "score": 0.0})
    run = listed.import_rollouts("../dumps/2.jsonl", content, rewards=None)
    assert (run["name"], run["kind"], run["status"], run["reward"]) == ("2", "imported", "succeeded", 0.5)
    page = JsonEndpoints(DialogueEndpoints(context)).list_dialogues({"run": run["id"]})
    assert [row["outcomes"] for row in page["rows"]] == ["1", "0"]
    event_id = page["rows"][0]["event_id"]
    shown = JsonEndpoints(DialogueEndpoints(context)).get_dialogue(run["id"], event_id)
    assert "<b>3 + 4?</b>" in json.dumps(shown), "the prompt is text; pages insert it as text nodes"
    details = JsonEndpoints(RunEndpoints(context)).get_run(run["id"])
    assert details["actions"] == ["delete"] and details["checkpoints"] == []
    with pytest.raises(ConfigError, match="kind: is not a run kind"):
        JsonEndpoints(LaunchEndpoints(context)).launch_run(
            yaml=JsonEndpoints(RunEndpoints(context)).run_config(run["id"])
        )
    with pytest.raises(RunError, match="base model is not known"):
        JsonEndpoints(ForkEndpoints(context)).preview_fork(
            run["id"], page["rows"][1]["event_id"], 0, ["base"], [{"hint": "contentless"}]
        )


@pytest.mark.parametrize(("name", "content", "reason"), [
    ("a.jsonl", '{"a": 1}', "no known format"),
    ("a.jsonl", json.dumps({**ROW, "output": 3}), "line 1: output: no text"),
    ("a.parquet", "PAR1", "not supported"),
    ("a.json", "{}", "must be an Inspect log"),
    ("a\0.jsonl", "{}", "no folders"),
    ("a" * 290 + ".jsonl", "{}", "at most 255 bytes"),
])  # fmt: skip
def test_invalid_files_are_refused_without_a_trace(context: Context, name: str, content: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        JsonEndpoints(RunListEndpoints(context)).import_rollouts(name, content)
    assert JsonEndpoints(RunListEndpoints(context)).list_runs()["rows"] == []
    assert not [path for path in context.workspace.runs.rglob("*") if path.is_file()]
