"""No hint of the scripted teacher is called a leak."""

from __future__ import annotations

import pytest
from leak_dialogues import WORLDS, flagged

MORE_WORLDS = ("gsm_symbolic", "reasoning_gym", "math", "code", "household", "auto_explore")


def spotless(world: str, dialogues: int) -> int:
    read = 0
    for query, report in flagged(world, "scripted", dialogues):
        assert not report.leaked and report.answer_fraction == 0, (
            query.task.public,
            query.attempts,
            query.hint,
            report,
        )
        read += 1
    return read


@pytest.mark.parametrize("world", WORLDS)
def test_scripted_hints_of_two_hundred_dialogues_do_not_leak(world: str):
    assert spotless(world, 200) > 300


@pytest.mark.slow
@pytest.mark.parametrize("world", (*WORLDS, *MORE_WORLDS))
def test_scripted_hints_of_ten_thousand_dialogues_do_not_leak(world: str):
    assert spotless(world, 10_000) > 15_000
