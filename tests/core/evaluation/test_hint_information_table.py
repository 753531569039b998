"""The table of bits and efficiency in the evaluation report."""

from __future__ import annotations

from rl2f_core import registry
from rl2f_core.evaluation.report import EvaluatedTasks, EvaluationReport, build_report, tables
from rl2f_core.types import Dialogue, Hint, StopReason, Turn, Verdict


def dialogue(task: str, bits: float | None, left: float | None, used: float | None) -> Dialogue:
    """A wrong attempt with a hint, and a second wrong attempt."""
    wrong = Verdict(correct=False, score=0.0, parsed="A", well_formed=True)
    turns = (
        Turn(
            index=0,
            attempt="A",
            verdict=wrong,
            hint=Hint(text="h", teacher="scripted"),
            hint_bits=bits,
            bits_left=left,
            chance_bits=bits and 0.5,
        ),
        Turn(index=1, attempt="A", verdict=wrong, bits_used=used),
    )
    return Dialogue(id=task, task_id=task, group=task, index=0, turns=turns, stop_reason=StopReason.EXHAUSTED)


def report(*hints: Dialogue) -> EvaluationReport:
    kind = registry.get("environment", "secret_code")
    contentless = [dialogue(each.task_id, None, None, None) for each in hints]
    dialogues = {"rl2f@24": {"hints": hints, "contentless": contentless}}
    return build_report(kind(kind.Config()), dialogues, 2, EvaluatedTasks(tasks=len(hints), samples=1))


def test_report_states_bits_and_efficiency_of_hints():
    """Two hints of 2 bits with 1 left; 2 bits of the first and 1 bit of the second are used: 3 / 4, 1 / 4 by chance.

    The condition without bits has no row.
    """
    made = report(dialogue("a", 2.0, 1.0, 2.0), dialogue("b", 2.0, 1.0, 1.0))
    header, (row,) = next((header, rows) for title, header, rows in tables(made) if "Information" in title)
    assert header == [
        "checkpoint",
        "condition",
        "hint_bits",
        "bits_left",
        "efficiency",
        "efficiency_chance",
        "determined_rate",
    ]
    assert [cell.split(" ")[0] for cell in row] == ["rl2f@24", "hints", "2.00", "1.00", ".75", ".25", ".00"]


def test_a_report_without_bits_has_no_table_of_them():
    assert not any("Information" in title for title, _, _ in tables(report(dialogue("a", None, None, None))))
