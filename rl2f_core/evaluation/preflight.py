"""Preflight: is a stage worth starting?  Drawn with the starting weights, before anything is trained.

A policy gradient learns only from groups whose dialogues end differently.  The report says how many such groups a step
can expect, keeps "0 of n parsable" apart from "0 of n right" (the replication of RL²F that scored 0 % had no way to
tell), names the likely cause, and estimates time and memory.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rl2f_core.config import RunConfig, StageConfig
from rl2f_core.evaluation.statistics import Interval, wilson
from rl2f_core.methods.base import Method
from rl2f_core.rollout.engine import Request, RolloutEngine, derive_seed
from rl2f_core.training.collect import SEED_STRIDE
from rl2f_core.training.metrics import outcomes_of
from rl2f_core.types import Group, Sample, StopReason, TurnStop, Value

TASKS_FROM = 900_000
"""Where in the training stream the preflight's tasks begin, so that it trains on none of them."""


class PreflightReport(Value):
    """What the preflight saw."""

    stage: str
    tasks: int
    samples: int
    turns: int
    parsable: Interval
    """Share of first attempts that could be parsed."""
    solved_first: Interval
    """Share of first attempts that were right."""
    solved: Interval
    """Share of dialogues that were solved within the turns."""
    outcomes: dict[str, float]
    """Shares of groups: mixed, all right, all wrong."""
    histogram: list[int]
    """How many groups had 0, 1, … `samples` dialogues solved."""
    useful_groups: float
    """Mixed groups to expect in a step of the stage."""
    attempt_tokens: float
    """Mean length of an attempt; `max_attempt_tokens` is the limit."""
    max_attempt_tokens: int
    cut_attempts: Interval
    """Share of attempts that the limit cut off."""
    hint_tokens: float
    """Mean tokens that a hint adds, template included."""
    dialogue_tokens: int
    """Longest dialogue seen; `context_tokens` is the limit."""
    context_tokens: int
    truncated: Interval
    """Share of dialogues that ran out of context."""
    failed: int
    """Dialogues that ended in an error."""
    seconds_per_step: float
    """Estimate for a step of the stage."""
    seconds_in_all: float
    """Estimate for the steps of this stage."""
    memory_gib: float
    """Most that the process has held so far, weights included."""
    usual_answer: str
    """The most frequent first attempt."""
    passed: bool
    reason: str = ""
    fix: str = ""

    def to_text(self) -> str:
        """The report in words."""
        n = self.tasks * self.samples
        mixed, right, wrong = (self.outcomes.get(f"groups/frac_{k}", 0.0) for k in ("mixed", "all_right", "all_wrong"))
        bars = "".join("▁▂▃▄▅▆▇█"[min(7, round(7 * c / max(1, *self.histogram)))] for c in self.histogram)
        minutes = self.seconds_in_all / 60
        lines = [
            f"Preflight of {self.stage}: {self.tasks} tasks × {self.samples} samples, up to {self.turns} turns",
            f"  parsable at the first attempt   {_count(self.parsable, n)}",
            f"  right at the first attempt      {_count(self.solved_first, n)}",
            f"  solved within {self.turns} turns          {_count(self.solved, n)}",
            f"  groups mixed {mixed:.0%}, all right {right:.0%}, all wrong {wrong:.0%}"
            f"   dialogues solved in a group: 0 {bars} {self.samples}",
            f"  ≈ {self.useful_groups:.1f} useful groups a step",
            f"  attempts {self.attempt_tokens:.0f} of {self.max_attempt_tokens} tokens, "
            f"{_share(self.cut_attempts)} cut off; hints {self.hint_tokens:.0f}",
            f"  longest dialogue {self.dialogue_tokens} of {self.context_tokens} tokens",
            f"  ≈ {self.seconds_per_step:.0f} s a step, {minutes:.0f} min in all, {self.memory_gib:.1f} GiB",
            f"  {'✓ worth starting' if self.passed else '✗ ' + self.reason}",
        ]
        return "\n".join(lines + ([f"  {self.fix}"] if self.fix else []))


def _count(interval: Interval, n: int) -> str:
    return f"{_share(interval)}   ({round((interval.value or 0.0) * n)} of {n})"


def _share(interval: Interval) -> str:
    if interval.value is None:
        return "–"
    low, high = interval.low or 0.0, interval.high or 0.0
    return f"{interval.value:.0%} ({low:.0%}–{high:.0%})"


def preflight(
    engine: RolloutEngine,
    config: RunConfig,
    stage: StageConfig,
    method: Method,
    *,
    adapter: str | None = None,
    policy: str = "base",
    advanced: Callable[[int, int], None] | None = None,
    time_update: Callable[[Sequence[Sample]], float] | None = None,
) -> tuple[PreflightReport, list[Group]]:
    """Play `config.preflight` tasks × samples and judge; returns the report and the dialogues.

    Args:
        engine: Plays.
        config: For the thresholds.
        stage: The stage that would start.
        method: Its method.
        adapter: The starting weights.
        policy: Their name.
        advanced: Progress, as in `RolloutEngine.play`.
        time_update: Seconds that one update on the given rows takes, without changing anything; None leaves the
            update out of the estimate.
    """
    check = config.preflight
    method.bind(engine)
    tasks = [engine.environment.task("train", config.seed * SEED_STRIDE + TASKS_FROM + i) for i in range(check.tasks)]
    requests = [
        Request(task, f"{stage.name}/preflight/{i}/{j}", f"{stage.name}/preflight/{i}", j,
                derive_seed(config.seed, stage.name, "preflight", i, j))
        for i, task in enumerate(tasks)
        for j in range(check.samples)
    ]  # fmt: skip
    turns = method.max_turns(config.rollout.max_turns)
    start = time.perf_counter()
    rollouts = engine.play(requests, adapter=adapter, policy=policy, max_turns=turns,
                           temperature=stage.temperature, advanced=advanced)  # fmt: skip
    seconds = time.perf_counter() - start
    size = check.samples
    groups = [Group(task, tuple(rollouts[i * size : (i + 1) * size])) for i, task in enumerate(tasks)]
    samples = [s for g in groups for s in method.samples(g)] if method.on_policy else []
    scale = stage.tasks_per_step * stage.group_size / len(requests)
    update = time_update(samples) if time_update is not None and samples else 0.0
    per_step = (seconds + update) * scale
    return _report(engine, config, stage, method, groups, turns, per_step), groups


