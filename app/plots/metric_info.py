"""Title, unit, explanation and formula of every metric."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rl2f_core.dialogue.metrics.dialogues import OUTCOMES
from rl2f_core.evaluation.plotting import Format


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """Description of a metric."""

    title: str
    unit: str
    format: Format = "number"
    help: str = ""
    """One sentence."""
    formula: str = ""


def _fraction(title: str, text: str = "", of: str = "fraction", formula: str = "") -> MetricInfo:
    return MetricInfo(title, of, "share", text, formula)


_OUTCOMES = "; ".join(f"{name.replace('_', ' ')}: {text}" for name, text in OUTCOMES.items())
METRICS: dict[str, MetricInfo] = {
    "reward": MetricInfo(
        "Reward", "mean per dialogue", "number", "Sum of all reward terms over a dialogue's turns.", "mean of Σₜ rₜ"
    ),
    "reward_std": MetricInfo(
        "Reward std", "standard deviation", "number", "Spread of the rewards.", "√(Σ (R − mean R)² / (n − 1))"
    ),
    "clean_reward": MetricInfo(
        "Clean reward", "mean per dialogue", "number", "Reward if no leak was read.", "mean of Σₜ rₜ, no leak read"
    ),
    "gain": _fraction(
        "Multi-turn gain", "Solved after the first turn.", "fraction of dialogues", "cum_acc/T − cum_acc/1"
    ),
    "correction_rate": _fraction(
        "Correction success rate",
        "Solved after an incorrect first attempt.",
        formula="P(correct at the end | incorrect at first)",
    ),
    "conditional_solve_rate": _fraction(
        "Conditional solve rate",
        "Correct at this turn, if no earlier attempt is.",
        formula="P(first correct at t | attempt t exists, none before is correct)",
    ),
    "plasticity": _fraction(
        "Plasticity", "The answer changed after feedback.", "fraction of revisions", "changed answers / revisions"
    ),
    "repeated_answer_rate": _fraction(
        "Repeated answers",
        "An earlier attempt had this answer.",
        "fraction of revisions",
        "answers given before / revisions",
    ),
    "improving_change_rate": _fraction(
        "Improving changes", "Answers that are now closer.", "fraction of changes", "P(correct or closer | changed)"
    ),
    "retention": _fraction(
        "Retention", "Correct parts that the next attempt retains.", "fraction of correct parts", "retained / correct"
    ),
    "regression_rate": _fraction(
        "Regressions", "Farther away, or a correct part lost.", "fraction of revisions", "P(farther or part lost)"
    ),
    "misled_rate": _fraction(
        "Misled",
        "The next attempt agrees with more false claims of the misleading hint (contentless: of the unread one).",
        "fraction of revisions with a false claim to adopt",
        "P(agreement with the false claims grew)",
    ),
    "hint_bits": MetricInfo(
        "Information in hints",
        "bits per hint",
        "number",
        "Of hints that can be read.",
        "log2(candidates before / after)",
    ),
    "bits_left": MetricInfo(
        "Bits left", "after a hint", "number", "0: one answer agrees with everything shown.", "log2(candidates after)"
    ),
    "efficiency": _fraction(
        "Efficiency of hint use", "Bits that the next attempt agrees with.", "fraction of bits", "Σ bits used / Σ bits"
    ),
    "efficiency_chance": _fraction(
        "Efficiency by chance", "Of attempts that ignore the hint.", "fraction of bits", "Σ chance bits / Σ bits"
    ),
    "determined_rate": _fraction(
        "Determining hints", "They leave one answer.", "fraction of hints", "hints with 0 bits left / hints"
    ),
    "leak_rate": _fraction(
        "Leaks", "Leaks that the student read, as detected.", "fraction of checked hints", "leaking / checked hints"
    ),
    "prevented_leak_rate": _fraction(
        "Prevented leaks",
        "Leaking messages that a leak action replaced.",
        "fraction of checked hints",
        "replaced leaking messages / checked hints",
    ),
    "unchecked_hint_rate": _fraction(
        "Unchecked hints",
        "A detector failed, e.g. a judge. Flagged hints count as checked, so the fraction of leaks is too high.",
        "fraction of hints for detectors",
        "unchecked hints / hints",
    ),
    "planted_rate": _fraction(
        "Planted leaks", "Leaks that the teacher leaky wrote.", "fraction of hints", "planted hints / hints"
    ),
    "planted_recall": _fraction(
        "Recall on planted leaks", "Flagged planted leaks.", "fraction of planted hints", "flagged / checked planted"
    ),
    "copied_answer_rate": _fraction(
        "Copied answers", "Correct after a hint that states the answer.", "fraction of attempts", "P(correct | stated)"
    ),
    "clean_hint_solve_rate": _fraction(
        "Solved after a clean hint", "At attempt 2.", "fraction of attempts", "P(correct | incorrect before, no leak)"
    ),
    "exported_copy_rate": _fraction(
        "Copies in an export", "Exported after an unnoticed leak.", "fraction of attempts", "P(stated | exported)"
    ),
    "correct_abandoned_rate": _fraction(
        "Abandoned correct answers", "Incorrect after a correct one.", "fraction of attempts", "P(incorrect | correct)"
    ),
    "attempt_tokens": MetricInfo(
        "Attempt length", "tokens per attempt", "number", "Sampled tokens.", "tokens of attempts / attempts"
    ),
    "constant_baseline": _fraction(
        "Constant baseline",
        "Solve rate of the best constant answer.",
        "fraction of dialogues",
        "max over answers a of P(a is correct)",
    ),
    "truncated_rate": _fraction(
        "Truncated",
        "Attempts truncated by the token limit.",
        "fraction of attempts",
        "attempts at max_new_tokens / attempts",
    ),
    "parse_failure_rate": _fraction(
        "Parse failures",
        "Attempts without a parsable answer.",
        "fraction of attempts",
        "outcome/unparsable + outcome/truncated",
    ),
    "format_error_rate": _fraction(
        "Format errors", "Attempts with a format error.", "fraction of attempts", "malformed attempts / attempts"
    ),
    "reflection_words": MetricInfo(
        "Reflection words",
        "per 1,000 tokens",
        "number",
        "check, verify, wait, however, re-evaluate, let me …",
        "1000 · words / tokens of attempts",
    ),
    "entropy": MetricInfo(
        "Entropy",
        "nats per token",
        "number",
        "Entropy of the student's next-token distribution.",
        "mean of −Σᵥ π(v) log π(v)",
    ),
    "sampling/kl": MetricInfo(
        "KL of sampler and learner",
        "nats per token",
        "number",
        "sampling/kl: 0 if both agree.",
        "mean of ρ − 1 − log ρ, ρ = π_old / μ",
    ),
    "approx_kl": MetricInfo(
        "KL of old and new policy",
        "nats per token",
        "number",
        "approx_kl: 0 if both agree.",
        "mean of ρ − 1 − log ρ, ρ = π / π_old",
    ),
    "kl": MetricInfo(
        "KL to the reference", "nats per token", "number", "Distance to the reference policy.", "KL(π ‖ π_ref)"
    ),
    "ratio/mean": MetricInfo(
        "Importance ratio", "mean", "number", "Probability under the new and the old policy.", "mean of π / π_old"
    ),
    "clip_ratio": _fraction(
        "Clipped", "Tokens whose ratio was clipped.", "fraction of tokens", "clipped tokens / tokens"
    ),
    "loss": MetricInfo(
        "Loss", "mean per token", "number", "Weighted sum of the loss terms.", "Σ coefficient · loss term"
    ),
    "grad_norm": MetricInfo(
        "Gradient norm", "before clipping", "number", "Length of the gradient of the policy.", "‖∇loss‖₂"
    ),
    "loss/ce": MetricInfo(
        "Cross-entropy loss",
        "nats per token",
        "number",
        "Negative log-probability of the demonstrations.",
        "mean of −log π(token)",
    ),
    "learning_rate": MetricInfo(
        "Learning rate",
        "",
        "number",
        "Step size of the optimizer.",
        "configured rate · warmup and schedule at the step",
    ),
    "temperature": MetricInfo(
        "Temperature", "of sampling", "number", "Temperature T of the sampled attempts.", "π(v) ∝ exp(logit(v) / T)"
    ),
    "group_size": MetricInfo(
        "Group size", "dialogues per task", "count", "Dialogues of one task in a step.", "dialogues of a group"
    ),
    "curriculum/level": MetricInfo(
        "Level",
        "of the curriculum",
        "count",
        "Difficulty of the newest tasks.",
        "+ 1 when the level's solve rate reaches its threshold or its steps end",
    ),
    "curriculum/solve_rate": _fraction(
        "Solve rate on the level",
        "Over the curriculum's window.",
        "fraction of dialogues",
        "solved dialogues / dialogues",
    ),
    "curriculum/replay_solve_rate": _fraction(
        "Solve rate on earlier levels",
        "Over this step's dialogues.",
        "fraction of dialogues",
        "solved dialogues / dialogues",
    ),
    "off_context/masked_frac": _fraction(
        "Masked off context",
        "Tokens with a too low probability without the critique.",
        "fraction of tokens",
        "1 − tokens after masking / tokens before",
    ),
    "value/explained_variance": MetricInfo(
        "Value head",
        "explained variance",
        "number",
        "1: exact returns; 0: no better than their mean; below 0: worse.",
        "1 − Var(G − V) / Var(G)",
    ),
    "value/loss": MetricInfo(
        "Loss of the value head",
        "mean per token",
        "number",
        "Error of the predicted returns.",
        "mean of ½ (V − G)², clipped",
    ),
    "value/return": MetricInfo("Return", "mean per token", "number", "Target of the value head.", "mean of G"),
    "optimizer_updates": MetricInfo(
        "Optimizer updates", "per step", "count", "Steps of the optimizer.", "minibatches · num_iterations"
    ),
    "frac_reward_zero_std": _fraction(
        "Groups with equal reward",
        "TRL's frac_reward_zero_std.",
        "fraction of groups",
        "groups with equal returns / groups",
    ),
    "groups/frac_mixed": _fraction(
        "Mixed groups",
        "Tinker's frac_mixed: their dialogues have different returns.",
        "fraction of groups",
        "1 − frac_reward_zero_std",
    ),
    "groups/frac_all_correct": _fraction(
        "All-correct groups",
        "Tinker's frac_all_good: equal returns, all dialogues solved.",
        "fraction of groups",
        "all-correct groups / groups",
    ),
    "groups/frac_all_incorrect": _fraction(
        "All-incorrect groups",
        "Tinker's frac_all_bad: equal returns, no dialogue solved.",
        "fraction of groups",
        "all-incorrect groups / groups",
    ),
    "groups/resampled": MetricInfo(
        "Resampled groups",
        "per step",
        "count",
        "Groups that were sampled again because their returns were equal; all other metrics include them.",
        "discarded groups",
    ),
    "distill/acceptance_rate": _fraction(
        "Acceptance rate", "Tasks with an accepted answer, so far.", "fraction of tasks", "accepted tasks / tasks"
    ),
    "distill/frac_incorrect": _fraction(
        "Incorrect answers of the source",
        "Samples with an incorrect answer.",
        "fraction of samples",
        "incorrect samples / samples",
    ),
    "distill/frac_unparsable": _fraction(
        "Unparsable answers of the source",
        "Samples with no parsable answer.",
        "fraction of samples",
        "unparsable samples / samples",
    ),
    "distill/frac_duplicate": _fraction(
        "Duplicate answers of the source",
        "Samples with an answer that the dataset already contains.",
        "fraction of samples",
        "duplicates / samples",
    ),
    "distill/frac_too_long": _fraction(
        "Answers longer than allowed",
        "Samples that are correct but too long.",
        "fraction of samples",
        "too long samples / samples",
    ),
    "distill/frac_leaked": _fraction(
        "After a leak", "Correct after a leak.", "fraction of samples", "leaked / samples"
    ),
    "distill/frac_failed": _fraction(
        "Failed answers of the source",
        "Samples with no answer because of an error.",
        "fraction of samples",
        "failed samples / samples",
    ),
    "true_hint_rate": _fraction(
        "True hints", "Of those whose statements can be read.", "fraction of hints", "hints that state nothing false"
    ),
    "source/cost": MetricInfo(
        "Cost of the source", "US dollars so far", "number", "By the configured prices.", "Σ tokens · price"
    ),
    "teacher/error_rate": _fraction(
        "Failed hints", "The teacher returned no message.", "fraction of hints", "failed hints / hints"
    ),
    "teacher/cost": MetricInfo(
        "Cost of the teacher", "US dollars per step", "number", "By the configured prices.", "Σ tokens · price"
    ),
    "system/cpu_cores": MetricInfo(
        "System: CPU",
        "cores in use",
        "number",
        "Mean CPU cores that the run's process and its children use during a step.",
        "CPU seconds / seconds of the step",
    ),
    "system/memory_gb": MetricInfo(
        "System: memory",
        "GB",
        "number",
        "Resident memory of the run's process and its children at the end of a step.",
        "Σ resident bytes of the processes / 10⁹",
    ),
    "system/gpu_memory_gb": MetricInfo(
        "System: GPU memory",
        "GB",
        "number",
        "Peak of the GPU memory that PyTorch allocates in the run's process during a step.",
        "max allocated bytes / 10⁹",
    ),
    "system/gpu_utilization": _fraction(
        "System: GPU utilization",
        "Fraction of time in which the GPU computes, by NVML, at the end of rollout and update.",
        "fraction of time",
        "mean of both readings",
    ),
    "effect": MetricInfo(
        "Hint effect",
        "difference of fractions",
        "number",
        "Solve rate minus that under contentless feedback, with changed reflections minus that under hints, paired.",
        "cum_acc/T(condition) − cum_acc/T(contentless)",
    ),
    "consistency": _fraction(
        "Consistency",
        "Solved originals that are solved as variants too.",
        formula="P(variant solved | original solved)",
    ),
    "memorization": _fraction("LiMem", "Tasks solved in the original, but not as variants.", formula="Acc · (1 − CR)"),
    "memorization_above_resample": MetricInfo(
        "LiMem beyond chance",
        "difference of fractions",
        "number",
        "LiMem minus that of the same text sampled again.",
        "LiMem(variant) − LiMem(resample)",
    ),
}
METRIC_GROUPS: dict[str, MetricInfo] = {
    "cum_acc": _fraction(
        "Solved within t turns",
        "Cumulative accuracy: the last answer within t turns is correct.",
        "fraction of dialogues",
        "cum_acc/t = dialogues solved within t turns / dialogues",
    ),
    "stop": _fraction(
        "Stop reasons", "Why dialogues ended.", "fraction of dialogues", "dialogues by reason / dialogues"
    ),
    "outcome": _fraction(
        "Attempt outcomes",
        f"Exclusive fractions of attempts that add up to 1. {_OUTCOMES}.",
        "fraction of attempts",
        "attempts by outcome / attempts",
    ),
    "groups": _fraction(
        "Groups",
        "With a group baseline only mixed groups give a gradient: equal returns at a turn have zero advantage.",
        "fraction of groups",
        "frac_mixed = groups with different returns / groups = 1 − frac_reward_zero_std",
    ),
    "trained": MetricInfo("Groups trained on", "", "number", "Without resampled groups.", "as of all groups"),
    "time": MetricInfo(
        "Time",
        "seconds per step",
        "number",
        "rollout: sampling; waiting: for verifiers and teachers; update: training; sync: new weights; journal: saving.",
        "end of the phase − its start",
    ),
    "system": MetricInfo("System", "", "number", "CPU, memory and GPU use of the run.", "see each metric"),
    "tokens": MetricInfo("Tokens", "per step", "count", "Tokens of each kind.", "Σ tokens of the step's dialogues"),
    "tokens_per_second": MetricInfo("Speed", "tokens per second", "number", "Throughput.", "tokens / seconds"),
    "tasks": MetricInfo("Tasks", "per step", "count", "Tasks of each sub-environment.", "its groups"),
    "solved": _fraction(
        "Solved within all turns", "Solve rate of one sub-environment.", "fraction of dialogues", "cum_acc/T"
    ),
    "solved_first": _fraction(
        "Solved at the first turn", "Solve rate of one sub-environment.", "fraction of dialogues", "cum_acc/1"
    ),
    "distill": MetricInfo(
        "Distillation", "so far", "count", "Tasks and samples of the dataset.", "Σ over the steps so far"
    ),
    "source": MetricInfo("Source", "so far", "count", "Messages of a model source.", "Σ over the steps so far"),
    "teacher": MetricInfo("Teacher", "per step", "count", "Messages of a model teacher.", "Σ over the step's hints"),
    "loss": MetricInfo(
        "Loss term", "mean per token", "number", "One term of the loss.", "Σ term over tokens / weight of the tokens"
    ),
    "kl": MetricInfo("KL", "nats per token", "number", "Distance of two policies.", "mean of ρ − 1 − log ρ"),
    "advantage": MetricInfo(
        "Advantage", "per token", "number", "Return minus the baseline of its group or value head.", "A = G − baseline"
    ),
    "sampling": MetricInfo(
        "Sampler and learner", "", "number", "Probabilities of the learner and the sampler μ.", "ρ = π_old / μ"
    ),
    "value": MetricInfo("Value head", "", "number", "Predicted returns V.", "V ≈ E[G]"),
    "off_context": MetricInfo(
        "Off-context samples", "", "number", "Training samples without the critique.", "as of the other samples"
    ),
}


CHARTS: dict[str, MetricInfo] = {
    "revisions": MetricInfo(
        "Revisions after feedback",
        "fraction",
        "share",
        "changed: plasticity, the answer differs; improving: of those, correct or closer; retained: retention of "
        "correct parts; repeated: repeated_answer_rate, the dialogue already contained the answer.",
        "changed = changed answers / revisions; improving = correct or closer / changed; "
        "retained = retained / correct parts; repeated = answers given before / revisions",
    ),
    "solved/": _fraction(
        "Solved by environment",
        "Solved within all turns, one line per sub-environment.",
        "fraction of dialogues",
        "cum_acc/T",
    ),
    "curriculum/solve_rate": replace(
        METRICS["curriculum/solve_rate"],
        help="Over the curriculum's window; for earlier levels, over this step's dialogues.",
    ),
    "system/memory_gb": MetricInfo(
        "System: memory",
        "GB",
        "number",
        "processes: resident memory of the run's process and its children at the end of a step; "
        "GPU: peak of the memory that PyTorch allocates during a step.",
        "processes = Σ resident bytes / 10⁹; GPU = max allocated bytes / 10⁹",
    ),
}
"""Descriptions of charts whose texts differ from those of their metric or group."""


def metric_info(name: str) -> MetricInfo:
    """Return the description of a metric; an unknown metric is a number."""
    if name in METRICS:
        return METRICS[name]
    head, _, tail = name.partition("/")
    known = METRIC_GROUPS.get(head) or METRICS.get(head)
    if known is None or not tail:
        return MetricInfo(name, "")
    end = f"turn {tail}" if tail.isdigit() else tail.replace("_", " ")
    if head == "cum_acc":
        return replace(known, title=f"Solved within {tail} turn{'' if tail == '1' else 's'}")
    return replace(known, title=f"{known.title}: {end}")


def group_info(name: str) -> MetricInfo:
    """Return the description of all metrics that start with `name`, e.g. `time/`."""
    head = name.rstrip("/")
    return METRIC_GROUPS.get(head) or metric_info(head)


def chart_info(key: str) -> MetricInfo:
    """Return the description of a chart, by its key: a metric, or a group that ends in `/`."""
    return CHARTS.get(key) or (group_info(key) if key.endswith("/") else metric_info(key))
