"""`hint_bits`, `bits_left` and `bits_used` of dialogues small enough to count by hand."""

from __future__ import annotations

from itertools import product
from math import log2
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.config.rollout import RewardConfig, RolloutConfig
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.dialogue.rollout.hint_information import measure_hints
from rl2f_core.dialogue.rollout.leak_guard import LeakGuard
from rl2f_core.dialogue.rollout.transcript import rollout_from_text
from rl2f_core.dialogue.teachers.contentless import ContentlessTeacher
from rl2f_core.dialogue.teachers.scripted import ScriptedTeacher
from rl2f_core.environments.base import CONTENTLESS, NO_VERDICT_HINT, wrap_answer
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.renderer import ChatRenderer
from rl2f_core.types import Dialogue, Hint, Task, Turn


def build(name: str, **config: Any) -> Any:
    kind = registry.get("environment", name)
    return kind(kind.Config(**config))


CODE = build("secret_code")
TASK = CODE.task_from_gold("each K, Q or Z", "K Q Z")
GUESS = build("guess_number", low=1, size=8)
NUMBER = GUESS.task_from_gold("from 1 to 8", "6")


def turns(environment: Any, task: Task, *said: tuple[str, str | None], teacher: str = "scripted") -> list[Turn]:
    """Turns with attempts and the hints after them."""
    return [
        Turn(
            index=k,
            attempt=wrap_answer(attempt),
            verdict=environment.verify(task, wrap_answer(attempt)),
            hint=None if hint is None else Hint(text=hint, teacher=teacher),
        )
        for k, (attempt, hint) in enumerate(said)
    ]


def bits(environment: Any, task: Task, *said: tuple[str, str | None], **more: Any) -> list[tuple[Any, ...]]:
    """hint_bits, bits_left, bits_used and determines_answer of each turn."""
    measured = measure_hints(environment, task, turns(environment, task, *said), **more)
    return [(turn.hint_bits, turn.bits_left, turn.bits_used, turn.determines_answer) for turn in measured]


def near(x: float) -> Any:
    return pytest.approx(x, abs=1e-5)


def test_a_hint_on_a_code_counts_the_codes_before_and_after_it():
    """27 codes, 26 without the attempt K K K. `K ? ?` leaves 1 · 2 · 2 = 4: log2(26 / 4) = 2.70044 bits, 2 left."""
    assert bits(CODE, TASK, ("K K K", "Correct so far: K ? ?"), ("K Q Q", None)) == [
        (near(log2(26 / 4)), near(2.0), None, False),
        (None, None, near(log2(26 / 4)), False),
    ]


def test_the_second_hint_counts_from_what_the_first_left():
    """4 codes K{Q,Z}{Q,Z} are left; 3 without K Q Q. `K Q ?` leaves K Q Z: log2(3), and it determines the answer."""
    second = bits(CODE, TASK, ("K K K", "Correct so far: K ? ?"), ("K Q Q", "Correct so far: K Q ?"))[1]
    assert second == (near(log2(3)), 0.0, near(log2(26 / 4)), True)


def test_an_attempt_that_ignores_a_statement_uses_the_bits_of_the_others():
    """`K ? ?` on K K K states: place 1 is K, place 2 is not K, place 3 is not K.

    K K Q respects the first and third: 1 · 3 · 2 = 6 codes, none tried before: log2(26 / 6). Q K K respects none.
    Z Q Q respects the second and third: 3 · 2 · 2 = 12: log2(26 / 12).
    """
    used = [
        bits(CODE, TASK, ("K K K", "Correct so far: K ? ?"), (attempt, None))[1][2]
        for attempt in ("K K Q", "Q K K", "Z Q Q", "not a code")
    ]
    assert used == [near(log2(26 / 6)), 0.0, near(log2(26 / 12)), 0.0]