def _report(
    engine: RolloutEngine,
    config: RunConfig,
    stage: StageConfig,
    method: Method,
    groups: Sequence[Group],
    turns: int,
    per_step: float,
) -> PreflightReport:
    dialogues = [r.dialogue for g in groups for r in g.rollouts]
    streams = [r.stream for g in groups for r in g.rollouts]
    n = len(dialogues)
    firsts = [d.turns[0] for d in dialogues if d.turns]
    attempts = [t for d in dialogues for t in d.turns]
    outcomes = outcomes_of(groups, method)
    solved_counts = Counter(sum(r.dialogue.solved for r in g.rollouts) for g in groups)
    hints = [sum(k >= 0 and not s for k, s in zip(x.turn, x.student, strict=True)) for x in streams]
    context = min(config.rollout.context_length, engine.backend.context_limit)
    report = PreflightReport(
        stage=stage.name,
        tasks=config.preflight.tasks,
        samples=config.preflight.samples,
        turns=turns,
        parsable=wilson(sum(t.verdict.parsed is not None for t in firsts), n),
        solved_first=wilson(sum(t.verdict.correct for t in firsts), n),
        solved=wilson(sum(d.solved for d in dialogues), n),
        outcomes=outcomes,
        histogram=[solved_counts[k] for k in range(config.preflight.samples + 1)],
        useful_groups=outcomes.get("groups/frac_mixed", 0.0) * stage.tasks_per_step,
        attempt_tokens=sum(len(t.token_ids) for t in attempts) / max(1, len(attempts)),
        max_attempt_tokens=config.rollout.max_new_tokens,
        cut_attempts=wilson(sum(t.stop is TurnStop.LENGTH for t in attempts), len(attempts)),
        hint_tokens=sum(hints) / max(1, sum(t.hint is not None for t in attempts)),
        dialogue_tokens=max((len(x.token_ids) for x in streams), default=0),
        context_tokens=context,
        truncated=wilson(sum(d.stop is StopReason.TRUNCATED for d in dialogues), n),
        failed=sum(d.stop is StopReason.FAILED for d in dialogues),
        seconds_per_step=per_step,
        seconds_in_all=per_step * stage.steps,
        memory_gib=_memory_gib(engine),
        usual_answer=Counter(t.attempt[:80] for t in firsts).most_common(1)[0][0] if firsts else "",
        passed=True,
    )
    reason, fix = verdict_on(report, config) if method.on_policy else ("", "")
    return report.model_copy(update={"passed": not reason, "reason": reason, "fix": fix})


def verdict_on(report: PreflightReport, config: RunConfig) -> tuple[str, str]:
    """Why the stage is not worth starting, and what to do; empty where it is."""
    n = report.tasks * report.samples
    parsable, mixed = report.parsable.value or 0.0, report.outcomes.get("groups/frac_mixed", 0.0)
    if report.failed == n:
        return f"All {n} dialogues ended in an error.", "Read the errors: `rl2f replay RUN`."
    if report.truncated.value == 1.0:
        return (
            f"All {n} dialogues ran out of context ({report.context_tokens} tokens).",
            "Raise rollout.context_length, or lower rollout.max_turns.",
        )
    if parsable < config.preflight.min_parsable:
        count = round(parsable * n)
        if (report.cut_attempts.value or 0.0) > 0.5:
            cause = f"Most attempts are cut off at {report.max_attempt_tokens} tokens: raise rollout.max_new_tokens."
        else:
            cause = (
                f"The student does not keep the answer format (most often it says {report.usual_answer!r}): "
                "put a supervised warm-up stage (method sft) before this one, or use a stronger model."
            )
        note = "whether they are right cannot be known" if count == 0 else f"below {config.preflight.min_parsable:.0%}"
        return f"{count} of {n} first attempts are parsable ({note}).", cause
    if mixed < config.preflight.min_mixed:
        right, wrong = (report.outcomes.get(f"groups/frac_all_{k}", 0.0) for k in ("right", "wrong"))
        solved = round((report.solved.value or 0.0) * n)
        said = f"{solved} of {n} dialogues are right ({parsable:.0%} of the first attempts are parsable)"
        if wrong >= right:
            return (
                f"Only {mixed:.0%} of the groups are mixed; {said}.",
                "The task is too hard for these weights: choose an easier level, more turns, a longer warm-up, "
                "or a progress reward (reward.progress).",
            )
        return (
            f"Only {mixed:.0%} of the groups are mixed; {said}.",
            "The task is too easy for these weights: choose a harder level or fewer turns.",
        )
    return "", ""


def _memory_gib(engine: RolloutEngine) -> float:
    device: Any = getattr(engine.backend, "device", None)
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
