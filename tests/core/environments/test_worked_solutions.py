"""Worked solutions: the verifier accepts every one, and what they claim on the way is true."""

from __future__ import annotations

import re

import pytest
from knights_knaves_oracle import evaluate

from rl2f_core.environments.puzzles.knights_knaves import logic as logic
from rl2f_core.environments.puzzles.knights_knaves.environment import KnightsKnaves
from rl2f_core.environments.puzzles.knights_knaves.worked_solutions import tries
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic, chain
from rl2f_core.environments.puzzles.numbers.guess_number import GuessNumber
from rl2f_core.environments.puzzles.secret_code.environment import SecretCode
from rl2f_core.types import Task


def kk(**settings: object) -> KnightsKnaves:
    return KnightsKnaves(KnightsKnaves.Config.model_validate(settings))


def check_claims(env: KnightsKnaves, task: Task, text: str) -> int:
    """Every sentence read back and held against the puzzle's truth; returns how many there are."""
    puzzle, people = logic.as_puzzle(task.public["statements"]), task.public["people"]
    truthful = env.config.roles[0]
    sentences = re.findall(r"If ([^:]+): ([^.]+)\.", text)
    solution = logic.solutions(puzzle)[0]
    refuted: set[int] = set()
    for supposed, said in sentences:
        roles = dict(part.split(" ") for part in supposed.split(", "))
        *claims, verdict = said.split(", ")
        assert list(roles) == people[: len(roles)]
        possible = [
            a for a in range(2 ** len(people))
            if all(bool(a >> people.index(name) & 1) == (role == truthful) for name, role in roles.items())
        ]  # fmt: skip
        fits = []
        for claim in claims:
            name, truth = claim.split(" ")
            speaker = people.index(name)
            assert {evaluate(puzzle[speaker], a) for a in possible} == {truth == "true"}
            fits.append((roles[name] == truthful) == (truth == "true"))
        assert (verdict == "yes") == all(fits) and all(fits[:-1])
        if verdict == "no":
            refuted |= set(possible)
        else:
            assert possible == [solution] and len(claims) == len(people)
    assert [verdict.split(", ")[-1] for _, verdict in sentences] == ["no"] * (len(sentences) - 1) + ["yes"]
    assert solution not in refuted
    return len(sentences)


@pytest.mark.slow
def test_thousand_worked_puzzles_are_right_and_every_claim_on_the_way_is_true():
    seen, most = 0, 0
    for people, depth, count in ((2, 2, 350), (2, 3, 300), (3, 2, 300), (5, 2, 46), (8, 2, 4)):
        env = kk(people=people, depth=depth)
        for index in range(count):
            task = env.task("train", index)
            text = env.worked_solution(task)
            assert text is not None and env.verify(task, text).correct
            most = max(most, check_claims(env, task, text.partition("<answer>")[0]))
            seen += 1
    assert seen == 1000 and most > 8  # five people and eight take more than a line or two


def test_a_puzzle_of_two_is_worked_out_as_by_hand():
    # Zoey: Owen is a knave.  Owen: Zoey is a knight and I am a knight.  Both knights: Zoey's claim is false.
    task = kk().task_from_gold(
        'A knight always tells the truth; a knave always lies.\nZoey says: "Owen is a knave."\n'
        '"Zoey is a knight and I am a knight," claims Owen.\nWho is a knight and who is a knave?',
        "Zoey is a knight, Owen is a knave",
    )
    assert kk().worked_solution(task) == (
        "If Zoey knight, Owen knight: Zoey false, no. If Zoey knight, Owen knave: Zoey true, Owen false, yes. "
        "<answer>Zoey is a knight, Owen is a knave</answer>"
    )
    thought = kk(think=True).worked_solution(task)
    assert thought is not None and kk(think=True).verify(task, thought).well_formed


def test_a_claim_that_the_first_roles_settle_ends_a_sentence_early():
    # "I am a knave and the other is a knight" is false wherever the speaker is a knight, whoever the other is
    puzzle = (("and", ("knave", 0), ("knight", 1)), ("knight", 0))
    assert logic.solutions(puzzle) == [0]
    assert list(tries(puzzle)) == [
        ((True,), [(0, False)]),
        ((False, True), [(0, True)]),
        ((False, False), [(0, False), (1, False)]),
    ]


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        ((47, "+", 85), "47 + 85 = 47 + 80 + 5 = 127 + 5 = 132"),
        ((47, "-", 85), "47 - 85 = 47 - 80 - 5 = -33 - 5 = -38"),
        ((12, "x", 34), "12 x 34 = 12 x 30 + 12 x 4 = 360 + 48 = 408"),
        ((10, "x", 90), "10 x 90 = 900"),
        ((305, "+", 400), "305 + 400 = 705"),
        ((5, "+", 3), "5 + 3 = 8"),
    ],
)
def test_a_sum_is_taken_apart_by_its_places(problem: tuple[int, str, int], line: str):
    assert chain(*problem) == line


def test_every_sum_is_worked_out_truly_step_by_step():
    env = Arithmetic(Arithmetic.Config(operations=("+", "-", "x"), digits=3))
    for index in range(300):
        task = env.task("train", index)
        text = env.worked_solution(task)
        assert text is not None and env.verify(task, text).correct
        parts = text.partition(".")[0].split(" = ")
        assert len({eval(part.replace("x", "*")) for part in parts}) == 1  # our own digits and signs alone


def test_there_is_no_worked_solution_where_the_answer_cannot_be_known():
    for env in (SecretCode(SecretCode.Config()), GuessNumber(GuessNumber.Config())):
        assert env.worked_solution(env.task("train", 0)) is None
    words = Arithmetic(Arithmetic.Config())
    assert words.worked_solution(words.task_from_gold("Three apples and four?", "7")) is None
    assert kk().worked_solution(kk().task_from_gold("Somebody said something.", "Ada is a knight")) is None


@pytest.mark.slow
def test_puzzles_of_two_and_three_people_come_equally_often_and_stay_apart():
    env = kk(people=3, fewest=2)
    levels = [env.task("train", i).level for i in range(200)]
    assert set(levels) == {"2 people, depth 2", "3 people, depth 2"}
    assert 75 < levels.count("2 people, depth 2") < 125
    keys = {split: {env.canonical(env.task(split, i)) for i in range(80)} for split in ("train", "test")}
    assert keys["train"].isdisjoint(keys["test"])
    assert kk(people=3).task("train", 5) == kk(people=3, fewest=None).task("train", 5)
    with pytest.raises(ValueError, match="fewest 4 is more than people 3"):
        kk(people=3, fewest=4)
