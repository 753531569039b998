"""Preflight: rollouts with the starting weights that show whether a stage can learn.

Most methods learn only from mixed groups. The report gives the expected number of groups with a learning signal per
step, distinguishes "0 of n parsable" from "0 of n right", names the likely cause, and estimates time and memory.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from rl2f_core.common.processes import peak_memory
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.config.run import RunConfig
from rl2f_core.config.schedules import resolve_int
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.metrics.constant_baseline import constant_baseline, describe_comparison, is_above_baseline
from rl2f_core.dialogue.metrics.dialogues import fraction
from rl2f_core.dialogue.rollout.engine import RolloutEngine
from rl2f_core.errors import shorten
from rl2f_core.learning.methods.base import Method, StepContext
from rl2f_core.learning.training.collector import group_requests, run_policy
from rl2f_core.learning.training.step_metrics import outcomes_of
from rl2f_core.types import ConstantBaseline, FinishReason, FrozenModel, Group, JsonObject, StopReason, TrainingSample


class PreflightReport(FrozenModel):
    """Result of a preflight."""

    stage: str
    tasks: int
    samples: int
    turns: int
    parsable: Interval
    """Fraction of parsable first attempts."""
    solved_first: Interval
    """Fraction of correct first attempts."""
    solved: Interval
    """Fraction of solved dialogues."""
    outcomes: dict[str, float]
    """Fractions of groups: mixed, all correct, all incorrect."""
    histogram: list[int]
    """Number of groups with 0, 1, … `samples` solved dialogues."""
    expected_mixed_groups: float
    """Expected groups per step with a learning signal: mixed ones, unless the method learns from others too."""
    group_size: int | None = None
    """Dialogues of a group in the stage; None in reports of earlier versions."""
    signal_rate: float = 0.0
    """Fraction of groups of this size with a learning signal; at least this if they are larger than `samples`."""
    attempt_tokens: float
    """Mean tokens of an attempt; the limit is `max_attempt_tokens`."""
    max_attempt_tokens: int
    cut_attempts: Interval
    """Fraction of truncated attempts."""
    hint_tokens: float
    """Mean tokens of a hint, including its template."""
    dialogue_tokens: int
    """Tokens of the longest dialogue; the limit is `max_seq_len`."""
    max_seq_len: int
    truncated: Interval
    """Fraction of dialogues that exceeded the context."""
    failed: int
    """Number of failed dialogues, which the rates leave out."""
    error: str = ""
    """Their most frequent error."""
    seconds_per_step: float
    """Estimated seconds of a first step."""
    total_seconds: float
    """Estimated seconds of all steps of the stage."""
    memory_gib: float
    """Peak memory of the process so far, including weights."""
    trained_weights: str = ""
    """`adapter of rank 16`, or `all weights`."""
    training_memory_gib: float | None = None
    """Estimated memory of weights, gradients, optimizer and reference (`learner.memory`), and of the other models that
    teacher and judges have loaded; without activations."""
    total_memory_gib: float | None = None
    """Memory of the GPU, or of this machine."""
    retained_states: int = 0
    """Number of training states that the run keeps (`retain_states`)."""
    retained_gib: float = 0.0
    """Their estimated size on disk, at most."""
    constant_baseline: ConstantBaseline | None = None
    """The best constant answer, if the environment has one."""
    most_common_answer: str
    """Most frequent first attempt."""
    passed: bool
    reason: str = ""
    fix: str = ""

    @property
    def groups_with_signal(self) -> str:
        """Expected groups per step with a learning signal, as text; a lower bound for groups above `samples`."""
        return f"{'≥' if (self.group_size or 0) > self.samples else '≈'} {self.expected_mixed_groups:.1f}"

    def to_text(self) -> str:
        """Return the report as text."""
        n = self.tasks * self.samples - self.failed
        mixed, right, wrong = (
            self.outcomes.get(f"groups/frac_{k}", 0.0) for k in ("mixed", "all_correct", "all_incorrect")
        )
        bars = "".join("▁▂▃▄▅▆▇█"[min(7, round(7 * c / max(1, *self.histogram)))] for c in self.histogram)
        minutes = self.total_seconds / 60
        lines = [
            f"Preflight of {self.stage}: {self.tasks} tasks × {self.samples} samples, up to {self.turns} turns",
            *(
                [f"  ! {self.failed} of {n + self.failed} dialogues ended in an error: {self.error}"]
                * bool(self.failed)
            ),
            f"  parsable at the first attempt   {_count(self.parsable, n)}",
            f"  right at the first attempt      {_count(self.solved_first, n)}",
            f"  solved within {self.turns} turns          {_count(self.solved, n)}",
            *self._baseline_lines(),
            f"  groups mixed {mixed:.0%}, all right {right:.0%}, all wrong {wrong:.0%}"
            f"   dialogues solved in a group: 0 {bars} {self.samples}",
            f"  {self.groups_with_signal} useful groups a step",
            f"  attempts {self.attempt_tokens:.0f} of {self.max_attempt_tokens} tokens, "
            f"{_share(self.cut_attempts)} cut off; hints {self.hint_tokens:.0f}",
            f"  longest dialogue {self.dialogue_tokens} of {self.max_seq_len} tokens",
            f"  ≈ {self.seconds_per_step:.0f} s a step, {minutes:.0f} min in all, {self.memory_gib:.1f} GiB",
            *self._memory_lines(),
            *self._disk_lines(),
            f"  {'✓ worth starting' if self.passed else '✗ ' + self.reason}",
        ]
        return "\n".join(lines + ([f"  {self.fix}"] if self.fix else []))

    def _memory_lines(self) -> list[str]:
        """Return the memory that training needs, and a warning if there is less."""
        needed, total = self.training_memory_gib, self.total_memory_gib
        if needed is None or total is None:
            return []
        lines = [
            f"  training {self.trained_weights}: ≈ {needed:.1f} GiB for weights, gradients, "
            f"optimizer, reference and other models, of {total:.1f} GiB"
        ]
        if needed > total:
            lines.append("  ! more than there is: train an adapter, shard the weights, or choose a smaller model")
        return lines

    def _disk_lines(self) -> list[str]:
        """Return the disk space of the retained training states."""
        if not self.retained_states:
            return []
        return [f"  {self.retained_states} retained training states: up to {self.retained_gib:.2f} GiB on disk"]

    def _baseline_lines(self) -> list[str]:
        """Return the best constant answer, and a warning if the first attempts are no better."""
        baseline = self.constant_baseline
        if baseline is None:
            return []
        lines = [f"  best constant answer            {baseline.score:.0%}   ({shorten(baseline.answer, 60)})"]
        if not is_above_baseline(self.solved_first, baseline):
            lines.append(f"  ! the first attempts are {describe_comparison(self.solved_first, baseline)}")
        return lines


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
    on_progress: Callable[[int, int], None] | None = None,
    time_update: Callable[[Sequence[TrainingSample]], float] | None = None,
) -> tuple[PreflightReport, list[Group]]:
    """Roll out `config.preflight` tasks × samples; return the report and the dialogues.

    Temperature and group size are those of the stage's first step. The tasks follow those of the stage's steps. The
    samples per task are rounded up to whole trees.

    Args:
        engine: Engine of the first level if the stage has a curriculum.
        adapter: Name of the starting weights in the backend.
        policy: Name of the starting weights in the dialogues.
        time_update: Estimates the seconds of one iteration over the given samples; None leaves the update out.
    """
    check = config.preflight
    first_task = config.first_task(stage) + stage.num_tasks
    tasks = [engine.environment.task("train", first_task + i) for i in range(check.num_tasks)]
    size = math.ceil(check.samples_per_task / method.branches) * method.branches
    requests = [
        request
        for i, task in enumerate(tasks)
        for request in group_requests(
            task, f"{stage.name}/preflight/{i}", size, config.seed, stage.name, "preflight", i
        )
    ]
    method.begin_step(StepContext.of(engine, stage.steps - 1, stage.steps))  # the last step: all ramps at full weight
    turns = method.max_turns(config.rollout.max_turns)
    start = time.perf_counter()
    temperature = stage.resolve(0, config.rollout.temperature).temperature
    rollouts = run_policy(engine, requests, method, [], adapter=adapter, policy=policy, temperature=temperature,
                          on_progress=on_progress)  # fmt: skip
    seconds = time.perf_counter() - start
    groups = [Group(task, tuple(rollouts[i * size : (i + 1) * size])) for i, task in enumerate(tasks)]
    samples = [s for g in groups for s in method.samples(g)] if method.on_policy else []
    options = method.loss_options()
    trained = [s for s in samples if s.token_rewards is not None or options.trains(s)]
    update = time_update(trained) if time_update is not None and trained else 0.0
    per_dialogue = (seconds + stage.num_iterations * update) / len(requests)
    return _report(engine, config, stage, method, groups, turns, per_dialogue), groups


def signal_rate(groups: Sequence[Group], method: Method, size: int) -> float:
    """Estimate the fraction of a stage's groups with a learning signal.

    A group stands for all groups of `size` dialogues that are consecutive in it, cyclically; of a smaller group, all
    dialogues are taken, which gives a lower bound. If advantages compare all groups, all have a signal or none.
    """
    groups = [group for group in groups if group.trainable]
    if not groups:
        return 0.0
    if method.compares_groups:
        return float(method.has_different_returns(Group(groups[0].task, tuple(r for g in groups for r in g.rollouts))))
    rates = []
    for task, rollouts in ((group.task, group.rollouts) for group in groups):
        taken = min(size, len(rollouts))
        starts = range(0, len(rollouts), method.branches) if taken < len(rollouts) else (0,)
        parts = [(rollouts + rollouts)[start : start + taken] for start in starts]
        rates.append(sum(method.has_learning_signal(Group(task, part)) for part in parts) / len(parts))
    return sum(rates) / len(rates)


def dialogues_of(stage: StageConfig) -> list[int]:
    """Return the number of dialogues of each step of a stage, without resampled groups."""
    return [stage.tasks_per_step * resolve_int(stage.group_size, step) for step in range(stage.steps)]


def _report(
    engine: RolloutEngine,
    config: RunConfig,
    stage: StageConfig,
    method: Method,
    groups: Sequence[Group],
    turns: int,
    per_dialogue: float,
) -> PreflightReport:
    every = [(engine.environment.canonical(g.task), r.dialogue) for g in groups for r in g.rollouts]
    played = [(problem, d) for problem, d in every if d.stop_reason is not StopReason.FAILED]
    dialogues = [d for _, d in played]
    errors = Counter(d.error or "" for _, d in every if d.stop_reason is StopReason.FAILED)
    sequences = [sequence for g in groups for r in g.rollouts for sequence in r.sequences]
    firsts = [d.turns[0] for d in dialogues if d.turns]
    attempts = [(problem, t) for problem, d in played for t in d.turns]
    size = resolve_int(stage.group_size, 0)
    rate = signal_rate(groups, method, size)
    solved_counts = Counter(sum(bool(r.dialogue.solved) for r in g.rollouts) for g in groups)
    hints = [sum(k >= 0 and not s for k, s in zip(x.turn_ids, x.student_mask, strict=True)) for x in sequences]
    context = min(config.rollout.max_seq_len, engine.backend.max_model_len)
    report = PreflightReport(
        stage=stage.name,
        tasks=len(groups),
        samples=len(groups[0].rollouts),
        turns=turns,
        parsable=fraction((p, bool(d.turns) and d.turns[0].verdict.parsed is not None) for p, d in played).interval(),
        solved_first=fraction((p, bool(d.turns) and d.turns[0].verdict.correct) for p, d in played).interval(),
        solved=fraction((p, d.solved) for p, d in played).interval(),
        outcomes=outcomes_of(groups, method),
        histogram=[solved_counts[k] for k in range(len(groups[0].rollouts) + 1)],
        expected_mixed_groups=rate * stage.tasks_per_step,
        group_size=size,
        signal_rate=rate,
        attempt_tokens=sum(len(t.token_ids) for _, t in attempts) / max(1, len(attempts)),
        max_attempt_tokens=config.rollout.max_new_tokens,
        cut_attempts=fraction((p, t.finish_reason is FinishReason.LENGTH) for p, t in attempts).interval(),
        hint_tokens=sum(hints) / max(1, sum(t.hint is not None for _, t in attempts)),
        dialogue_tokens=max((len(x.token_ids) for x in sequences), default=0),
        max_seq_len=context,
        truncated=fraction((p, d.stop_reason is StopReason.CONTEXT_FULL) for p, d in played).interval(),
        failed=errors.total(),
        error=errors.most_common(1)[0][0] if errors else "",
        seconds_per_step=per_dialogue * dialogues_of(stage)[0],
        total_seconds=per_dialogue * sum(dialogues_of(stage)),
        memory_gib=_memory_gib(engine),
        **_training_memory(engine, config, stage, method),
        constant_baseline=constant_baseline(engine.environment.for_tasks([g.task.id for g in groups])),
        most_common_answer=Counter(t.attempt[:80] for t in firsts).most_common(1)[0][0] if firsts else "",
        passed=True,
    )
    reason, fix = "", ""
    if method.on_policy:
        reason, fix = verdict_on(report, config)
    return report.model_copy(update={"passed": not reason, "reason": reason, "fix": fix})


def verdict_on(report: PreflightReport, config: RunConfig) -> tuple[str, str]:
    """Return why the stage is not worth starting, and a fix; both empty if it is.

    Errors are the reason if at least a tenth of the dialogues have one, because they may be the cause of the others.
    """
    n = report.tasks * report.samples
    reason, fix = _learning_problem(report, config, n - report.failed)
    if reason and 10 * report.failed >= n:
        count = f"All {n}" if report.failed == n else f"{report.failed} of {n}"
        return (
            f"{count} dialogues ended in an error.",
            f"Mend the cause of {report.error!r}; `rl2f replay RUN` shows all errors.",
        )
    return reason, fix


def _learning_problem(report: PreflightReport, config: RunConfig, n: int) -> tuple[str, str]:
    """Return why the `n` dialogues without an error teach nothing, and a fix."""
    parsable, size = report.parsable.value or 0.0, report.group_size or 0
    if report.truncated.value == 1.0:
        return (
            f"All {n} dialogues ran out of context ({report.max_seq_len} tokens).",
            "Raise rollout.max_seq_len, or lower rollout.max_turns.",
        )
    if parsable < config.preflight.min_parse_rate:
        count = round(parsable * n)
        if (report.cut_attempts.value or 0.0) > 0.5:
            cause = f"Most attempts are cut off at {report.max_attempt_tokens} tokens: raise rollout.max_new_tokens."
        else:
            cause = (
                f"The student does not keep the answer format (most often it answers {report.most_common_answer!r}): "
                "put a supervised warm-up stage (method sft) before this one, or use a stronger model."
            )
        note = (
            "whether they are right cannot be known" if count == 0 else f"below {config.preflight.min_parse_rate:.0%}"
        )
        return f"{count} of {n} first attempts are parsable ({note}).", cause
    if report.signal_rate < config.preflight.min_mixed_rate:
        right, wrong = (report.outcomes.get(f"groups/frac_all_{k}", 0.0) for k in ("correct", "incorrect"))
        solved = round((report.solved.value or 0.0) * n)
        text = f"{solved} of {n} dialogues are right ({parsable:.0%} of the first attempts are parsable)"
        if wrong >= right:
            fix = (
                "The task is too hard for these weights: choose an easier level, more turns, a longer warm-up, "
                "or a progress reward (reward.progress_weight)."
            )
        else:
            fix = "The task is too easy for these weights: choose a harder level or fewer turns."
        if size > report.samples:
            fix += f" Groups have {size} dialogues: preflight.samples_per_task: {size} measures whole groups."
        return f"Only {report.signal_rate:.0%} of the groups have a learning signal; {text}.", fix
    return "", ""


def _training_memory(engine: RolloutEngine, config: RunConfig, stage: StageConfig, method: Method) -> JsonObject:
    """Return the report's fields on memory and disk space of training; empty if the backend has no weights."""
    from rl2f_core.learning.learner.memory import model_memory, retained_disk, total_memory, training_memory

    backend, lora = engine.backend, config.lora_of(stage)
    if backend.folder is None:
        return {}
    on_cpu = backend.device.type == "cpu"
    memory = training_memory(backend.folder, lora, backend.dtype.itemsize, method.loss_options(), on_cpu=on_cpu)
    for other in engine.teacher.models.others if engine.teacher.models is not None else ():
        if other.folder is not None and other.device == backend.device:
            memory += model_memory(other.folder, other.dtype.itemsize)
    return {
        "trained_weights": "all weights" if lora.full_finetuning else f"an adapter of rank {lora.rank}",
        "training_memory_gib": memory / 2**30,
        "total_memory_gib": total_memory(backend.device) / 2**30,
        "retained_states": len(config.retained_steps()),
        "retained_gib": retained_disk(backend.folder, config) / 2**30,
    }


def _memory_gib(engine: RolloutEngine) -> float:
    if engine.backend.folder is not None and engine.backend.device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(engine.backend.device) / 2**30
    return peak_memory() / 2**30
