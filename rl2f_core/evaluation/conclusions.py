"""Conclusions of an evaluation: did the hints help, compared with what, and how far the evidence goes."""

from __future__ import annotations

from rl2f_core.common.stats.intervals import Interval
from rl2f_core.dialogue.metrics.constant_baseline import describe_comparison, is_above_baseline
from rl2f_core.dialogue.metrics.dialogues import Metrics
from rl2f_core.evaluation.formatting import MIN_PROBLEMS, TOO_FEW, interval_text, number, verdict_text
from rl2f_core.evaluation.report import (
    MAX_PARSE_FAILURE_RATE,
    EvaluationReport,
    baseline_findings,
    effect_findings,
    limits,
    reference_findings,
)

HELPED, COMPARED, BELIEVED = "Did the hints help?", "Compared with what?", "Can I believe it?"


def answers(report: EvaluationReport) -> dict[str, str]:
    """Answer three questions about the hints of the newest checkpoint; empty if no checkpoint received hints."""
    hinted = [name for name in report.checkpoints if report.metrics(name, "hints") is not None]
    if not hinted:
        return {}
    checkpoint, effect = hinted[-1], report.effect(hinted[-1])
    if effect is None:
        return {HELPED: f"Unknown for {checkpoint}: the condition contentless, which replaces the hints, is missing."}
    if effect.value is None:
        reason = "no problem has dialogues under hints and under contentless that did not fail"
        return {HELPED: f"Unknown for {checkpoint}: {reason}."}
    return {
        HELPED: _helped(checkpoint, effect, report.turns),
        COMPARED: _compared(report, hinted, effect),
        BELIEVED: _believed(report, checkpoint, effect),
    }


def _helped(checkpoint: str, effect: Interval, turns: int) -> str:
    verdict = verdict_text(effect, "Yes", "No, they hurt")
    is_clear = verdict in ("Yes", "No, they hurt")
    change = interval_text(effect, signed=True)
    text = f"with hints, the solve rate of {checkpoint} within {turns} turns changes by {change}"
    return f"{verdict}: {text}." if is_clear else f"Not shown: {text}, and this is {_unclear(verdict)}."


def _unclear(verdict: str) -> str:
    return verdict if verdict.startswith((TOO_FEW, "no interval")) else f"not a clear difference: {verdict}"


def _compared(report: EvaluationReport, hinted: list[str], effect: Interval) -> str:
    checkpoint = hinted[-1]
    rates = [report.metrics(checkpoint, condition) for condition in ("hints", "contentless")]
    with_hints, without = (interval_text(row.final()) if row else "–" for row in rates)
    text = (
        f"The same checkpoint with contentless feedback on the same {effect.n} problems: {without} solved, and "
        f"{with_hints} with hints."
    )
    earlier = next((name for name in reversed(hinted[:-1]) if not _is_unparsable(report.metrics(name, "hints"))), "")
    if hinted[:-1] and not earlier:
        return f"{text} Most attempts of earlier checkpoints are unparsable, so hints could not help them."
    change = report.difference(checkpoint, earlier, "hint_effect")
    if change is None:
        return text
    verdict = verdict_text(change, "training raised it", "training lowered it")
    return f"{text} Its hint effect minus that of {earlier} is {interval_text(change, signed=True)}: {verdict}."


def _is_unparsable(row: Metrics | None) -> bool:
    """Whether so many attempts are unparsable that hints cannot have an effect, as with most base models."""
    failures = row.values.get("parse_failure_rate") if row else None
    return failures is not None and (failures.value or 0) > MAX_PARSE_FAILURE_RATE


def _believed(report: EvaluationReport, checkpoint: str, effect: Interval) -> str:
    """Return the reasons against an answer, or what it holds for."""
    doubts = []
    if effect.n < MIN_PROBLEMS:
        doubts.append(f"{effect.n} problems are {TOO_FEW}")
    row = report.metrics(checkpoint, "hints")
    values = row.values if row else {}
    rates = {name: score.value or 0.0 for name, score in values.items()}
    if _is_unparsable(row):
        doubts.append(f"{number(rates['parse_failure_rate'])} of the attempts are unparsable")
    if rates.get("leak_rate"):
        doubts.append(f"{number(rates['leak_rate'])} of the hints leaked the answer to the student")
    if row is not None and not is_above_baseline(row.final(), report.constant_baseline, report.tasks):
        doubts.append(f"the solve rate is {describe_comparison(row.final(), report.constant_baseline)}")
    if doubts:
        return f"Only with care: {'; '.join(doubts)}."
    corrected = ", and the finding is corrected by Holm's method" if effect.holm_p is not None else ""
    return (
        f"For other {report.split} problems of this kind: {effect.n} are paired, each interval has 95 % coverage on "
        f"its own{corrected}. Not for other seeds: this is one run; Compare shows several seeds together."
    )


def grouped_findings(report: EvaluationReport) -> dict[str, list[str]]:
    """Return the findings of a report by kind."""
    groups = {
        "Effects of hints and controls": effect_findings(report),
        "Reference policies": reference_findings(report),
        "The best constant answer": baseline_findings(report),
        "Limits of the evidence": limits(report),
        "Notes": list(report.notes),
    }
    return {kind: lines for kind, lines in groups.items() if lines}
