"""Rewards: presets, progress and the leak penalty, term by term and in total."""

from __future__ import annotations

from itertools import pairwise

import pytest
from pydantic import ValidationError

from rl2f_core.config.rollout import RewardConfig
from rl2f_core.dialogue.rollout.rewards import charge_unfinished, turn_rewards
from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.puzzles.knights_knaves.environment import KnightsKnaves
from rl2f_core.environments.puzzles.secret_code.environment import SecretCode
from rl2f_core.errors import RunError
from rl2f_core.types import Hint, LeakReport, RewardTerm, StopReason, Turn, Verdict

RIGHT = Verdict(correct=True, score=1, parsed="A B", well_formed=True, distance=0)
WRONG = Verdict(correct=False, score=0.5, parsed="A A", well_formed=True, distance=0.5)
UNPARSABLE = Verdict(correct=False, score=0)
RIGHT_BUT_ILL_FORMED = Verdict(correct=True, score=1, parsed="A B", well_formed=False, distance=0)
WRONG_AND_ILL_FORMED = Verdict(correct=False, score=0, parsed="A A", well_formed=False, distance=0.5)

STATEMENTS = "Zoey says that Oliver is a knave. Oliver says that Zoey and Oliver are knights."
REASONED = "If Zoey lies, Oliver is a knight and then Zoey is a knight too, a contradiction; so Zoey tells the truth."


def terms(config: RewardConfig, *args: Verdict | Hint | None) -> dict[str, float]:
    return {term.name: term.value for term in turn_rewards(config, *args)}  # type: ignore[arg-type]


def total(preset: str, verdict: Verdict) -> float:
    return sum(term.value for term in turn_rewards(RewardConfig(preset=preset), verdict))


def hint(leaked: bool | None) -> Hint:
    return Hint(text="x", teacher="scripted", leak=None if leaked is None else LeakReport(leaked=leaked))


def at(distance: float | None) -> Verdict:
    return Verdict(correct=distance == 0, score=0, parsed=None if distance is None else "x", distance=distance)


# -- presets ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("verdict", "binary", "format_", "logic_rl"),
    [
        # correct   correct + 0.1·(well-formed − 1)   ±1 for the format, +2 / −1.5 / −2 for the answer
        (RIGHT, 1, 1 + 0.1 * 0, 1 + 2),
        (WRONG, 0, 0 + 0.1 * 0, 1 - 1.5),
        (UNPARSABLE, 0, 0 + 0.1 * -1, -1 - 2),
        (RIGHT_BUT_ILL_FORMED, 1, 1 + 0.1 * -1, -1 - 2),
        (WRONG_AND_ILL_FORMED, 0, 0 + 0.1 * -1, -1 - 2),
    ],
)
def test_totals_of_the_presets(verdict: Verdict, binary: float, format_: float, logic_rl: float):
    assert total("binary", verdict) == binary
    assert total("format", verdict) == pytest.approx(format_, abs=1e-12)
    assert total("logic_rl", verdict) == logic_rl


def test_logic_rl_is_minus_one_for_a_good_format_without_an_answer():
    empty = Verdict(correct=False, score=0, parsed=None, well_formed=True)
    assert total("logic_rl", empty) == 1 - 2


def test_every_term_is_stored_with_score_and_weight():
    assert turn_rewards(RewardConfig(preset="format"), UNPARSABLE) == (
        RewardTerm(name="correct", score=0),
        RewardTerm(name="format", score=-1, weight=0.1),
    )
    assert turn_rewards(RewardConfig(preset="logic_rl"), WRONG) == (
        RewardTerm(name="format", score=1),
        RewardTerm(name="answer", score=-1.5),
    )


def test_an_unknown_preset_or_a_negative_weight_is_refused():
    for bad in ({"preset": "generous"}, {"progress": -0.1}, {"leak_penalty": -1}):
        with pytest.raises(ValidationError):
            RewardConfig(**bad)


# -- with real verifiers ---------------------------------------------------------------------------------------
def judged(environment: Environment, problem: str, gold: str, attempt: str) -> Verdict:
    return environment.verify(environment.task_from_gold(problem, gold), attempt)


@pytest.mark.parametrize(
    ("attempt", "binary", "format_", "logic_rl"),
    [
        (f"<think>{REASONED}</think>" + wrap_answer("Zoey is a knight, Oliver is a knave"), 1, 1, 3),
        (f"<think>{REASONED}</think>" + wrap_answer("Zoey is a knave, Oliver is a knight"), 0, 0, -0.5),
        ("<think></think>" + wrap_answer("Zoey is a knight, Oliver is a knave"), 1, 0.9, -3),
        (wrap_answer("Zoey is a knight, Oliver is a knave"), 1, 0.9, -3),
        (f"<think>{REASONED}</think>" + wrap_answer("Zoey is a knight"), 0, -0.1, -3),
        (f"<think>{REASONED}</think>", 0, -0.1, -3),
    ],
)
def test_an_empty_think_block_costs_the_format_and_the_answer_of_logic_rl(
    attempt: str, binary: float, format_: float, logic_rl: float
):
    environment = KnightsKnaves(KnightsKnaves.Config(think=True))
    verdict = judged(environment, STATEMENTS, "Zoey=knight; Oliver=knave", attempt)
    assert (total("binary", verdict), total("logic_rl", verdict)) == (binary, logic_rl)
    assert total("format", verdict) == pytest.approx(format_, abs=1e-12)


