"""Distillation: which answers are kept, sources, the stored data set and what learns from it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai_server import Say, serving

from rl2f_core.config.evaluation import EvaluationConfig
from rl2f_core.config.loading import parse_config
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.dataset_store import DatasetWriter, Row, find_rows, normalize_text, read_rows, refuse_held_out
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutRequest
from rl2f_core.dialogue.rollout.transcript import rollout_from_text
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.learning.methods.sft import SFT, epoch_positions
from rl2f_core.learning.training.collector import Collector
from rl2f_core.learning.training.distill_stage import DistillStats, Source, classify_samples
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.types import FinishReason, Rollout, Task

ENV = Arithmetic(Arithmetic.Config(digits=2, operations=("+",)))
SUM = ENV.task_from_gold("What is 20 + 22?", "42")
STAGES = [{"name": "s", "method": "sft", "steps": 1, "group_size": 1}]


def engine(script: Callable[[str, random.Random], str] | None = None, **rollout: Any) -> Any:
    settings = {"max_turns": 2, "max_new_tokens": 60, **rollout}
    config = parse_config({"environment": ENV.config.model_dump(), "stages": STAGES, "rollout": settings})
    return build_engine(config, FakeBackend(script=script))


def samples(*texts: str) -> list[Rollout]:
    made = engine()
    return [
        rollout_from_text(made, RolloutRequest(SUM, f"d/{i}", "d", i, i), [text] if text else [])
        for i, text in enumerate(texts)
    ]


def choose(*texts: str, keep: Any = "one", limit: int = 100, taken: tuple[str, ...] = ()) -> list[str]:
    return classify_samples(samples(*texts), keep, limit, taken)


# -- which answers are kept
RIGHT, SHORT, WRONG, NONE = "20 + 22 = 42. <answer>42</answer>", "<answer>42</answer>", "<answer>41</answer>", "42"


def test_the_first_right_answer_is_kept_and_the_others_are_spare():
    assert choose(WRONG, NONE, RIGHT, SHORT, "") == ["incorrect", "unparsable", "kept", "spare", "failed"]
    assert choose(WRONG, WRONG) == ["incorrect", "incorrect"]


def test_the_shortest_right_answer_is_the_one_with_the_fewest_tokens():
    assert choose(RIGHT, SHORT, "so " + SHORT, keep="shortest") == ["spare", "kept", "spare"]
    assert choose(SHORT, SHORT, keep="shortest") == ["kept", "duplicate"]


def test_all_right_answers_are_kept_but_those_that_differ_in_width_case_and_space_alone():
    texts = ("It is  <answer>42</answer>", "it IS\n<answer>42</answer>", "ｉｔ is <answer>42</answer>", SHORT)
    assert choose(*texts, keep="all") == ["kept", "duplicate", "duplicate", "kept"]
    assert normalize_text("ｉｔ  IS\n42 ") == "it is 42"


def test_an_answer_that_the_data_set_has_already_is_a_duplicate():
    assert choose(SHORT, RIGHT, taken=(normalize_text(SHORT),)) == ["duplicate", "kept"]


def test_an_answer_that_is_longer_than_the_student_may_write_or_was_cut_off_is_not_kept():
    size = len(SHORT) + 1  # a byte a token, and the end of the message
    assert choose(SHORT, limit=size) == ["kept"] and choose(SHORT, limit=size - 1) == ["too_long"]
    (rollout,) = samples(SHORT)
    turn = rollout.dialogue.turns[0].model_copy(update={"finish_reason": FinishReason.LENGTH})
    cut = replace(rollout, dialogue=rollout.dialogue.model_copy(update={"turns": (turn,)}))
    assert classify_samples([cut], "one", 100, ()) == ["too_long"]


def test_the_yield_is_kept_over_asked_by_level_with_its_interval():
    a = DistillStats(drawn=10, repeats=2)
    a.tasks.update(easy=5, hard=3)
    a.kept.update(easy=5)
    a.samples.update(kept=5, incorrect=9, unparsable=2)
    b = DistillStats.model_validate(json.loads(json.dumps((a + DistillStats(drawn=1)).model_dump())))
    assert (b.drawn, b.repeats, b.tasks, b.samples) == (11, 2, a.tasks, a.samples)
    values = b.metrics()
    assert (
        values["distill/acceptance_rate"] == 5 / 8
        and values["distill/acceptance_rate/easy"] == 1
        and values["distill/acceptance_rate/hard"] == 0
    )
    assert (
        values["distill/frac_incorrect"] == 9 / 16
        and values["distill/kept_samples"] == 5
        and "source/cost" not in values
    )
    # Wilson, 5 of 8 at 95 %: (5 + 1.96²/2 ± 1.96·sqrt(5·3/8 + 1.96²/4)) / (8 + 1.96²) = 0.306, 0.863
    assert "5 of 8 (62.5%, 95 % 30.6% to 86.3%)" in b.describe() and "hard: 0 of 3" in b.describe()


# -- sources ------------------------------------------------------------------------------------------------------
def stage(**changes: Any) -> StageConfig:
    return StageConfig.model_validate(
        {"name": "d", "method": {"type": "distill"}, "steps": 2, "tasks_per_step": 3, "group_size": 1, **changes}
    )


def test_the_student_itself_answers_once_a_dialogue_with_its_tokens_as_sampled():
    made = engine(lambda text, rng: rng.choice((SHORT, WRONG)))
    source = Source(made, stage(method={"type": "distill", "source": "student", "max_new_tokens": 30}))
    requests = [RolloutRequest(SUM, f"d/{i}", "d", i, i) for i in range(12)]
    rollouts, usage = source.answers(requests, None)
    assert {len(r.dialogue.turns) for r in rollouts} == {1} and usage.requests == 0
    assert {r.dialogue.turns[0].attempt for r in rollouts} == {SHORT, WRONG}
    assert all(r.dialogue.policy == "d@0" and r.dialogue.turns[0].logprobs for r in rollouts)


def test_an_instruction_is_read_by_the_source_alone_and_failures_are_values():
    def script(number: int, body: dict[str, Any]) -> Say:
        return Say("no", status=400) if number == 1 else Say(f" {RIGHT} ", finish="length" if number == 2 else "stop")

    with serving(script) as server:
        llm = {"type": "openai_api", "base_url": server.url, "concurrency": 1, "retries": 0, "cache": False,
               "usd_per_million_prompt": 1.0, "usd_per_million_completion": 2.0}  # fmt: skip
        chosen = stage(method={"type": "distill", "source": "llm", "llm": llm, "instruction": "Think aloud."})
        rollouts, usage = Source(engine(), chosen).answers(
            [RolloutRequest(SUM, f"d/{i}", "d", i, i) for i in range(3)], None
        )
    assert [m["role"] for m in server.requests[0]["messages"]] == ["system", "user"]
    assert server.requests[0]["messages"][0]["content"] == f"{ENV.system_prompt()}\n\nThink aloud."
    assert classify_samples(rollouts, "all", 100, ()) == ["kept", "failed", "too_long"]
    assert "400" in str(rollouts[1].dialogue.error) and rollouts[1].dialogue.turns == ()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.requests) == (22, 14, 3)
    assert usage.cost == pytest.approx(22e-6 + 2 * 14e-6)


# -- the stored data set --------------------------------------------------------------------------------------------
def stored(folder: Path, rows: list[dict[str, Any]]) -> Path:
    draft = DatasetWriter(RunDir(folder), "made")
    draft.write_step(1, rows, {})
    draft.finish(draft.steps(1)[0]["rows"], {"source": "x"})
    return draft.folder


def conversation(problem: str = "What is 20 + 22?", *said: str, **columns: Any) -> dict[str, Any]:
    roles = ("assistant", "user")
    more = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said or (SHORT,))]
    return {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": problem}, *more], **columns}


def test_rows_are_read_in_every_form_that_exports_and_trl_write(tmp_path: Path):
    whole = conversation("What is 20 + 22?", WRONG, "Too low.", SHORT)
    pair = {"prompt": conversation()["messages"][:2], "completion": conversation()["messages"][2:]}
    plain = {"prompt": "What is 20 + 22?", "completion": SHORT}
    own = {**pair, "task_data": SUM.model_dump(mode="json"), "split": "train", "dialogue": "d/1"}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (whole, pair, plain, own)) + "\n")
    rows = read_rows(path, ENV)
    assert [(r.attempts, r.hints) for r in rows] == [((WRONG, SHORT), ("Too low.",)), *[((SHORT,), ())] * 3]
    assert {ENV.canonical(r.task) for r in rows} == {"20+22"} and [r.split for r in rows[2:]] == [None, "train"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "cannot be read"),
        ({"text": "x"}, "cannot be read"),
        (conversation("What is 20 + 22?", SHORT, "And?"), "not a dialogue of a problem"),
        (conversation(environment="secret_code"), "another environment"),
        (conversation("What is 20 + 22?", "42"), "not a task of arithmetic"),
        (conversation("What is 20 + 22?", WRONG), "not a task of arithmetic"),
    ],
)
def test_a_row_that_is_none_is_refused_with_its_line(row: Any, says: str, tmp_path: Path):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(conversation()) + "\n" + (row if isinstance(row, str) else json.dumps(row)) + "\n")
    with pytest.raises(DataError, match=says) as error:
        read_rows(path, ENV)
    assert "line 2" in str(error.value)


def test_a_torn_or_missing_data_set_is_refused(tmp_path: Path):
    folder = stored(tmp_path, [conversation(), conversation("What is 30 + 12?")])
    assert (
        len(read_rows(find_rows("made", RunDir(tmp_path)), ENV))
        == 2
        == len(read_rows(find_rows(str(folder), None), ENV))
    )
    rows = folder / "rows.jsonl"
    rows.write_bytes(rows.read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged"):
        read_rows(rows, ENV)
    rows.unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        read_rows(find_rows("made", RunDir(tmp_path)), ENV)
    (folder / "dataset.json").write_text("{")
    with pytest.raises(DataError, match="manifest cannot be read"):
        rows.write_text(json.dumps(conversation()))
        read_rows(rows, ENV)
    with pytest.raises(ConfigError, match="no such dataset") as error:
        find_rows("other", RunDir(tmp_path))
    assert "made" in str(error.value)
    with pytest.raises(DataError, match="Step 2"):
        DatasetWriter(RunDir(tmp_path), "made").steps(2)


def test_a_row_of_the_test_split_is_refused_by_its_word_and_by_its_problem():
    def row(task: Task, split: Any = None) -> Row:
        return Row(task=task, attempts=(SHORT,), split=split)

    settings = EvaluationConfig(split="validation")
    train = [row(ENV.task("train", i), "train") for i in range(5)]
    refuse_held_out(train, ENV, settings)
    for split in ("test", "validation"):
        held = ENV.task(split, 3)
        swapped = held.model_copy(
            update={"id": "x", "public": {**held.public, "a": held.public["b"], "b": held.public["a"]}}
        )
        with pytest.raises(DataError, match="1 of 6 rows are held-out") as error:
            refuse_held_out([*train, row(swapped)], ENV, settings)
        assert held.id in str(error.value)
    with pytest.raises(DataError, match="2 of 2"):
        refuse_held_out([row(SUM, "test"), row(SUM, "validation")], ENV, settings)


def test_epochs_share_the_rows_over_the_steps_and_each_pass_takes_every_row_once():
    assert [list(epoch_positions(5, step, 4, 9, 2)) for step in range(4)] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert [list(epoch_positions(5, step, 4, 2, None)) for step in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(ConfigError, match="fewer rows than the stage has steps"):
        epoch_positions(3, 0, 4, 9, 1)


def test_a_stored_dialogue_is_learned_on_the_students_tokens_alone_under_this_runs_prompt(tmp_path: Path):
    path = tmp_path / "d.jsonl"
    rows = [
        conversation("What is 20 + 22?", WRONG, "Too low.", SHORT),
        conversation("What is 11 + 11?", "<answer>22</answer>"),
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    chosen = stage(name="learn", method={"type": "sft", "dataset": str(path), "num_epochs": 2}, steps=2)
    made = engine()
    collector = Collector(made, chosen, seed=3)
    method = SFT(chosen.method)
    assert method.prepare(collector, EvaluationConfig(num_tasks=5)) == [
        f"Stage learn learns from 2 rows of {path}, 2 epochs."
    ]
    first, second = (method.collect(collector, collector.resolve(step)) for step in (0, 1))
    assert first == SFT(chosen.method).collect(collector, collector.resolve(0))
    for groups in (first, second):
        assert {g.task.public["a"] for g in groups} == {20, 11}
    (group,) = [g for g in first if g.task.public["a"] == 20]
    (sample,) = method.samples(group)
    weighted = bytes(t for t, w in zip(sample.token_ids, sample.ce_weights, strict=True) if w and t < 256).decode()
    assert weighted == WRONG + SHORT and sum(sample.ce_weights) == len(WRONG + SHORT) + 2
    assert made.renderer.initial_prompt("What is 20 + 22?") == tuple(sample.token_ids[: sample.ce_weights.index(1.0)])
    assert [d.dialogue.id for g in first for d in g.rollouts] == ["learn/1/0/0", "learn/1/1/0"]
    short = Collector(engine(max_seq_len=61), chosen, seed=3)
    with pytest.raises(ConfigError, match="No row of the dataset fits"):
        SFT(chosen.method).prepare(short, EvaluationConfig(num_tasks=5))
