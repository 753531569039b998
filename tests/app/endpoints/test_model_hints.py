"""How a model's hint was asked for, what it cost and why there was none, and how a student was asked again: in
database, replay and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import replay_data
from event_data import dialogue, metric, stored_run, turn
from export_builders import ENVIRONMENT, answer, event, rows_of, write_run, wrong
from export_builders import turn as exported
from json_endpoints import JsonEndpoints

from app.common.context import Context
from app.endpoints.dialogues import DialogueEndpoints
from app.endpoints.transcript import dialogue_detail
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError
from jobs.db.queries import dialogues, metrics, runs
from jobs.export.datasets.exporter import export
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource
from jobs.labels import annotation_queue
from jobs.workspace import Workspace
from rl2f_core.common import prompt_templates
from rl2f_core.dialogue.metrics.teacher_costs import add_costs, costs_text
from rl2f_core.dialogue.teachers.base import FeedbackRequest
from rl2f_core.dialogue.teachers.llm import LLMTeacher
from rl2f_core.environments.base import CONTENTLESS
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.types import FinishReason, Hint, LeakReport, Task, Usage

USAGE = Usage(prompt_tokens=120, completion_tokens=9, cost=0.0003, seconds=1.5, requests=2)
SAID = Hint(
    text="Look at the tens.",
    teacher="llm",
    leak=LeakReport(leaked=False),
    prompt_template="socratic@1a2b3c4d",
    usage=USAGE,
)
FAILED = Hint(
    text=CONTENTLESS, teacher="llm", prompt_template="socratic@1a2b3c4d", error="HTTP 500\x00", usage=Usage(requests=5)
)
CAUGHT = Hint(text=CONTENTLESS, feedback="It is 8.", teacher="llm", leak=LeakReport(leaked=True, detector="exact"),
              error="The endpoint cannot be reached.")  # fmt: skip


def test_a_hint_of_a_model_is_kept_with_prompt_cost_and_error(db: Database, workspace: Workspace) -> None:
    turns = [turn(0, hint=SAID), turn(1, hint=FAILED), turn(2, hint=CAUGHT), turn(3, hint=None)]
    run = stored_run(db, workspace, [dialogue(turns=turns), metric(1, **{"teacher/hints": 3.0, "teacher/errors": 2.0})])
    assert run.id is not None
    view = dialogues.get(db, run.id, "dialogue:train:rl2f/1/0/0")
    said, failed, caught = (each["hint"] for each in dialogue_detail(run, view).model_dump(mode="json")["turns"][:3])
    assert said is not None and failed is not None and caught is not None
    assert (said["hint_prompt_template"], said["usage"]) == ("socratic@1a2b3c4d", USAGE.model_dump())
    assert said["hint_error"] is None and (failed["hint_error"] or "").startswith("HTTP 500")
    assert failed["hint"] == CONTENTLESS and (failed["usage"] or {})["requests"] == 5
    assert (caught["feedback"], caught["usage"], caught["hint_prompt_template"]) == ("It is 8.", None, None)
    drawn = annotation_queue.queue(
        db, "ann", annotation_queue.QueueFilter(run=run.id, selection="random_unflagged"), limit=10
    )
    assert [item.key.turn for item in drawn] == [0]  # what stands in for no hint is nobody's hint
    costs = add_costs(row.values for row in metrics.steps(db, run.id))
    assert costs_text(costs) == "3 hints, 2 failed (66.7%), 0 prompt tokens, 0 completion tokens"
    assert add_costs([]) == {} and runs.get(db, run.id).invalid_lines == 0


def test_exports_carry_the_prompt_and_take_no_stand_in_for_the_teachers_words(tmp_path: Path) -> None:
    task = ENVIRONMENT.task("train", 0)
    first = exported(task, 0, wrong(task, 0), "Look again.", prompt_template="socratic@1a2b3c4d")
    second = exported(task, 1, wrong(task, 1), CONTENTLESS, None, error="HTTP 500")
    third = exported(task, 2, wrong(task, 2), CONTENTLESS, True, feedback=f"It is {answer(task)}.", error="gone")
    last = exported(task, 3, f"<answer>{answer(task)}</answer>", None)
    folder = write_run(tmp_path / "run", [event(task, [first, second, third, last], name="d")])
    assert export([FolderSource(folder)], ExportSettings(), tmp_path / "out") is not None

    def rows(name: str) -> list[dict[str, Any]]:
        (path,) = [p for p in (tmp_path / "out").rglob("*.jsonl") if name in str(p)]
        return rows_of(path)

    unpaired = {row["turn"]: row for row in rows("unpaired")}
    assert sorted(unpaired) == [0, 2] and unpaired[0]["teacher_prompt"] == "socratic@1a2b3c4d"
    assert unpaired[2]["completion"][0]["content"] == f"It is {answer(task)}." and unpaired[2]["label"] is False
    (row,) = rows("messages")
    assert row["hints"] == ["Look again.", "", f"It is {answer(task)}.", ""]
    assert row["hint_errors"] == ["", "HTTP 500", "gone", ""] and row["teacher_prompts"][0] == "socratic@1a2b3c4d"
    assert [m["content"] for m in row["messages"] if m["role"] == "user"][1:] == [
        "Look again.",
        CONTENTLESS,
        CONTENTLESS,
    ]


def test_a_fresh_prompt_is_shown_as_the_student_read_it_where_its_template_is_still_the_same(
    db: Database, workspace: Workspace
) -> None:
    revise = prompt_templates.load("revise")
    asked = [
        turn(0, hint=SAID),
        turn(1, hint=SAID, prompt_template=revise.version),
        turn(2, prompt_template="revise@00000000"),
    ]
    task = Task(id="guess_number/train/0", environment="guess_number", split="train", level="1 to 16",
                public={"low": 1, "high": 16}, privileged={"number": 8})  # fmt: skip
    run = stored_run(db, workspace, [dialogue(turns=asked, task=task)])
    assert run.id is not None
    detail = dialogue_detail(run, dialogues.get(db, run.id, "dialogue:train:rl2f/1/0/0")).model_dump(mode="json")
    first, second, third = (each["reprompt"] for each in detail["turns"])
    values = {"problem": detail["prompt"]["text"], "attempt": detail["turns"][0]["attempt"], "hint": SAID.text}
    assert first is None
    assert second == {"prompt_template": revise.version, "text": revise.render(values)[-1]["content"]}
    assert third == {"prompt_template": "revise@00000000", "text": None}


def test_the_prompt_of_a_model_teacher_is_rebuilt_from_the_stored_dialogue(
    db: Database, workspace: Workspace, context: Context
) -> None:
    config = LLMTeacher.Config(max_new_tokens=9)
    version = prompt_templates.load("socratic").version
    said = SAID.model_copy(update={"prompt_template": version, "usage": USAGE.model_copy(update={"requests": 1})})
    old = SAID.model_copy(update={"prompt_template": "socratic@00000000"})
    scripted = SAID.model_copy(update={"teacher": "scripted", "prompt_template": None, "usage": None})
    hints, finish = (said, said, old, scripted, None), FinishReason.LENGTH
    attempts = ("B B\0 B B", *["B B B B"] * 4)
    turns = [
        replay_data.turn(k, attempt, "B B B B", hint, finish_reason=finish)
        for k, (attempt, hint) in enumerate(zip(attempts, hints, strict=True))
    ]
    stored = replay_data.event("model", turns)
    run = replay_data.add_run(db, workspace, "model", [stored], teacher=config.model_dump())
    endpoints, key = JsonEndpoints(DialogueEndpoints(context)), (run.id or 0, stored.id)
    prompt = endpoints.teacher_prompt(*key, 1)
    assert [message["role"] for message in prompt["messages"]] == ["system", "user"]
    read: list[object] = []
    backend = FakeBackend(script=lambda text, rng: read.append(text) or "Look again.")
    before = (*stored.dialogue.turns[:1], stored.dialogue.turns[1].model_copy(update={"hint": None}))
    LLMTeacher(config, replay_data.CODES, ModelPool(backend)).feedback([FeedbackRequest(stored.task, before, seed=0)])
    assert all(message["content"] in str(read[0]) for message in prompt["messages"]), "what the model was sent"
    assert prompt["notes"] == [
        f"Rebuilt from the stored dialogue; the template {version} is unchanged.",
        "It contains only attempt 2 of 2 (sees.dialogue: last).",
        "Truncated at the student's token limit: attempt 2.",
        "The teacher's message was truncated at its limit of 9 tokens.",
    ]
    first = endpoints.teacher_prompt(*key, 0)["messages"][1]["content"]
    assert attempts[0] in first, "with the null character, which the database replaces"
    changed, none = endpoints.teacher_prompt(*key, 2), endpoints.teacher_prompt(*key, 3)
    assert changed["messages"] == [] and "the template socratic@00000000 has changed since" in changed["notes"][0]
    assert none == {"messages": [], "notes": ["Teacher scripted: no prompt, because no model wrote this message."]}
    with pytest.raises(NotFoundError, match="no hint"):
        endpoints.teacher_prompt(*key, 4)
    with pytest.raises(NotFoundError, match="no such turn"):
        endpoints.teacher_prompt(*key, 9)
