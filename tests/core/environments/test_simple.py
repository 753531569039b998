"""What holds for arithmetic, secret_code and guess_number alike, and the last one's own tests."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest
from scripted_attempts import hint, mislead, say, wrong_dialogue

from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic
from rl2f_core.environments.puzzles.numbers.guess_number import GuessNumber, open_interval_player
from rl2f_core.environments.puzzles.secret_code.environment import SecretCode
from rl2f_core.errors import DataError
from rl2f_core.types import SPLITS, Task, Verdict


def arithmetic(**config) -> Arithmetic:
    return Arithmetic(Arithmetic.Config(**config))


def secret_code(**config) -> SecretCode:
    return SecretCode(SecretCode.Config(**config))


def guess_number(**config) -> GuessNumber:
    return GuessNumber(GuessNumber.Config(**config))


ENVIRONMENTS: list[Environment] = [
    arithmetic(operations=("+", "-", "x"), digits=3),
    arithmetic(digits=4),
    secret_code(),
    secret_code(length=4, letters=5),
    guess_number(),
    guess_number(size=40),
]
every_environment = pytest.mark.parametrize(
    "environment", ENVIRONMENTS, ids=lambda e: f"{e.name}-{ENVIRONMENTS.index(e)}"
)


def code(answer: str, letters: str = "K, Q or Z") -> Task:
    return secret_code().task_from_gold(f"each {letters}", answer)


def number(low: int, high: int, gold: int) -> Task:
    return guess_number().task_from_gold(f"from {low} to {high}", str(gold))


# -- what holds for all three ----------------------------------------------------------------------------------
@pytest.mark.slow
@every_environment
def test_the_splits_share_no_task_among_two_thousand_each(environment):
    keys = {split: {environment.canonical(environment.task(split, i)) for i in range(2000)} for split in SPLITS}
    collisions = sum(len(keys[a] & keys[b]) for a, b in (SPLITS[:2], SPLITS[1:], SPLITS[::2]))
    print(f"{environment.name}: {collisions} collisions among {[len(k) for k in keys.values()]} distinct tasks")
    assert collisions == 0
    assert all(len(k) > 500 for k in keys.values())


@every_environment
def test_seed_split_and_index_fix_the_task(environment):
    again = type(environment)(environment.config)
    other = type(environment)(environment.config.model_copy(update={"seed": 1}))
    for split in SPLITS:
        assert [environment.task(split, i) for i in range(20)] == [again.task(split, i) for i in range(20)]
        assert [environment.task(split, i) for i in range(20)] != [other.task(split, i) for i in range(20)]
        assert environment.task(split, 7).split == split


@every_environment
def test_gold_scores_one_with_distance_zero(environment):
    for i in range(200):
        task = environment.task("train", i)
        verdict = environment.verify(task, wrap_answer(environment.gold_answer(task)))
        assert (verdict.correct, verdict.score, verdict.distance, verdict.well_formed) == (True, 1.0, 0.0, True)
        assert verdict.parsed == environment.gold_answer(task)
        right = environment.simulate_attempt(task, [], random.Random(i), follow_hint=bool(i % 2), correct=True)
        assert environment.verify(task, right).correct


@every_environment
def test_the_answer_of_another_task_is_wrong_and_scores_below_one(environment):
    tasks = [environment.task("test", i) for i in range(100)]
    for task, other in pairwise(tasks):
        if environment.gold_answer(task) != environment.gold_answer(other):
            verdict = environment.verify(task, wrap_answer(environment.gold_answer(other)))
            assert not verdict.correct and verdict.score < 1
            assert verdict.distance is None or 0 < verdict.distance <= 1


@every_environment
def test_imitated_attempts_are_well_formed(environment):
    rng = random.Random(3)
    for i in range(300):
        task = environment.task("train", i)
        verdicts = wrong_dialogue(environment, task, rng, rng.randrange(4))
        attempt = environment.simulate_attempt(task, verdicts, rng, follow_hint=bool(i % 2), correct=False)
        assert environment.verify(task, attempt).well_formed


@every_environment
def test_the_same_chance_gives_the_same_words(environment):
    task = environment.task("train", 0)
    verdicts = wrong_dialogue(environment, task, random.Random(1), 2)
    for speak in (environment.hint, environment.misleading_hint):
        assert speak(task, verdicts, random.Random(5)) == speak(task, verdicts, random.Random(5))
    for follow in (True, False):
        draws = [
            environment.simulate_attempt(task, verdicts, random.Random(5), follow_hint=follow, correct=False)
            for _ in range(2)
        ]
        assert draws[0] == draws[1]


@every_environment
def test_the_misleading_hint_differs_from_the_true_one_and_neither_holds_the_answer(environment):
    rng = random.Random(2)
    for i in range(300):
        task = environment.task("train", i)
        verdicts = wrong_dialogue(environment, task, rng, 3) or [environment.verify(task, "?")]
        true, false = environment.hint(task, verdicts, rng), environment.misleading_hint(task, verdicts, rng)
        assert true != false
        for text in (true, false):
            read = [parsed for _, _, parsed in environment.find_answers(task, text)]
            assert not any(environment.score_parsed(task, parsed).correct for parsed in read)


@every_environment
def test_hints_exist_after_an_attempt_without_an_answer(environment):
    task = environment.task("train", 0)
    unparsable = [environment.verify(task, "I do not know.")]
    assert unparsable[0].parsed is None
    rng = random.Random(0)
    assert environment.hint(task, unparsable, rng) != environment.misleading_hint(task, unparsable, rng)
    assert environment.verify(
        task, environment.simulate_attempt(task, unparsable, rng, follow_hint=True, correct=False)
    ).well_formed


@every_environment
def test_prompt_and_public_half_hold_nothing_privileged(environment):
    allowed = {"a", "b", "operation", "letters", "length", "low", "high"}
    for i in range(300):
        task = environment.task("train", i)
        assert set(task.public) <= allowed
        prompt = environment.prompt(task.public)
        if environment.name == "arithmetic":
            words = prompt.rstrip("?").split()
            assert environment.gold_answer(task) not in words or environment.gold_answer(task) in (words[2], words[4])
        else:
            other = environment.task("train", i + 1)
            same_public = task.model_copy(update={"privileged": other.privileged})
            assert environment.prompt(same_public.public) == prompt and len(prompt) < 80


def test_tasks_that_differ_only_in_the_answer_have_one_prompt():
    environment = guess_number()
    assert environment.prompt(number(38, 53, 38).public) == environment.prompt(number(38, 53, 50).public)
    codes = secret_code()
    assert codes.prompt(code("K Q Z").public) == codes.prompt(code("Z Z Z").public)


@every_environment
def test_a_task_can_be_read_back_from_its_prompt_and_gold(environment):
    for i in range(100):
        task = environment.task("validation", i)
        read = environment.task_from_gold(environment.prompt(task.public), environment.gold_answer(task))
        assert environment.canonical(read) == environment.canonical(task)
        assert (read.public, read.privileged) == (task.public, task.privileged)


@every_environment
def test_tasks_survive_json(environment):
    task = environment.task("train", 1)
    assert Task.model_validate(json.loads(task.model_dump_json())) == task


@every_environment
def test_the_prompts_are_short(environment):
    words = f"{environment.system_prompt()} {environment.prompt(environment.task('train', 0).public)}".split()
    assert len(words) <= 25


@every_environment
def test_bounds_are_ordered_and_never_fall(environment):
    lines = [environment.bounds(turns) for turns in (1, 2, 3, 5, 8, 5000)]
    if environment.name != "arithmetic":
        for bounds in lines:
            assert 0 < bounds.without_hints < bounds.with_hints + 1e-12 <= 1 + 1e-12
            assert 0 < bounds.copying < bounds.with_hints + 1e-12
        assert lines == sorted(lines)
    else:
        assert lines == [None] * 6


@pytest.mark.slow
@every_environment
def test_the_time_to_find_candidates_is_linear_in_the_text(environment):
    task = environment.task("train", 0)
    letters = "".join(task.public.get("letters", ["A"]))
    for unit in ("1", "1 ", "1+", "1,", ",111", "a", letters, f"{letters} ", f"{letters[0]} ", " ", "- ", "1.0"):
        text = unit * ((10_000 if unit == "1+" else 100_000) // len(unit))
        start = time.process_time()
        environment.find_answers(task, text)
        assert time.process_time() - start < 3, unit  # a quadratic scan takes minutes


@pytest.mark.slow
def test_the_simple_environments_load_without_torch():
    names = ", ".join(f"rl2f_core.environments.puzzles.{n}" for n in ("numbers", "secret_code"))
    subprocess.run([sys.executable, "-c", f"import sys, {names}; assert 'torch' not in sys.modules"], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", [secret_code(avoid=0), secret_code(length=2, letters=4, avoid=0), guess_number()]
)
def test_the_copying_line_is_that_of_the_imitated_follower(environment):
    rng, games, turns = random.Random(8), 1500, 4
    solved = [0] * turns
    for i in range(games):
        task = environment.task("train", i)
        verdicts: list[Verdict] = []
        for turn in range(turns):
            verdicts.append(
                environment.verify(
                    task, environment.simulate_attempt(task, verdicts, rng, follow_hint=True, correct=False)
                )
            )
            if verdicts[-1].correct:
                for later in range(turn, turns):
                    solved[later] += 1
                break
    for turn in range(turns):
        assert solved[turn] / games == pytest.approx(environment.bounds(turn + 1).copying, abs=0.04)


# -- guess_number ----------------------------------------------------------------------------------------------
def test_hints_say_low_and_high_and_misleading_ones_the_opposite():
    environment, task = guess_number(), number(38, 53, 45)
    for guess, true, false in (
        ("38", "Too low.", "Too high."),
        ("53", "Too high.", "Too low."),
        ("900", "Too high.", "Too low."),
    ):
        assert hint(environment, task, guess) == true
        assert mislead(environment, task, guess) == false
    assert environment.prompt(task.public) == "I think of a whole number from 38 to 53. Guess it."


def test_the_distance_of_a_guess_is_its_share_of_the_range():
    distances = [v.distance for v in say(guess_number(), number(38, 53, 45), "45", "44", "53", "38", "1000", "-3")]
    assert distances == pytest.approx([0, 1 / 15, 8 / 15, 7 / 15, 1, 1])
    outside = say(guess_number(), number(38, 53, 45), "1000")[0]
    assert outside.well_formed and outside.parsed == "1000" and outside.score == 0


def test_a_follower_guesses_in_the_interval_that_all_hints_leave_open():
    environment, rng = guess_number(size=30), random.Random(9)
    for i in range(1000):
        task = environment.task("train", i)
        verdicts = wrong_dialogue(environment, task, rng, 1 + i % 3)
        low, high, gold = task.public["low"], task.public["high"], int(environment.gold_answer(task))
        for guess in (int(v.parsed) for v in verdicts):
            low, high = (max(low, guess + 1), high) if guess < gold else (low, min(high, guess - 1))
        new = int(
            environment.verify(
                task, environment.simulate_attempt(task, verdicts, rng, follow_hint=True, correct=False)
            ).parsed
        )
        assert low <= new <= high


def test_a_guesser_that_ignores_hints_repeats_nothing_while_there_are_others():
    environment, task, rng = guess_number(), number(5, 8, 6), random.Random(0)
    verdicts: list[Verdict] = []
    for _ in range(4):
        verdicts.append(
            environment.verify(
                task, environment.simulate_attempt(task, verdicts, rng, follow_hint=False, correct=False)
            )
        )
    assert {v.parsed for v in verdicts} == {"5", "6", "7", "8"}
    assert environment.verify(
        task, environment.simulate_attempt(task, verdicts, rng, follow_hint=False, correct=False)
    ).well_formed


@pytest.mark.parametrize("problem", ["38 to 53", "38-53", "between 38 and 53", "a number in 38..53", "from 38 to\n53"])
def test_the_range_is_read_from_a_bare_problem(problem):
    assert guess_number().task_from_gold(problem, "45").public == {"low": 38, "high": 53}


def test_a_range_may_be_negative_and_a_fixed_one_needs_no_words():
    assert guess_number().task_from_gold("from -3 to 12", "-2").public == {"low": -3, "high": 12}
    assert guess_number(low=10, size=5).task_from_gold("guess", "12").public == {"low": 10, "high": 14}


@pytest.mark.parametrize(
    "problem, answer", [("guess", "5"), ("1 to 9", "10"), ("1 to 9", "x"), ("9 to 1", "5"), ("", "")]
)
def test_a_number_that_cannot_be_is_refused(problem, answer):
    with pytest.raises(DataError):
        guess_number().task_from_gold(problem, answer)


@pytest.mark.slow
def test_a_fixed_range_splits_its_numbers_and_says_when_there_are_too_few():
    environment = guess_number(low=1, size=100)
    seen = {split: {environment.canonical(environment.task(split, i)) for i in range(1500)} for split in SPLITS}
    assert sum(map(len, seen.values())) == len(set.union(*seen.values())) == 100
    with pytest.raises(DataError, match="too small to split"):
        for split in SPLITS:
            guess_number(low=1, size=2).task(split, 0)


def test_guess_bounds_match_numbers_worked_out_by_hand():
    environment = guess_number(size=16)
    assert environment.bounds(1) == pytest.approx((1 / 16, 1 / 16, 1 / 16))
    assert environment.bounds(4)[:2] == pytest.approx((15 / 16, 4 / 16))
    assert environment.bounds(5).with_hints == environment.bounds(16).without_hints == 1
    # p(2,1) = 1/2; p(2,2) = 1; p(3,2) = 1/3 + 2/9 (1·1 + 2·1/2) = 7/9; p(4,2) = 1/4 + 1/8 (1 + 1 + 1) = 5/8
    assert [open_interval_player(n, t) for n, t in ((2, 1), (2, 2), (3, 2), (4, 2))] == pytest.approx(
        [1 / 2, 1, 7 / 9, 5 / 8]
    )


@pytest.mark.parametrize("size", [2, 5, 8, 12])
def test_the_best_of_all_searchers_reaches_the_guess_bound(size):
    @cache
    def best(n: int, left: int) -> int:
        if not n or not left:
            return 0
        return max(1 + best(g, left - 1) + best(n - 1 - g, left - 1) for g in range(n))

    for turns in range(1, 6):
        assert best(size, turns) / size == pytest.approx(guess_number(size=size).bounds(turns).with_hints)


@pytest.mark.parametrize("config", [{}, {"size": 5, "max_low": 2}, {"size": 7, "max_low": 6}, {"low": 3, "size": 9}])
def test_the_guess_floor_is_the_best_constant(config):
    environment = guess_number(**config)
    size, low = environment.config.size, environment.config.low
    lows = range(environment.config.max_low + 1) if low is None else [low]
    counts = Counter(start + k for start in lows for k in range(size))
    floor = environment.constant_baseline()
    assert floor.score == pytest.approx(max(counts.values()) / counts.total())
    assert floor.score == pytest.approx(counts[int(floor.answer)] / counts.total())
