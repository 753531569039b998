"""Preflight: what it measures, which cause it names, what it lets pass."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.common.stats.intervals import wilson, wilson_clustered
from rl2f_core.config.loading import dump_yaml, load_config, parse_config
from rl2f_core.config.model import ModelConfig
from rl2f_core.config.run import SEED_STRIDE, RunConfig
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic
from rl2f_core.errors import PreflightError
from rl2f_core.learning.training.preflight import PreflightReport, preflight, verdict_on
from rl2f_core.models.backends.fake import FakeBackend, Script
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, LogEvent, StatusEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.types import Group, StopReason, Task, TrainingSample, Verdict

TASKS, SAMPLES = 6, 4
N = TASKS * SAMPLES


def make(method: Any = "rl2f", **changes: Any) -> RunConfig:
    data = {
        "environment": "arithmetic",
        "stages": [{"name": "rl", "method": method, "steps": 5, "tasks_per_step": 12, "group_size": 4}],
        "rollout": {"max_turns": 2, "max_new_tokens": 60},
        "preflight": {"num_tasks": TASKS, "samples_per_task": SAMPLES},
    }
    config = parse_config(data | changes)
    assert isinstance(config, RunConfig)
    return config


def look(replies: str | Script, config: RunConfig | None = None, **more: Any) -> tuple[PreflightReport, list[Group]]:
    config = config or make()
    if isinstance(replies, str):
        backend = FakeBackend(FakeBackend.Config(replies=(replies,)))
    else:
        backend = FakeBackend(script=replies)
    engine = build_engine(config, backend)
    environment = more.pop("environment", None)
    if environment is not None:
        engine = replace(engine, environment=environment)
    stage = config.stages[0]
    return preflight(engine, config, stage, registry.get("method", stage.method.type)(stage.method), **more)


def add(text: str) -> int:
    a, b = re.findall(r"What is (\d+) \+ (\d+)\?", text)[0]
    return int(a) + int(b)


def right(text: str, rng: random.Random) -> str:
    return f"<answer>{add(text)}</answer>"


def sometimes(text: str, rng: random.Random) -> str:
    return f"<answer>{add(text) + rng.randint(0, 2)}</answer>"


def on_even_sums(text: str, rng: random.Random) -> str:
    return f"<answer>{add(text) + add(text) % 2}</answer>"


# -- what it measures ----------------------------------------------------------------------------------------------
def test_nothing_parsable_is_told_apart_from_nothing_right() -> None:
    unreadable, _ = look("I think it is 46.")
    wrong, _ = look("<answer>1</answer>")
    assert (unreadable.passed, wrong.passed) == (False, False)
    assert unreadable.reason == f"0 of {N} first attempts are parsable (whether they are right cannot be known)."
    assert "does not keep the answer format" in unreadable.fix and "'I think it is 46.'" in unreadable.fix
    assert "method sft" in unreadable.fix
    assert wrong.reason == f"Only 0% of the groups have a learning signal; 0 of {N} dialogues are right (100% of the first attempts are parsable)."  # fmt: skip  # noqa: E501
    assert "too hard" in wrong.fix
    assert (unreadable.parsable.value, wrong.parsable.value) == (0, 1)
    assert (unreadable.solved.value, wrong.solved.value) == (0, 0)
    assert f"(0 of {N})" in unreadable.to_text() and unreadable.reason in unreadable.to_text()


def test_a_task_that_is_too_easy_is_named() -> None:
    report, _ = look(right)
    assert not report.passed and "too easy" in report.fix
    assert f"{N} of {N} dialogues are right" in report.reason
    assert report.outcomes["groups/frac_all_correct"] == 1 and report.histogram == [0, 0, 0, 0, TASKS]
    assert report.solved_first == report.solved == wilson_clustered([SAMPLES] * TASKS, [SAMPLES] * TASKS)


def test_a_stage_with_mixed_groups_is_worth_starting() -> None:
    report, groups = look(sometimes)
    counts = Counter(sum(r.dialogue.solved for r in group.rollouts) for group in groups)
    mixed = [g for g in groups if len({(r.dialogue.solved_at or 9) for r in g.rollouts}) > 1]
    assert report.passed and (report.reason, report.fix) == ("", "")
    assert report.histogram == [counts[k] for k in range(SAMPLES + 1)] and sum(report.histogram) == TASKS
    assert report.outcomes["groups/frac_mixed"] == pytest.approx(len(mixed) / TASKS)
    assert report.expected_mixed_groups == pytest.approx(12 * len(mixed) / TASKS)
    first = sum(r.dialogue.turns[0].verdict.correct for g in groups for r in g.rollouts)
    assert report.solved_first.value == first / N and 0 < first < N
    solved = [sum(r.dialogue.solved for r in g.rollouts) for g in groups]
    assert report.solved == wilson_clustered(solved, [SAMPLES] * TASKS)
    assert "✓ worth starting" in report.to_text()


def test_preflight_intervals_treat_the_samples_of_a_problem_as_a_cluster() -> None:
    """Defect 6: even sums are always solved, odd ones never; six problems say less than 24 dialogues."""
    report, groups = look(on_even_sums)
    solved = [{r.dialogue.solved for r in g.rollouts} for g in groups]
    assert {True} in solved and {False} in solved and len(solved) == TASKS
    interval, independent = report.solved, wilson(round(report.solved.value * N), N)
    assert interval.value == independent.value
    assert interval.high - interval.low > 1.3 * (independent.high - independent.low)


def test_groups_that_agree_are_counted_by_what_they_agree_on() -> None:
    report, groups = look(on_even_sums)
    even = sum(add(f"What is {g.task.public['a']} + {g.task.public['b']}?") % 2 == 0 for g in groups)
    assert 0 < even < TASKS
    assert report.outcomes["groups/frac_all_correct"] == pytest.approx(even / TASKS)
    assert report.outcomes["groups/frac_all_incorrect"] == pytest.approx(1 - even / TASKS)
    assert report.histogram == [TASKS - even, 0, 0, 0, even] and not report.passed


def test_attempts_that_are_cut_off_are_named() -> None:
    config = make(rollout={"max_turns": 2, "max_new_tokens": 10})
    report, _ = look("<answer>46</answer>", config)
    assert report.reason.startswith(f"0 of {N}") and "cut off at 10 tokens: raise rollout.max_new_tokens" in report.fix
    assert (report.cut_attempts.value, report.attempt_tokens, report.max_attempt_tokens) == (1, 10, 10)


def test_a_context_without_room_is_named() -> None:
    report, groups = look("<answer>46</answer>", make(rollout={"max_turns": 2, "max_seq_len": 100}))
    assert report.reason == f"All {N} dialogues ran out of context (100 tokens)."
    assert "rollout.max_seq_len" in report.fix and report.truncated.value == 1
    assert all(r.dialogue.stop_reason is StopReason.CONTEXT_FULL for g in groups for r in g.rollouts)
    assert (report.attempt_tokens, report.most_common_answer, report.cut_attempts.value) == (0, "", None)
    assert report.to_text()


class Broken(Arithmetic):
    """A verifier that always fails."""

    def verify(self, task: Task, attempt: str) -> Verdict:
        raise ValueError("broken")


def test_dialogues_that_all_fail_are_named() -> None:
    report, _ = look(right, environment=Broken(Broken.Config()))
    assert report.reason == f"All {N} dialogues ended in an error." and report.failed == N
    assert "rl2f replay" in report.fix


def test_lengths_are_those_of_the_tokens() -> None:
    report, groups = look("<answer>1</answer>")
    streams = [r.sequences[0] for g in groups for r in g.rollouts]
    assert report.attempt_tokens == len("<answer>1</answer>") + 1
    assert report.dialogue_tokens == max(len(s.token_ids) for s in streams) <= report.max_seq_len
    hint = groups[0].rollouts[0].dialogue.turns[0].hint
    assert hint is not None and report.hint_tokens >= len(hint.text)
    between = sum(
        k == 0 and not student for k, student in zip(streams[0].turn_ids, streams[0].student_mask, strict=True)
    )
    assert between > len(hint.text)


def test_first_attempts_no_better_than_the_best_constant_answer_are_named() -> None:
    report, _ = look(lambda text, rng: f"<answer>{rng.randint(20, 180)}</answer>")
    assert report.constant_baseline is not None and 0 < report.constant_baseline.score < 0.05
    assert (
        f"! the first attempts are indistinguishable from always answering {report.constant_baseline.answer}"
        in report.to_text()
    )
    assert "! the first" not in look(right)[0].to_text() and "best constant answer" in look(right)[0].to_text()


def test_the_most_frequent_first_attempt_is_shown() -> None:
    report, _ = look(lambda text, rng: "Hm." if rng.random() < 0.7 else f"Number {rng.random()}")
    assert report.most_common_answer == "Hm."


# -- thresholds ----------------------------------------------------------------------------------------------------
def report_with(**changes: Any) -> PreflightReport:
    report, _ = look(sometimes)
    return report.model_copy(update=changes)


def outcomes(mixed: float, all_right: float) -> dict[str, Any]:
    shares = {"mixed": mixed, "all_correct": all_right, "all_incorrect": 1 - mixed - all_right}
    return {"signal_rate": mixed, "outcomes": {f"groups/frac_{name}": share for name, share in shares.items()}}


@pytest.mark.parametrize(
    ("changes", "settings", "said"),
    [
        (outcomes(0.1, 0.2), {}, ""),
        (outcomes(0.09, 0.2), {}, "too hard"),
        (outcomes(0.09, 0.8), {}, "too easy"),
        (outcomes(0.09, 0.8), {"min_mixed_rate": 0.05}, ""),
        (outcomes(0.5, 0.2), {"min_mixed_rate": 0.6}, "too hard"),
        (outcomes(0.0, 0.0), {"min_mixed_rate": 0.0}, ""),
        ({"parsable": wilson(N / 2, N)}, {}, ""),
        ({"parsable": wilson(N / 2 - 1, N)}, {}, "answer format"),
        ({"parsable": wilson(N / 2 - 1, N)}, {"min_parse_rate": 0.4}, ""),
        ({"parsable": wilson(0, N)}, {"min_parse_rate": 0.0}, ""),
        ({"parsable": wilson(1, N), "cut_attempts": wilson(N - 1, N)}, {}, "cut off"),
        ({"truncated": wilson(N - 1, N)}, {}, ""),
        ({"failed": N - 1}, {}, ""),
    ],
)
def test_each_threshold_is_the_configurations(changes: dict[str, Any], settings: dict[str, Any], said: str) -> None:
    config = make(preflight={"num_tasks": TASKS, "samples_per_task": SAMPLES, **settings})
    reason, fix = verdict_on(report_with(**changes), config)
    assert (said in fix and bool(reason)) if said else (reason, fix) == ("", "")


def test_a_few_parsable_attempts_are_counted_against_the_threshold() -> None:
    reason, _ = verdict_on(report_with(parsable=wilson(3, N)), make())
    assert reason == f"3 of {N} first attempts are parsable (below 50%)."


def test_a_supervised_stage_is_never_refused() -> None:
    report, _ = look("nothing", make("sft"))
    assert report.passed and report.reason == "" and report.parsable.value == 0


def test_single_turn_methods_are_played_with_one_turn() -> None:
    report, groups = look(sometimes, make("rlvr"))
    assert report.turns == 1 and all(len(r.dialogue.turns) == 1 for g in groups for r in g.rollouts)
    assert report.hint_tokens == 0 and "up to 1 turns" in report.to_text()


# -- estimates -----------------------------------------------------------------------------------------------------
def test_the_dialogues_of_a_tree_share_their_first_attempt_as_in_training() -> None:
    """3 samples are rounded up to 2 trees of 2. Each first attempt occurs twice, so a group has at most 2 of them."""
    method = {"type": "rltf_grpo", "branches": 2}
    settings = {"max_turns": 2, "max_new_tokens": 60, "prompting": "reprompt"}
    config = make(method, rollout=settings, preflight={"num_tasks": TASKS, "samples_per_task": 3})
    report, groups = look(sometimes, config)
    assert report.samples == 4 and len(report.histogram) == 5
    for group in groups:
        firsts = [rollout.dialogue.turns[0].attempt for rollout in group.rollouts]
        assert firsts[0] == firsts[1] and firsts[2] == firsts[3]
    assert any(len({rollout.dialogue.turns[0].attempt for rollout in group.rollouts}) == 2 for group in groups)


def test_the_estimate_scales_from_what_was_played_to_a_step_and_to_the_stage() -> None:
    seen: list[int] = []

    def timed(samples: Any) -> float:
        seen.append(len(samples))
        assert all(isinstance(s, TrainingSample) for s in samples)
        return 10_000.0

    report, groups = look(sometimes, time_update=timed)
    mixed = [g for g in groups if len({r.dialogue.solved_at for r in g.rollouts}) > 1]
    assert seen == [SAMPLES * len(mixed)]
    assert 20_000 < report.seconds_per_step < 21_000  # a step has 48 dialogues, twice as many as were played
    assert report.total_seconds == pytest.approx(5 * report.seconds_per_step)
    assert 0.01 < report.memory_gib < 1000
    assert 0 < look(sometimes)[0].seconds_per_step < 1000
    assert 0 < look("nothing", time_update=timed)[0].seconds_per_step < 1000 and len(seen) == 1


def test_it_plays_other_tasks_than_the_training_and_tells_its_progress() -> None:
    told: list[tuple[int, int]] = []
    _, groups = look(sometimes, make(seed=2), on_progress=lambda *x: told.append(x))
    # the 5 steps of 12 tasks come first
    ids = [f"arithmetic/train/{2 * SEED_STRIDE + 60 + i}" for i in range(TASKS)]
    assert [g.task.id for g in groups] == ids
    assert told[-1] == (N, N)
    again = look(sometimes, make(seed=2))[1]
    assert [g.rollouts for g in again] == [g.rollouts for g in groups]


# -- the run -------------------------------------------------------------------------------------------------------
def preflight_run(tmp_path: Path, reply: str, stages: Any = None, **preflight: Any) -> tuple[RunDir, Any]:
    config = make(
        backend={"type": "fake", "replies": [reply]}, preflight={"num_tasks": 2, "samples_per_task": 2, **preflight}
    )
    data = config.model_dump(mode="json") | {"kind": "preflight"} | ({"stages": stages} if stages else {})
    made = parse_config(data)
    run_dir = RunDir.create(tmp_path / "run", made)
    error = None
    try:
        execute(made, run_dir, JsonlSink(run_dir.events_path), lambda: False)
    except PreflightError as raised:
        error = raised
    return run_dir, error


def recorded(run_dir: RunDir) -> tuple[list[str], list[LogEvent], list[DialogueEvent]]:
    events = list(read_events(run_dir.events_path, strict=True))
    return (
        [e.status for e in events if isinstance(e, StatusEvent)],
        [e for e in events if isinstance(e, LogEvent)],
        [e for e in events if isinstance(e, DialogueEvent)],
    )


def test_a_failed_preflight_ends_the_run_with_reason_and_fix_and_can_be_read(tmp_path: Path) -> None:
    run_dir, error = preflight_run(tmp_path, "no")
    assert "Stage rl is not worth starting. 0 of 4 first attempts are parsable" in str(error) and "sft" in str(error)
    statuses, logs, dialogues = recorded(run_dir)
    assert statuses == ["running", "failed"] and [e.level for e in logs] == ["warning"]
    assert len(dialogues) == 4 and {e.phase for e in dialogues} == {"preflight"}
    report = PreflightReport.model_validate_json((run_dir.path / "preflight.json").read_text())
    assert not report.passed and report.reason in (run_dir.path / "preflight.txt").read_text()


def test_a_refused_preflight_is_refused_again_and_never_reads_as_a_success(tmp_path: Path) -> None:
    run_dir, _ = preflight_run(tmp_path, "no")
    run_dir.heartbeat(status="running")  # as if it had been killed before it could say how it ended
    with pytest.raises(PreflightError, match="0 of 4 first attempts"):
        execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), lambda: False)
    statuses, _, dialogues = recorded(run_dir)
    assert "succeeded" not in statuses and len(dialogues) == 4


def test_an_override_lets_it_pass_and_is_recorded(tmp_path: Path) -> None:
    run_dir, error = preflight_run(tmp_path, "no", ignore_failure=True)
    statuses, logs, _ = recorded(run_dir)
    assert error is None and statuses == ["running", "succeeded"]
    assert logs[0].level == "warning" and "0 of 4" in logs[0].text
    held = load_config(run_dir.config_path)
    assert isinstance(held, RunConfig) and held.preflight.ignore_failure and "ignore_failure: true" in dump_yaml(held)


def test_the_memory_of_training_contains_the_model_of_the_teacher(tiny: Path) -> None:
    student = ModelConfig(name=str(tiny), device="cpu", dtype="float32")
    needed = {}
    for name, model in {"own": None, "other": student.model_copy(update={"dtype": "bfloat16"})}.items():
        teacher = {"type": "llm", "llm": {"type": "local", "model": model}, "max_new_tokens": 2}
        config = make(model=student, teacher=teacher, preflight={"num_tasks": 1, "samples_per_task": 2})
        engine = build_engine(config, HFBackend(HFBackend.Config(), student))
        method = registry.get("method", "rl2f")(config.stages[0].method)
        needed[name] = preflight(engine, config, config.stages[0], method)[0].training_memory_gib
    weights = sum(p.numel() for p in HFBackend(HFBackend.Config(), student).model.parameters())
    assert (needed["other"] - needed["own"]) * 2**30 == pytest.approx(2 * weights)


def test_before_a_warm_up_a_failure_is_said_and_not_final(tmp_path: Path) -> None:
    stages = [{"name": "warm", "method": "sft", "steps": 1}, {"name": "rl", "method": "rl2f", "steps": 1}]
    run_dir, error = preflight_run(tmp_path, "no", stages)
    assert error is None
    assert "rl follows warm and is checked again" in (run_dir.path / "preflight.txt").read_text()
