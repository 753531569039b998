"""Distillation: which answers are kept, the stored data set, what learns from it, and runs that are killed on the way.
The source is the environment's worked solution, a script behind a real local endpoint, or a scripted student.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai_server import Say, serving

from jobs.export.datasets.exporter import export
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource
from rl2f_core.common.file_io import sha256
from rl2f_core.config.evaluation import EvaluationConfig
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.dataset_store import DatasetWriter, Row, find_rows, normalize_text, read_rows, refuse_held_out
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutRequest
from rl2f_core.dialogue.rollout.transcript import rollout_from_text
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic
from rl2f_core.errors import ConfigError, DataError, RunError
from rl2f_core.learning.methods.sft import SFT, epoch_positions
from rl2f_core.learning.training.collector import Collector
from rl2f_core.learning.training.distill_stage import DistillStats, Source, classify_samples
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, LogEvent, MetricEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.journal import Journal
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


# -- whole runs -----------------------------------------------------------------------------------------------------
def run_of(tiny: Path, **changes: Any) -> RunConfig:
    """distill → sft on sums of two digits."""
    config = {
        "seed": 5,
        "model": {"name": str(tiny), "device": "cpu", "dtype": "float32"},
        "environment": {"type": "arithmetic", "digits": 2, "operations": ["+"]},
        "rollout": {"max_turns": 1, "max_new_tokens": 120, "max_seq_len": 256},
        "lora": {"rank": 2, "alpha": 4},
        "evaluation": {"checkpoints": [], "num_tasks": 4},
        "stages": [
            {
                "name": "data",
                "method": {"type": "distill", "source": "solution", "dedup_by": "text"},
                "steps": 3,
                "tasks_per_step": 4,
                "group_size": 1,
            },
            {
                "name": "learn",
                "method": {"type": "sft", "dataset": "data", "num_epochs": 1},
                "steps": 3,
                "group_size": 1,
            },
        ],
    } | changes
    return RunConfig.model_validate(config)


def go(run_dir: RunDir, stop: Callable[[], bool] = bool) -> str:
    return execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), stop).status


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = RunDir.create(tmp_path_factory.mktemp("distil") / "run", run_of(tiny))
    assert go(run_dir) == "succeeded"
    return run_dir.path


def kept(folder: Path) -> dict[str, Any]:
    """What must be the same however often a run was killed."""
    events = list(read_events(folder / "events.jsonl", strict=True))
    return {
        "rows": (folder / "datasets" / "data" / "rows.jsonl").read_bytes(),
        "about": json.loads((folder / "datasets" / "data" / "dataset.json").read_text()),
        "events": [e.id for e in events if e.type != "status"],
        "adapter": sha256(folder / "checkpoints" / "learn@3" / "adapter_model.safetensors"),
        "folders": sorted(p.name for p in (folder / "datasets").iterdir()),
    }


def test_a_chain_makes_a_data_set_and_learns_from_it(whole: Path):
    events = list(read_events(whole / "events.jsonl", strict=True))
    asked = [e for e in events if isinstance(e, DialogueEvent) and e.phase == "distill"]
    assert [e.outcome for e in asked] == ["kept"] * 12 and {e.dialogue.policy for e in asked} == {"demonstration"}
    rows = [json.loads(line) for line in (whole / "datasets" / "data" / "rows.jsonl").read_text().splitlines()]
    assert [row["dialogue"] for row in rows] == [e.id for e in asked]
    assert {row["split"] for row in rows} == {"train"} and all("answer" in r["completion"][0]["content"] for r in rows)
    learned = [e.task.id for e in events if isinstance(e, DialogueEvent) and e.stage == "learn"]
    assert sorted(learned) == sorted(row["task"] for row in rows)
    logs = {e.id: e.text for e in events if isinstance(e, LogEvent)}
    assert "12 of 12 (100.0%" in logs["distill:data"] and "12 rows of data" in logs["prepare:learn:0"]
    metrics = [e.values for e in events if isinstance(e, MetricEvent) and e.stage == "data"]
    assert [m["distill/kept"] for m in metrics] == [4, 8, 12] and metrics[-1]["distill/acceptance_rate"] == 1
    losses = [e.values["loss/ce"] for e in events if isinstance(e, MetricEvent) and e.stage == "learn"]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert RunDir(whole).checkpoint_names() == ["learn@3"]


def test_a_distill_stage_does_not_sample_the_tasks_of_the_stage_before(tiny: Path, tmp_path: Path):
    data = run_of(tiny).stages[0].model_dump(mode="json")
    warm = {"name": "warm", "method": "sft", "steps": 1, "tasks_per_step": 4, "group_size": 1}
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny, stages=[warm, data]))
    assert go(run_dir) == "succeeded"
    dialogues = [e for e in read_events(run_dir.events_path, strict=True) if isinstance(e, DialogueEvent)]
    assert len({e.task.id for e in dialogues}) == len(dialogues) == 4 + 12


def test_a_run_without_one_worked_solution_ends_with_the_reason(tiny: Path, tmp_path: Path):
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny, environment={"type": "reasoning_gym", "name": "gcd"}))
    with pytest.raises(RunError, match="answered nothing in step 1: The environment has no worked solution"):
        go(run_dir)


def test_a_data_set_is_made_of_no_curriculum(tiny: Path):
    levels = [{"settings": {"digits": 1}, "steps": 1}, {"settings": {"digits": 2}}]
    stage = run_of(tiny).stages[0].model_dump() | {"curriculum": {"levels": levels}}
    with pytest.raises(ValueError, match="distill supports no curriculum"):
        run_of(tiny, stages=[stage])


def test_a_run_that_is_stopped_or_killed_in_the_middle_ends_with_the_same_data_set(
    whole: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny))
    turns = iter([False, True])
    assert go(run_dir, lambda: next(turns)) == "stopped"
    assert not (run_dir.path / "datasets" / "data").exists()
    real = Journal.commit

    class Killed(BaseException):
        pass

    def dies(self: Journal, position: dict[str, Any], save: Any = None) -> None:
        if position.get("step") == 3:  # the data set stands, its commit does not
            raise Killed
        real(self, position, save)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Journal, "commit", dies)
        go(run_dir)
    assert (run_dir.path / "datasets" / "data" / "dataset.json").exists()
    assert go(run_dir) == "succeeded"
    assert kept(run_dir.path) == kept(whole)


def test_a_step_that_was_lost_from_the_data_set_in_the_making_ends_the_resumed_run(tiny: Path, tmp_path: Path):
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny))
    turns = iter([False, False, True])
    assert go(run_dir, lambda: next(turns)) == "stopped"
    (run_dir.path / "datasets" / ".data" / "1.json").write_text('{"rows": [')
    with pytest.raises(DataError, match="Step 1 of the unfinished dataset"):
        go(run_dir)


@pytest.mark.slow
def test_an_endpoint_that_fails_ends_the_run_and_the_resumed_run_goes_on_where_it_was(tiny: Path, tmp_path: Path):
    """Three answers a task: right in other words, wrong, none; the endpoint is down in the second step."""
    asked: list[str] = []
    down = [False]

    def script(number: int, body: dict[str, Any]) -> Say:
        problem = body["messages"][-1]["content"]
        asked.append(problem)
        a, b = map(int, re.findall(r"\d+", problem))
        if down[0]:
            return Say("busy", status=400)
        place = asked.count(problem) % 3
        return Say((f"{a} + {b} <answer>{a + b}</answer>", wrap_answer(str(a)), "I do not know.")[place])

    with serving(script) as server:
        llm = {"type": "openai_api", "base_url": server.url, "concurrency": 1, "retries": 0, "cache": False,
               "breaker_failures": 99}  # fmt: skip
        data = {"name": "data", "method": {"type": "distill", "source": "llm", "llm": llm}, "steps": 2,
                "tasks_per_step": 3, "group_size": 3}  # fmt: skip
        config = run_of(tiny)
        stages = [data, {**config.stages[1].model_dump(), "steps": 1}]
        run_dir = RunDir.create(tmp_path / "run", run_of(tiny, stages=stages))

        def falls() -> bool:
            down[0] = len(asked) == 9
            return False

        with pytest.raises(RunError, match="answered nothing in step 2"):
            go(run_dir, falls)
        down[0] = False
        assert go(run_dir) == "succeeded"
    about = json.loads((run_dir.path / "datasets" / "data" / "dataset.json").read_text())
    assert about["counts"]["samples"] == {"kept": 6, "unparsable": 6, "incorrect": 6} and about["rows"] == 6
    assert about["counts"]["usage"]["requests"] == 18 and "127.0.0.1" in about["source"]
    ids = [e.id for e in read_events(run_dir.events_path, strict=True)]
    assert len(ids) == len(set(ids))


def test_a_source_that_is_never_right_makes_no_data_set_and_says_so(tiny: Path, tmp_path: Path):
    data = {"name": "data", "method": {"type": "distill", "source": "student"}, "steps": 1, "tasks_per_step": 2,
            "group_size": 2}  # fmt: skip
    run_dir = RunDir.create(tmp_path / "run", run_of(tiny, stages=[data]))
    with pytest.raises(RunError, match="kept no answer: 0 of 2"):
        go(run_dir)
    assert not (run_dir.path / "datasets" / "data").exists()


def data(**changes: Any) -> dict[str, Any]:
    """A run of one stage."""
    return {"stages": [{"name": "data", "method": "distill", "steps": 1, "group_size": 1, **changes}]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (data(method={"type": "distill", "source": "solution"}, group_size=8), "set group_size: 1"),
        ({"environment": "secret_code"}, "secret_code has no worked solutions"),
        (data(method={"type": "distill", "instruction": "x"}), "uses no llm"),
        (data(minibatches=2), "leave out minibatches"),
        (data(method={"type": "sft", "dataset": "data"}), "neither an earlier stage"),
        (data(method={"type": "sft", "num_epochs": 2}), "set dataset too"),
        (
            data(method={"type": "sft", "dataset": "a.jsonl", "hint_follow_rate": 0.1}),
            "hint_follow_rate shape demonstrations",
        ),
        (data(method={"type": "sft", "dataset": "a.jsonl"}, group_size=8), "group_size: 1 instead of 8"),
        ({"evaluation": {"checkpoints": ["data@3"]}}, "which no stage saves; known: base, stages, learn@3"),
    ],
)
def test_what_would_have_no_effect_or_no_data_is_refused(changes: dict[str, Any], says: str):
    with pytest.raises(ValueError, match=re.escape(says)):
        run_of(Path("tiny-random"), **changes)
    with pytest.raises(ValueError, match="which is not an earlier stage; known: base"):
        stages = run_of(Path("tiny-random")).model_dump()["stages"]
        run_of(Path("tiny-random"), stages=[stages[0], {**stages[1], "init_from": "data"}])


def test_what_a_distillation_kept_is_exported_and_learned_from_again(whole: Path, tmp_path: Path):
    settings = ExportSettings.model_validate({
        "formats": ["prompt_completion", "messages"], "files": ["jsonl"],
        "filter": {"phase": "distill", "condition": "kept", "include_demonstrations": True},
    })  # fmt: skip
    manifest = export([FolderSource(whole)], settings, tmp_path / "out")
    assert manifest is not None
    assert {k: entry["rows"] for k, entry in manifest["formats"].items()} == dict.fromkeys(settings.formats, 12)
    own = read_rows(find_rows(str(whole / "datasets" / "data"), None), ENV)
    for name in ("prompt_completion", "messages"):
        again = read_rows(find_rows(str(tmp_path / "out" / f"{name}.jsonl"), None), ENV)
        assert [(r.attempts, ENV.canonical(r.task)) for r in again] == [
            (r.attempts, ENV.canonical(r.task)) for r in own
        ]
        refuse_held_out(again, ENV, EvaluationConfig())
