"""The `secret_code` environment."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations, product

import pytest
from pydantic import ValidationError
from scripted_attempts import hint, mislead

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.puzzles.secret_code.environment import SecretCode
from rl2f_core.errors import DataError
from rl2f_core.types import SPLITS, ConstantBaseline, Task, Verdict


def secret_code(**config) -> SecretCode:
    return SecretCode(SecretCode.Config(**config))


def code(answer: str, letters: str = "K, Q or Z") -> Task:
    return secret_code().task_from_gold(f"each {letters}", answer)


# -- secret_code -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("said", ["KQZ", "K Q Z", "K, Q, Z", "K,Q,Z", "K-Q-Z", "k q z", "kQz", "  K  Q  Z\n"])
def test_a_code_is_accepted_in_every_usual_form(said):
    verdict = secret_code().verify(code("K Q Z"), wrap_answer(said))
    assert verdict.correct and verdict.parsed == "K Q Z"


@pytest.mark.parametrize(
    "said", ["K Q", "K Q Z K", "K Q A", "K Q ?", "K, Q Z", "K.Q.Z", "Ｋ Ｑ Ｚ", "\u212a Q Z", "KQZ.", ""]
)
def test_a_code_in_any_other_form_is_unparsable(said):
    verdict = secret_code().verify(code("K Q Z"), wrap_answer(said))
    assert (verdict.parsed, verdict.score, verdict.well_formed, verdict.distance) == (None, 0.0, False, None)


def test_the_verdict_names_the_parts_and_the_right_ones():
    verdict = secret_code().verify(code("K Q Z"), wrap_answer("K Z Z"))
    assert verdict.parts == {"1": "K", "2": "Z", "3": "Z"}
    assert verdict.correct_parts == ("1", "3")
    assert (verdict.score, verdict.distance) == pytest.approx((2 / 3, 1 / 3))
    assert secret_code().verify(code("K Q Z"), wrap_answer("Z K Q")).score == 0


def test_the_hint_shows_the_right_places_of_the_last_attempt_alone():
    environment, task = secret_code(), code("K Q Z")
    assert hint(environment, task, "K Z Z") == "Correct so far: K ? Z"
    assert hint(environment, task, "K Z Z", "Z Q K") == "Correct so far: ? Q ?"
    assert hint(environment, task, "Z K Q") == "Correct so far: ? ? ?"
    assert hint(environment, task, "K Z Z", "no code") == "Correct so far: ? ? ?"


def test_a_misleading_code_hint_confirms_wrong_places_only():
    environment, task = secret_code(), code("K Q Z")
    assert mislead(environment, task, "K Z Z") == "Correct so far: ? Z ?"
    gold = ["K", "Q", "Z"]
    shown = {mislead(environment, task, "Z K Q", seed=seed) for seed in range(50)}
    assert len(shown) > 3
    for text in shown | {mislead(environment, task, "no code", seed=seed) for seed in range(20)}:
        places = text.removeprefix("Correct so far: ").split()
        assert set(places) != {"?"}
        assert all(letter != right for letter, right in zip(places, gold, strict=True))


def test_prompt_and_system_message_of_a_code_are_neutral():
    assert secret_code().prompt(code("K Q Z").public) == "Find the code: 3 letters, each K, Q or Z."
    assert secret_code(length=1, alphabet="AB").prompt({"letters": ["A", "B"], "length": 1}).endswith("each A or B.")
    assert secret_code().system_prompt() == "Reply as <answer>? ? ?</answer>."


@pytest.mark.slow
def test_a_follower_keeps_every_confirmed_place():
    for environment in (secret_code(), secret_code(length=4, letters=5, avoid=0), secret_code(avoid=1)):
        rng = random.Random(6)
        for i in range(1000):
            task = environment.task("train", i)
            last = environment.verify(
                task, environment.simulate_attempt(task, [], rng, follow_hint=False, correct=False)
            )
            new = environment.verify(
                task, environment.simulate_attempt(task, [last], rng, follow_hint=True, correct=False)
            )
            assert set(last.correct_parts) <= set(new.correct_parts)
            if environment.config.avoid == 1:
                wrong = set(last.parts) - set(last.correct_parts)
                assert all(new.parts[place] != last.parts[place] for place in wrong)


def test_a_student_that_ignores_hints_draws_a_fresh_code_while_there_is_one():
    environment = secret_code(length=2, alphabet="AB")
    task = environment.task_from_gold("", "A A")
    rng = random.Random(0)
    verdicts: list[Verdict] = []
    for _ in range(4):
        verdicts.append(
            environment.verify(
                task, environment.simulate_attempt(task, verdicts, rng, follow_hint=False, correct=False)
            )
        )
    assert len({v.parsed for v in verdicts}) == 4
    assert environment.verify(
        task, environment.simulate_attempt(task, verdicts, rng, follow_hint=False, correct=False)
    ).well_formed


@pytest.mark.parametrize("problem", ["each K, Q or Z", "K Q Z", "KQZ", "letters: Z, Q and K.", "A code of K, Q or Z"])
def test_the_alphabet_is_read_from_a_bare_problem(problem):
    task = secret_code().task_from_gold(problem, "k-q-z")
    assert task.public["letters"] == ["K", "Q", "Z"] and task.privileged["code"] == "K Q Z"


@pytest.mark.parametrize(
    "problem, answer",
    [("", "K Q Z"), ("find it", "K"), ("K Q Z", "K Q A"), ("K Q Z", ""), ("4 letters, each K or Q", "K Q")],
)
def test_a_code_that_cannot_be_is_refused(problem, answer):
    with pytest.raises(DataError):
        secret_code().task_from_gold(problem, answer)


def test_a_fixed_alphabet_splits_its_codes_and_says_when_there_are_too_few():
    environment = secret_code(alphabet="ABC", length=3)
    seen = {split: {environment.canonical(environment.task(split, i)) for i in range(300)} for split in SPLITS}
    assert sum(map(len, seen.values())) == len(set.union(*seen.values())) == 27
    assert environment.config.letters == 3
    with pytest.raises(DataError, match="too small to split"):
        for split in SPLITS:
            secret_code(alphabet="AB", length=1).task(split, 0)


@pytest.mark.parametrize(
    "config", [{"alphabet": "AAB"}, {"alphabet": "ab"}, {"alphabet": "A"}, {"alphabet": "ABC", "letters": 4},
               {"letters": 1}, {"length": 0}, {"lenght": 3}]
)  # fmt: skip
def test_an_impossible_code_level_is_refused(config):
    with pytest.raises(ValidationError):
        secret_code(**config)


def test_a_fixed_alphabet_sets_the_count_and_survives_a_round_trip():
    config = SecretCode.Config(alphabet="ABCD")
    assert config.letters == 4
    assert SecretCode.Config.model_validate(config.model_dump()) == config


def test_codes_are_found_in_hints_as_a_reader_would_see_them():
    environment, task = secret_code(), code("K Q Z")

    def read(text):
        return [(text[a:b], parsed) for a, b, parsed in environment.find_answers(task, text)]

    assert read("The code is KQZ.") == [("KQZ", "K Q Z")]
    assert read("try k, q, z!") == [("k, q, z", "K Q Z")]
    assert read("K then Q, then Z") == [("K then Q, then Z", "K Q Z")]
    assert read("K Q Z K") == [("K Q Z", "K Q Z"), ("Q Z K", "Q Z K")]
    assert read("**K** - **Q** - **Z**") == [("K** - **Q** - **Z", "K Q Z")]
    for nothing in ("Correct so far: K ? Z", "K Q ? Z", "K … Q … Z", "each K, Q or Z", "KQZK", "K Q A Z", "K Q _ Z"):
        assert read(nothing) == []


@pytest.mark.parametrize(
    ("letters", "clean", "told"),
    [
        ("HM", "Hmm, no.|Hmm. Not yet.|hmm, look again|Look again. Hmm.|Hmm…  think.",
         "hmm|Hmm.|**Hmm**, no|HMM, no.|The answer is Hmm.|It is \"Hmm\".|Try Hmm.|Hmm is the code.|"
         "The answer: hmm|Not MHH. HMM!"),
        ("AH", "Ah, no.|Ah! Look again.|Ah no|ah - close", "AH|Ah is right.|Try AH|The code is ah.|\"Ah\", of course."),
        ("KO", "OK, but look again.|Ok. The first is wrong", "OK|The code is OK.|Ok works."),
    ],
)  # fmt: skip
def test_what_is_said_before_speaking_is_no_code_unless_it_is_called_one(letters: str, clean: str, told: str):
    gold = {"HM": "H M M", "AH": "A H", "KO": "O K"}[letters]
    env = SecretCode(SecretCode.Config(length=len(gold.split()), letters=2))
    task = env.task_from_gold("each " + ", ".join(letters), gold)
    assert [hint for hint in clean.split("|") if gold in [said for *_, said in env.find_answers(task, hint)]] == []
    assert [hint for hint in told.split("|") if gold not in [said for *_, said in env.find_answers(task, hint)]] == []


def test_the_words_of_the_hint_itself_are_no_code():
    task = secret_code().task_from_gold("each A, F or R", "F A R")
    assert secret_code().find_answers(task, "Correct so far: ? ? R") == []
    assert secret_code().find_answers(task, "far")[0][2] == "F A R"


def test_code_bounds_match_numbers_worked_out_by_hand():
    environment = secret_code(length=3, letters=3)
    assert environment.bounds(1) == pytest.approx((1 / 27, 1 / 27, 1 / 27))
    assert environment.bounds(2) == pytest.approx((8 / 27, 2 / 27, (5 / 9) ** 3))
    assert environment.bounds(3) == pytest.approx((1, 3 / 27, (19 / 27) ** 3))
    assert secret_code(length=3, letters=4).bounds(4) == pytest.approx((1, 4 / 64, (1 - 0.75**4) ** 3))


def best_player(codes: frozenset[tuple[int, ...]], guesses: tuple, turns: int, shows: bool) -> int:
    """Codes solved within `turns` by the best of all players, by trying every guess in every state of knowledge."""

    @cache
    def solved(open_codes: frozenset, left: int) -> int:
        if not open_codes or not left:
            return 0
        best = 0
        for guess in guesses:
            answers: dict = {}
            for hidden in open_codes - {guess}:
                key = tuple(a == b for a, b in zip(guess, hidden, strict=True)) if shows else None
                answers.setdefault(key, set()).add(hidden)
            found = (guess in open_codes) + sum(solved(frozenset(rest), left - 1) for rest in answers.values())
            best = max(best, found)
        return best

    return solved(codes, turns)


@pytest.mark.parametrize("letters, length", [(2, 2), (3, 2), (2, 3), (3, 1)])
def test_no_player_beats_the_code_bounds_and_the_best_reaches_them(letters, length):
    guesses = tuple(product(range(letters), repeat=length))
    for turns in (1, 2, 3):
        bounds = secret_code(letters=letters, length=length).bounds(turns)
        for shows, bound in ((True, bounds.with_hints), (False, bounds.without_hints)):
            assert best_player(frozenset(guesses), guesses, turns, shows) / len(guesses) == pytest.approx(bound)


def test_the_code_floor_is_the_best_constant_over_all_small_tasks():
    # Six letters stand for the 26: the share of alphabets that hold k given letters, counted one by one.
    alphabets = list(combinations(range(6), 3))
    tasks = [(set(a), c) for a in alphabets for c in product(a, repeat=2)]
    shares = {c: sum(c == hidden for _, hidden in tasks) / len(tasks) for c in product(range(6), repeat=2)}
    assert max(shares.values()) == shares[(0, 0)] == pytest.approx(3 / 6 / 9)
    assert secret_code(length=2).constant_baseline() == ConstantBaseline("A A", pytest.approx(3 / 26 / 9))
    assert secret_code(length=3, alphabet="XYZW").constant_baseline() == ConstantBaseline(
        "X X X", pytest.approx(1 / 64)
    )


def test_a_pool_limits_the_letters_that_alphabets_are_drawn_from():
    env = secret_code(length=4, letters=2, pool=6)
    tasks = [env.task("train", index) for index in range(200)]
    assert {letter for task in tasks for letter in task.public["letters"]} == set("ABCDEF")
    # A is in 5 of the 15 alphabets; of the 16 codes over such an alphabet one is A A A A.
    assert env.constant_baseline() == ConstantBaseline("A A A A", pytest.approx(5 / 15 / 16))
    with pytest.raises(ValidationError, match="pool"):
        secret_code(letters=7, pool=6)