@pytest.mark.parametrize(
    ("hint", "left", "is_true"),
    [
        ("Correct so far: K ? ?", 4, True),
        ("The first letter is K, the others are not.", 9 - 1, True),
        ("Your first letter is right. The second and third are wrong.", 4, True),
        ("Places 2 and 3 are not correct.", 12, True),
        ("The last letter is right.", 9 - 1, False),
        ("The second letter is Z.", 9, False),
    ],
)
def test_statements_in_free_text_count_as_those_of_the_scripted_hint(hint: str, left: int, is_true: bool) -> None:
    """Of 27 codes, a letter leaves 9, without the attempt K K K if it agrees with the letter. The code is K Q Z."""
    (turn, _) = measure_hints(CODE, TASK, turns(CODE, TASK, ("K K K", hint), ("K Q Q", None), teacher="llm"))
    assert (turn.hint_bits, turn.hint_true) == (near(log2(26 / left)), is_true)


@pytest.mark.parametrize("hint", ["Look again.", "Is the second letter right?", "If place 2 is wrong, change it."])
def test_a_text_without_a_statement_is_neither_true_nor_false(hint: str) -> None:
    (turn, _) = measure_hints(CODE, TASK, turns(CODE, TASK, ("K K K", hint), ("K Q Q", None), teacher="llm"))
    assert (turn.hint_bits, turn.hint_true) == (None, None)


def test_with_two_letters_the_attempt_and_the_hint_determine_the_code():
    """8 codes, 7 without A A A; of two letters the refuted one leaves one: log2(7) bits, although no letter is stated.

    With three letters the same hint leaves 4 codes.
    """
    environment = build("secret_code", letters=2)
    task = environment.task_from_gold("each A or B", "A B B")
    assert bits(environment, task, ("A A A", "Correct so far: A ? ?")) == [(near(log2(7)), 0.0, None, True)]


def test_a_number_hint_halves_the_range():
    """1 to 8: without 4, `Too low.` leaves 5, 6, 7, 8: log2(7 / 4). Without 7, `Too high.` leaves 5, 6: log2(3 / 2).

    The guess 3 ignores the only statement of the first hint.
    """
    measured = bits(GUESS, NUMBER, ("4", "Too low."), ("7", "Too high."), ("5", None))
    assert measured[0][:2] == (near(log2(7 / 4)), 2.0)
    assert measured[1][:3] == (near(log2(3 / 2)), 1.0, near(log2(7 / 4)))
    assert measured[2][2] == near(log2(3 / 2))
    assert bits(GUESS, NUMBER, ("4", "Too low."), ("3", None))[1][2] == 0.0


def test_an_arithmetic_hint_states_side_size_and_digits():
    """Sums of two digits: 20 … 198, 179 numbers. A lot is 10 or more.

    After 112, `Too low, by a lot. The tens digit is wrong.` leaves the numbers from 122 that end in 2 and have other
    tens than 1: 122, 132 … 192, 8 numbers of 178.

    142 agrees with all of it. 125 agrees with side and size, not with the last digit: the bits of numbers ≥ 122 whose
    tens digit is not 1, 122 … 198, 77 numbers.
    """
    environment = build("arithmetic")
    task = environment.task_from_gold("47 + 85", "132")
    hint = "Too low, by a lot. The tens digit is wrong."
    assert environment.hint(task, [environment.verify(task, wrap_answer("112"))], None) == hint
    first, second = bits(environment, task, ("112", hint), ("142", None))
    assert first[:2] == (near(log2(178 / 8)), near(3.0))
    assert second[2] == near(log2(178 / 8))
    assert bits(environment, task, ("112", hint), ("125", None))[1][2] == near(log2(178 / 77))


def test_a_contentless_hint_has_no_bits():
    """The verdict is known before it, so it removes nothing."""
    for text in (CONTENTLESS, NO_VERDICT_HINT):
        assert bits(CODE, TASK, ("K K K", text), ("K K Q", None)) == [
            (0.0, near(log2(26)), None, False),
            (None, None, 0.0, False),
        ]


def test_a_verdict_that_is_not_shown_excludes_no_candidate():
    assert bits(CODE, TASK, ("K K K", NO_VERDICT_HINT), verdicts_shown=False)[0][:2] == (0.0, near(log2(27)))


def test_an_unparsable_attempt_excludes_nothing_and_its_hint_has_no_bits():
    assert bits(CODE, TASK, ("?", "Correct so far: ? ? ?"))[0][:2] == (0.0, near(log2(27)))


def test_text_in_other_words_has_no_bits_of_its_own_and_changes_no_later_ones():
    measured = bits(CODE, TASK, ("K K K", "Think harder."), ("K K K", "Correct so far: K ? ?"), ("K Q Z", None))
    assert measured[0] == (None, None, None, False)
    assert measured[1] == (near(log2(26 / 4)), 2.0, None, False)