def test_progress_of_secret_code_is_the_fraction_of_new_correct_positions():
    environment, problem = SecretCode(SecretCode.Config()), "Find the code: 3 letters, each K, Q or Z."
    said = ["Z Z Q", "K Z Q", "no idea", "K Q Q", "K Q Z"]
    verdicts = [judged(environment, problem, "K Q Z", wrap_answer(text)) for text in said]
    assert [v.distance for v in verdicts] == pytest.approx([1, 2 / 3, None, 1 / 3, 0])
    config = RewardConfig(progress_weight=0.3)
    won = [terms(config, now, before)["progress"] for before, now in pairwise(verdicts)]
    #      1 − 2/3   2/3 − 1    1 − 1/3    1/3 − 0, each times 0.3
    assert won == pytest.approx([0.1, -0.1, 0.2, 0.1])


# -- progress --------------------------------------------------------------------------------------------------
def test_progress_telescopes_over_detours():
    config = RewardConfig(progress_weight=0.5)
    path = [at(d) for d in (0.8, 0.2, None, 0.6, 0.1, 0.1, 0.0)]
    gained = [terms(config, now, before)["progress"] for before, now in pairwise(path)]
    # 0.5 · (0.6, −0.8, 0.4, 0.5, 0, 0.1)
    assert gained == pytest.approx([0.3, -0.4, 0.2, 0.25, 0, 0.05])
    assert sum(gained) == pytest.approx(0.5 * (0.8 - 0.0))


def test_the_first_attempt_has_no_progress_term():
    assert terms(RewardConfig(progress_weight=1), at(0.2)) == {"correct": 0}


def test_an_unparsable_attempt_has_distance_one():
    config = RewardConfig(progress_weight=1)
    assert terms(config, at(0.25), at(None))["progress"] == 0.75
    assert terms(config, at(None), at(0.25))["progress"] == -0.75


def test_without_distances_there_is_no_progress_term():
    assert "progress" not in terms(RewardConfig(progress_weight=1), at(None), at(None))


def test_without_a_weight_there_is_no_progress_term():
    assert "progress" not in terms(RewardConfig(), at(0.1), at(0.9))


# -- leak penalty ----------------------------------------------------------------------------------------------
def test_a_turn_after_a_leaking_hint_has_the_leak_penalty():
    config = RewardConfig(preset="format", leak_penalty=0.25)
    assert terms(config, RIGHT, WRONG, hint(True)) == {"correct": 1, "format": 0, "leak_penalty": -0.25}
    assert turn_rewards(config, RIGHT, WRONG, hint(True))[-1] == RewardTerm(name="leak_penalty", score=-1, weight=0.25)


@pytest.mark.parametrize("before", [None, hint(None), hint(False)])
def test_turns_without_a_leaking_hint_have_no_penalty(before: Hint | None):
    assert "leak_penalty" not in terms(RewardConfig(leak_penalty=0.25), RIGHT, WRONG, before)


@pytest.mark.parametrize("text", ["The code is […].", "That is not correct. Try again."])
def test_a_turn_after_a_replaced_leak_has_no_penalty_because_the_student_did_not_read_it(text: str):
    replaced = Hint(text=text, feedback="The code is A B.", teacher="llm", leak=LeakReport(leaked=True))
    assert "leak_penalty" not in terms(RewardConfig(leak_penalty=0.25), RIGHT, WRONG, replaced)


def test_an_unfinished_reward_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch):
    environment = SecretCode(SecretCode.Config())
    monkeypatch.setattr(SecretCode, "unfinished_reward", lambda self, task: float("nan"))
    rewards = (RewardTerm(name="environment", score=0.0),)
    turn = Turn(index=0, attempt="x", verdict=Verdict(correct=False, score=0.0), rewards=rewards)
    with pytest.raises(RunError, match=r"SecretCode\.unfinished_reward is not a finite number"):
        charge_unfinished(environment, environment.task("train", 0), (turn,), StopReason.EXHAUSTED)


def test_without_a_weight_there_is_no_leak_penalty():
    assert terms(RewardConfig(), RIGHT, WRONG, hint(True)) == {"correct": 1}


def test_the_reward_is_the_sum_of_all_terms():
    config = RewardConfig(preset="logic_rl", progress_weight=0.4, leak_penalty=0.5)
    # −0.5 for a wrong answer in good form, 0.4·(1 − 0.5) of progress, −0.5 for the leak
    assert sum(terms(config, WRONG, UNPARSABLE, hint(True)).values()) == pytest.approx(-0.5 + 0.2 - 0.5)


def test_repeating_an_incorrect_answer_has_the_repeat_penalty():
    config = RewardConfig(repeat_answer_penalty=0.2)
    before = Verdict(correct=False, score=0.0, parsed="7", well_formed=True)

    def total(verdict: Verdict) -> float:
        return sum(term.value for term in turn_rewards(config, verdict, before))

    assert total(before) == pytest.approx(-0.2)
    assert total(before.model_copy(update={"parsed": "8"})) == 0.0
    assert total(Verdict(correct=True, score=1.0, parsed="8", well_formed=True)) == 1.0
    assert total(Verdict(correct=False, score=0.0)) == 0.0, "two unparsable attempts are no repeated answer"
    assert sum(t.value for t in turn_rewards(config, before)) == 0.0, "the first attempt repeats nothing"
