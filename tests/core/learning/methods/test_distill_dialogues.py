"""Datasets of whole dialogues: which are kept, and that a later stage learns them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from run_helpers import config_of, go

from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutRequest
from rl2f_core.dialogue.rollout.transcript import rollout_from_text
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic
from rl2f_core.learning.training.distill_stage import classify_samples
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, read_events
from rl2f_core.types import Hint, LeakReport, Rollout

ENV = Arithmetic(Arithmetic.Config(digits=2, operations=("+",)))
SUM = ENV.task_from_gold("What is 20 + 22?", "42")
STAGES = [{"name": "s", "method": "sft", "steps": 1, "group_size": 1}]
RIGHT, WRONG, NONE = "20 + 22 = 42. <answer>42</answer>", "<answer>41</answer>", "42"


def engine() -> Any:
    config = parse_config({"environment": ENV.config.model_dump(), "stages": STAGES, "rollout": {"max_turns": 2}})
    return build_engine(config, FakeBackend())


def test_dialogues_are_kept_if_their_last_attempt_is_right_and_no_hint_leaked() -> None:
    def dialogue(*texts: str, leaked: bool = False) -> Rollout:
        rollout = rollout_from_text(
            engine(), RolloutRequest(SUM, "d/0", "d", 0, 0), texts, ["Again."] * (len(texts) - 1)
        )
        if leaked:
            first = rollout.dialogue.turns[0]
            hint = Hint(text="42", teacher="scripted", leak=LeakReport(leaked=True))
            turns = (first.model_copy(update={"hint": hint}), *rollout.dialogue.turns[1:])
            rollout = replace(rollout, dialogue=rollout.dialogue.model_copy(update={"turns": turns}))
        return rollout

    rollouts = [
        dialogue(WRONG, RIGHT), dialogue(WRONG, RIGHT), dialogue(NONE, RIGHT), dialogue(WRONG, WRONG),
        dialogue(WRONG, RIGHT, leaked=True),
    ]  # fmt: skip
    assert classify_samples(rollouts, "all", 100, ()) == ["kept", "duplicate", "kept", "incorrect", "leaked"]
    too_long = len(WRONG) + len(RIGHT)  # the limit is that of one attempt, and 32 tokens are more than WRONG's
    assert classify_samples(rollouts[:1], "all", too_long, ()) == ["kept"]
    assert classify_samples(rollouts[:1], "all", len(WRONG), ()) == ["too_long"]


def test_a_stage_learns_the_dialogues_of_an_earlier_one(speaker: Path, tmp_path: Path) -> None:
    config = config_of(speaker).model_dump(mode="json")
    data = {"name": "dialogues", "method": {"type": "distill", "max_turns": 2, "keep": "all", "dedup_by": "text"},
            "steps": 1, "tasks_per_step": 6, "group_size": 6}  # fmt: skip
    learn = {"name": "learn", "method": {"type": "sft", "dataset": "dialogues", "num_epochs": 1}, "steps": 1,
             "group_size": 1, "init_from": "base"}  # fmt: skip
    run_dir = RunDir.create(tmp_path / "run", parse_config({**config, "stages": [data, learn]}))
    assert go(run_dir) == "succeeded"
    rows = [json.loads(line) for line in (run_dir.path / "datasets/dialogues/rows.jsonl").read_text().splitlines()]
    roles = {tuple(message["role"] for message in row["completion"]) for row in rows}
    assert rows and roles <= {("assistant",), ("assistant", "user", "assistant")}  # which ones depends on the samples
    events = [e for e in read_events(run_dir.events_path, strict=True) if isinstance(e, DialogueEvent)]
    made = {e.dialogue.id: e.dialogue for e in events if e.phase == "distill"}
    learned = [e.dialogue for e in events if e.phase == "train"]
    texts = {tuple(t.attempt for t in d.turns): [t.hint and t.hint.text for t in d.turns[:-1]] for d in made.values()}
    assert len(learned) == len(rows)
    for dialogue in learned:
        assert (dialogue.solved and not dialogue.turns[0].verdict.correct) or len(dialogue.turns) == 1
        assert [t.hint and t.hint.text for t in dialogue.turns[:-1]] == texts[tuple(t.attempt for t in dialogue.turns)]