def test_a_hint_that_contradicts_an_earlier_one_replaces_it():
    """After `K ? ?`, `Q Q ?` on Q Q K leaves no code. Counted alone: of 27 − 2 codes, Q Q Q and Q Q Z remain.

    Q Q K respects one statement of the first hint, that place 2 is not K: 3 · 2 · 3 = 18 codes.
    """
    measured = bits(CODE, TASK, ("K K K", "Correct so far: K ? ?"), ("Q Q K", "Correct so far: Q Q ?"), ("Q Q Z", None))
    assert measured[1] == (near(log2(25 / 2)), 1.0, near(log2(26 / 18)), False)
    assert measured[2][2] == near(log2(25 / 2))


def test_a_hint_that_contradicts_the_problem_has_no_bits():
    """No code has an A. The later hint is counted as if the foreign one had not been given."""
    measured = bits(CODE, TASK, ("K K K", "Correct so far: A ? ?"), ("K Q Q", "Correct so far: K Q ?"))
    assert measured[0] == (None, None, None, False)
    assert measured[1] == (near(log2(25 / 2)), 1.0, None, False)


def test_a_false_hint_that_leaves_one_candidate_does_not_determine_the_answer():
    """`K K ?` on K K Q leaves K K K and K K Z; without K K K it leaves K K Z, which is not the code K Q Z.

    The next hint adds nothing. `K K Z` on Q Q Q, e.g. a shuffled hint, leaves it at once.
    """
    first, second = bits(CODE, TASK, ("K K Q", "Correct so far: K K ?"), ("K K K", "Correct so far: K K ?"))
    assert first == (near(log2(26 / 2)), 1.0, None, False)
    assert second == (0.0, 0.0, near(log2(26 / 2)), False)
    only = bits(CODE, TASK, ("Q Q Q", "Correct so far: K K Z"))[0]
    assert only == (near(log2(26)), 0.0, None, False)


def test_roles_are_counted_before_anything_is_deduced():
    """Two people, 4 assignments, 3 without the attempt. `1 of 2 people is wrong` leaves the 2 at distance 1."""
    environment = build("knights_knaves")
    task = environment.task_from_gold("Some puzzle about Zoey and Owen.", "Zoey is a knight, Owen is a knave")
    measured = bits(environment, task, ("Zoey is a knight, Owen is a knight", "1 of 2 people is wrong."))
    assert measured == [(near(log2(3 / 2)), 1.0, None, False)]


def test_a_matrix_hint_confirms_the_cells_before_the_first_wrong_one():
    """0 1 / 1 1: three cells of 1 or 2, so 8 matrices, 7 without 01 11.

    `The first wrong value in row 2 is too small.` states that 0,1 is right, and that the first wrong cell is 2,1 (then
    2 there, 1 or 2 at 2,2) or 2,2 (2,1 is 1 and 2,2 is 2): 01 21, 01 22, 01 12: 3 matrices.
    The attempt 02 12 ignores the first statement: 2 · 3 = 6 matrices agree with the second, none of them tried.
    """
    environment = build("binary_matrix", smallest=2, largest=2, plain=True)
    task = environment.task_from_gold("0 1\n1 1", "01 12")
    hint = "The first wrong value in row 2 is too small."
    first, second = bits(environment, task, ("01 11", hint), ("01 12", None))
    assert (first[:2], second[2]) == ((near(log2(7 / 3)), near(log2(3))), near(log2(7 / 3)))
    assert bits(environment, task, ("01 11", hint), ("02 12", None))[1][2] == near(log2(7 / 6))


def test_a_path_hint_keeps_the_steps_before_the_error():
    """An open 2 × 3 grid, S at the left and G at the right of the upper row.

    Ways: R R, R D R U, D R R U, D R U R, and `infeasible`: 5 candidates. D R is none of them. `Step 1 is wasted.`
    leaves the two that begin with R: log2(5 / 2). The attempt R L agrees with it and uses all bits.
    """
    environment = build("shortest_path")
    task = environment.task_from_gold("S . G\n. . .", "R R")
    first, second = bits(environment, task, ("D R", "Step 1 is wasted."), ("R L", None))
    assert (first[:2], second[2]) == ((near(log2(5 / 2)), 1.0), near(log2(5 / 2)))
    told = bits(environment, task, ("infeasible", "G can be reached."))
    assert told == [(0.0, 2.0, None, False)]


def test_chance_bits_are_the_mean_of_the_bits_that_all_candidates_use():
    """Two letters, code of 2, attempt A A, hint `A ?`: candidates A B, B A, B B; statements: place 1 is A, 2 is not A.

    A B agrees with both and uses log2(3). B A agrees with none. B B agrees with the second, as do 2 of the 3:
    log2(3 / 2). The mean is .72. In the other problems, each candidate is tried as the next attempt.
    """
    environment = build("secret_code", letters=2, length=2)
    task = environment.task_from_gold("each A or B", "A B")
    (turn,) = measure_hints(environment, task, turns(environment, task, ("A A", "Correct so far: A ?")))
    assert turn.chance_bits == near((log2(3) + 0 + log2(3 / 2)) / 3)

    numbers = build("arithmetic")
    total = numbers.task_from_gold("47 + 85", "132")
    codes = [" ".join(code) for code in product("KQZ", repeat=3)]
    sums = [str(number) for number in range(20, 199)]
    for env, problem, attempt, hint, candidates in (
        (CODE, TASK, "K K K", "Correct so far: K ? ?", codes),
        (numbers, total, "112", "Too low, by a lot. The tens digit is wrong.", sums),
    ):
        others = [each for each in candidates if each != attempt]
        measured = [measure_hints(env, problem, turns(env, problem, (attempt, hint), (each, None))) for each in others]
        mean = sum(second.bits_used or 0.0 for _, second in measured) / len(others)
        assert measured[0][0].chance_bits == pytest.approx(mean, abs=1e-4)


# -- in rollouts -----------------------------------------------------------------------------------------------
def rollout(stop_on_correct: bool, hint: str) -> Dialogue:
    """Two attempts, K K K and K K Q, with the same hint after the first."""
    backend = FakeBackend(FakeBackend.Config(replies=(wrap_answer("K K K"), wrap_answer("K K Q"))))
    engine = RolloutEngine(
        environment=CODE,
        teacher=ContentlessTeacher(ContentlessTeacher.Config(text=hint), CODE),
        guard=LeakGuard.from_config(LeaksConfig(detectors=()), CODE),
        backend=backend,
        renderer=ChatRenderer(backend.tokenizer, CODE.system_prompt()),
        config=RolloutConfig(max_turns=2, max_new_tokens=64, max_seq_len=4096),
        reward=RewardConfig(),
        stop_on_correct=stop_on_correct,
    )
    return engine.run([RolloutRequest(TASK, "d", "g", 0, 0)])[0].dialogue


def test_rollouts_carry_the_bits_of_their_hints():
    """A contentless hint: with an oracle the wrong attempt is excluded before it, without one nothing is."""
    for stop_on_correct, left in ((True, 26), (False, 27)):
        first, second = rollout(stop_on_correct, "Hm.").turns
        assert (first.hint_bits, first.bits_left, second.bits_used) == (0.0, near(log2(left)), 0.0)


def test_demonstrations_and_stored_dialogues_carry_the_bits_of_their_hints():
    backend = FakeBackend(FakeBackend.Config(replies=("",)))
    engine = RolloutEngine(
        environment=CODE,
        teacher=ScriptedTeacher(ScriptedTeacher.Config(), CODE),
        guard=LeakGuard.from_config(LeaksConfig(detectors=()), CODE),
        backend=backend,
        renderer=ChatRenderer(backend.tokenizer, CODE.system_prompt()),
        config=RolloutConfig(max_turns=3, max_new_tokens=64, max_seq_len=4096),
        reward=RewardConfig(),
    )
    request = RolloutRequest(TASK, "d", "g", 0, 0)
    texts = [wrap_answer("K K K"), wrap_answer("K Q Z")]
    dialogue = rollout_from_text(engine, request, texts, ["Correct so far: K ? ?"]).dialogue
    assert [turn.hint_bits for turn in dialogue.turns] == [near(log2(26 / 4)), None]
    assert dialogue.turns[1].bits_used == near(log2(26 / 4))
