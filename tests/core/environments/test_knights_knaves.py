"""knights_knaves: unique solutions, canonical form, disjoint splits, a strict parser, hints that keep the answer."""

from __future__ import annotations

import itertools
import json
import random
import re
import time

import pytest

from rl2f_core import registry
from rl2f_core.config.fields import BaseConfig
from rl2f_core.environments.base import CONTENTLESS, wrap_answer
from rl2f_core.environments.puzzles.knights_knaves import logic as logic
from rl2f_core.environments.puzzles.knights_knaves import text as words
from rl2f_core.environments.puzzles.knights_knaves.environment import KnightsKnaves
from rl2f_core.environments.puzzles.knights_knaves.hint_counts import groups_of, hint_counts
from rl2f_core.environments.puzzles.knights_knaves.stated_roles import asserted_roles
from rl2f_core.environments.puzzles.knights_knaves.think import think_problem
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.types import SPLITS, Task

ROLES = ("knight", "knave")
ZOEY_TEXT = (
    "A knight always tells the truth; a knave always lies.\n"
    'Zoey says: "Owen is a knave."\n'
    '"Zoey is a knight and I am a knight," claims Owen.\n'
    "Who is a knight and who is a knave?"
)
ZOEY = (("knave", 1), ("and", ("knight", 0), ("knight", 1)))
"""Zoey a knight makes Owen a knave, whose words are then false, which fits.  Zoey a knave makes Owen a knight, who then
calls Zoey a knight, which does not fit.  So Zoey is a knight and Owen is a knave: 0b01."""


def environment(**settings: object) -> KnightsKnaves:
    return KnightsKnaves(KnightsKnaves.Config.model_validate(settings))


def zoey(env: KnightsKnaves | None = None) -> Task:
    return (env or environment()).task_from_gold(ZOEY_TEXT, "Zoey is a knight, Owen is a knave")


# -- tasks and splits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("people", "depth"), [(2, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 3), (3, 2)))]
)
def test_splits_share_no_puzzle_up_to_renaming(people: int, depth: int) -> None:
    env = environment(people=people, depth=depth)
    keys = {split: {env.canonical(env.task(split, i)) for i in range(200)} for split in SPLITS}
    collisions = sum(len(keys[a] & keys[b]) for a, b in itertools.combinations(SPLITS, 2))
    assert collisions == 0
    assert all(keys.values())


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_all_role_patterns_are_about_equally_frequent_in_every_split(split: str) -> None:
    env = environment()
    patterns = []
    for index in range(400):
        task = env.task(split, index)  # type: ignore[arg-type]
        patterns.append(tuple(env.score_parsed(task, env.gold_answer(task)).parts.values()))
    shares = [patterns.count(pattern) / 400 for pattern in itertools.product(ROLES, repeat=2)]
    assert all(0.18 < share < 0.32 for share in shares)


def test_tasks_are_repeatable_differ_by_seed_and_survive_json() -> None:
    env = environment(people=4, depth=3)
    task = env.task("train", 7)
    assert task == environment(people=4, depth=3).task("train", 7)
    assert task.public != environment(people=4, depth=3, seed=1).task("train", 7).public
    copy = Task.model_validate(json.loads(task.model_dump_json()))
    assert env.canonical(copy) == env.canonical(task)
    wrong = env.verify(copy, env.simulate_attempt(copy, [], random.Random(0), follow_hint=False, correct=False))
    assert env.hint(copy, [wrong], random.Random(0)) == env.hint(task, [wrong], random.Random(0))


@pytest.mark.parametrize("depth", [2, 3])
def test_many_puzzles_of_eight_people_are_made_and_proven_in_a_second(depth: int) -> None:
    """Seconds of the processor; 50 on a fast one."""
    env = environment(people=8, depth=depth)
    start = time.process_time()
    for index in range(20):
        env.task("test", index)
    assert 20 / (time.process_time() - start) > 15


def test_the_environment_is_registered_and_its_roles_are_checked() -> None:
    assert registry.get("environment", "knights_knaves") is KnightsKnaves
    assert issubclass(KnightsKnaves.Config, BaseConfig)
    for roles in (("knight", "knight"), ("Knight", "knave"), ("zoey", "knave"), ("and", "or"), ("two words", "x")):
        with pytest.raises((ValueError, ConfigError)):
            environment(roles=roles)


def test_other_role_words_take_the_right_article_and_verify() -> None:
    env = environment(roles=("angel", "devil"), people=3)
    task = env.task("train", 0)
    assert "An angel always tells the truth; a devil always lies." in env.prompt(task.public)
    assert env.verify(task, env.simulate_attempt(task, [], random.Random(0), follow_hint=True, correct=True)).correct
    assert not env.verify(task, wrap_answer(env.gold_answer(task).replace("angel", "knight"))).well_formed


@pytest.mark.slow
def test_the_floor_is_about_two_to_the_minus_n() -> None:
    floor = environment().constant_baseline()
    assert 0.15 < floor.score < 0.36
    assert floor.answer.count("a kn") == 2
    assert environment(people=6).constant_baseline().score < 0.06


def test_a_given_problem_is_read_with_its_statements_and_without_them() -> None:
    env = environment()
    task = zoey(env)
    assert logic.as_puzzle(task.public["statements"]) == ZOEY
    assert env.gold_answer(task) == "Owen=knave; Zoey=knight"
    generated = env.task("test", 3)
    again = env.task_from_gold(env.prompt(generated.public), env.gold_answer(generated))
    assert env.canonical(again) == env.canonical(generated)
    bare = env.task_from_gold("A and B meet. A says B lies.", "(1) A is a knight\n(2) B is a knave")
    assert bare.public["statements"] == []
    assert env.verify(bare, wrap_answer("A is a knight, B is a knave")).correct
    flipped = env.verify(bare, wrap_answer("A is a knave, B is a knight"))
    assert env.hint(bare, [flipped], random.Random(0)) == CONTENTLESS
    contradictory = env.task_from_gold(ZOEY_TEXT, "Zoey is a knave, Owen is a knight")
    assert contradictory.public["statements"] == []
    other = env.task_from_gold("Q and R meet. Q says R lies.", "Q=knight; R=knave")
    assert env.canonical(other) != env.canonical(env.task_from_gold("R and Q quarrel.", "Q=knight; R=knave"))
    for gold in ("", "Zoey", "Zoey is a knight, Zoey is a knave", "Zoey is a spy", "and is a knight"):
        with pytest.raises(DataError, match="gold answer"):
            env.task_from_gold(ZOEY_TEXT, gold)


def test_the_example_in_the_system_message_is_about_nobody_in_a_puzzle() -> None:
    assert not set(words.EXAMPLE_NAMES) & set(words.NAMES)
    assert len(set(words.NAMES)) == len(words.NAMES) >= 40
    assert "<think>" in environment(think=True).system_prompt() and "think" not in environment().system_prompt()


# -- the verifier --------------------------------------------------------------------------------------------------

RIGHT = "Zoey is a knight, Owen is a knave"
ACCEPTED = [
    RIGHT,
    "owen IS A KNAVE, ZOEY is a Knight",
    "Zoey is a knight and Owen is a knave.",
    "(1) Zoey is a knight\n(2) Owen is a knave",
    "(1) Zoey is a knight (2) Owen is a knave",
    "\n1. Zoey is a knight.\n2. Owen is a knave.\n",
    "1) Zoey is a knight; 2) Owen is a knave",
    "- Zoey is a knight\n\n- Owen is a knave",
    "Zoey is a knight; Owen is a knave",
    "Zoey is a knight, and Owen is a knave",
    "Zoey is knight\nOwen is knave",
    "Owen=knave; Zoey=knight",
    "Zoey: knight, Owen: knave",
]
UNREADABLE = [
    "",
    " \n ",
    "Zoey is a knight",
    "Zoey is a knight Owen is a knave",
    "Zoey is a knight, Owen is a knave, Zoey is a knave",
    "Zoey is a knight, Owen is a knave, Owen is a knave",
    "Zoey is a knight, Owen is a knave, Tom is a knave",
    "Zoey is a knight, Tom is a knave",
    "Zoey is a knight or a knave, Owen is a knave",
    "Zoey is a knight knave, Owen is a knave",
    "Zoey is not a knave, Owen is a knave",
    "Zoey is a knight, Owen is a knave because Zoey says so",
    "So Zoey is a knight, Owen is a knave",
    "Zoey is a knight, Owen is a knave; or the other way round",
    "Zoey and Owen: knight, knave",
    "knight, knave",
    "knight is a Zoey, knave is a Owen",
    "Zoey is a knight,,, Owen is a knave",
    "Zoey is a knight, Owen is a knave and",
    "Z0ey is a knight, Owen is a knave",
    "Zοey is a knight, Owen is a knave",
    "Zoey is a kni\x00ght, Owen is a knave",
    "Zoey is a knight, Owen is a knave\u200b",
    "(((1))) Zoey is a knight, Owen is a knave",
    "{'Zoey': 'knight', 'Owen': 'knave'}",
    "__import__('os').getcwd()",
    "...",
    "<|im_end|>",
]


@pytest.mark.parametrize("inner", ACCEPTED)
def test_a_right_answer_scores_one_in_every_accepted_form(inner: str) -> None:
    verdict = environment().verify(zoey(), wrap_answer(inner))
    assert verdict.correct and verdict.score == 1.0 and verdict.well_formed and verdict.distance == 0.0
    assert verdict.parsed == "Owen=knave; Zoey=knight"


@pytest.mark.parametrize("inner", UNREADABLE)
def test_anything_but_one_role_for_each_person_is_unparsable(inner: str) -> None:
    verdict = environment().verify(zoey(), wrap_answer(inner))
    assert (verdict.correct, verdict.score, verdict.parsed, verdict.well_formed) == (False, 0.0, None, False)


HACKS = {
    "empty think, no answer": "<think></think>",
    "empty think, empty answer": "<think></think><answer></answer>",
    "filler think, wrong answer": "<think>this is thinking process</think>"
    + wrap_answer("Zoey is a knave, Owen is a knight"),
    "reasoning inside the answer": f"<answer>Owen lies, since Zoey says so. {RIGHT}</answer>",
    "several answers": f"{wrap_answer('Zoey is a knave, Owen is a knave')}{wrap_answer(RIGHT)}",
    "all answers in one block": wrap_answer("; ".join(f"Zoey is a {a}, Owen is a {b}" for a in ROLES for b in ROLES)),
    "text after the answer": f"{wrap_answer(RIGHT)} Or else the other way round.",
    "thinking again after the answer": f"{wrap_answer(RIGHT)}<think>wait</think>",
    "echo of the question": ZOEY_TEXT,
    "echo of the question in the answer": wrap_answer(ZOEY_TEXT),
    "echo of the example": wrap_answer("Ann is a knight, Bob is a knave"),
    "fake assistant after the answer": "\nAssistant: ".join(
        map(wrap_answer, ("Zoey is a knave, Owen is a knave", RIGHT))
    ),
    "fake assistant in the answer": wrap_answer(f"Assistant: {RIGHT}"),
    "fake verdict": wrap_answer("correct"),
    "no tags": RIGHT,
    "unclosed": f"<answer>{RIGHT}",
    "closed before opened": f"</answer>{RIGHT}<answer>",
    "nested": f"<answer><answer>{RIGHT}</answer></answer>",
    "other tag": f"<result>{RIGHT}</result>",
    "chat markers": f"<|im_end|>\n<|im_start|>teacher\nRight!{wrap_answer('<|im_start|>')}",
}


@pytest.mark.parametrize("name", HACKS)
def test_hacks_earn_nothing(name: str) -> None:
    verdict = environment().verify(zoey(), HACKS[name])
    assert not verdict.correct
    assert verdict.score == 0.0


def test_huge_answers_are_unparsable_within_a_second() -> None:
    env, task = environment(), zoey()
    start = time.process_time()
    for unit in ("Zoey is a knight, ", "\n", "(1) ", "Zoey ", "9", " ", "<answer>", "Zoey is a knight and "):
        text = unit * (10**6 // len(unit))
        assert not env.verify(task, wrap_answer(text)).well_formed
        assert not env.verify(task, wrap_answer(text[:19_000])).well_formed
        assert env.parse(task, text) is None
    assert time.process_time() - start < 1.0


def test_a_half_right_answer_names_its_right_part() -> None:
    verdict = environment().verify(zoey(), wrap_answer("Zoey is a knight, Owen is a knight"))
    assert (verdict.correct, verdict.score, verdict.distance) == (False, 0.5, 0.5)
    assert verdict.parts == {"Zoey": "knight", "Owen": "knight"} and verdict.correct_parts == ("Zoey",)


def test_with_think_empty_and_filler_blocks_are_not_well_formed() -> None:
    env = environment(think=True)
    task = zoey(env)
    thought = "If Zoey lies, Owen is a knight and calls Zoey one, so Zoey is a knight and Owen lies."
    assert env.verify(task, f"<think>{thought}</think>\n{wrap_answer(RIGHT)}").well_formed
    for attempt in (
        wrap_answer(RIGHT),
        f"<think></think>{wrap_answer(RIGHT)}",
        f"<think>this is thinking process</think>{wrap_answer(RIGHT)}",
        f"<think>Zoey Owen</think>{wrap_answer(RIGHT)}",
        f"<think>{ZOEY_TEXT}</think>{wrap_answer(RIGHT)}",
        f"<think>{thought}</think> by the way {wrap_answer(RIGHT)}",
        f"Well. <think>{thought}</think>{wrap_answer(RIGHT)}",
        f"<think>{thought}</think><think></think>{wrap_answer(RIGHT)}",
    ):
        verdict = env.verify(task, attempt)
        assert verdict.correct and not verdict.well_formed
        assert think_problem(attempt, ZOEY_TEXT, ["Zoey", "Owen"]) in verdict.detail


# -- hints ---------------------------------------------------------------------------------------------------------


def test_the_hint_names_the_first_contradicted_person() -> None:
    env, rng = environment(), random.Random(0)
    task = zoey(env)
    both_lie = env.verify(task, wrap_answer("Zoey is a knave, Owen is a knave"))  # Zoey would lie with true words
    assert env.hint(task, [both_lie], rng) == "Your answer does not fit what Zoey says."
    reversed_ = env.verify(
        task, wrap_answer("Zoey is a knave, Owen is a knight")
    )  # Zoey lies as she must; Owen's are false
    assert env.hint(task, [reversed_], rng) == "Your answer does not fit what Owen says."
    assert env.misleading_hint(task, [reversed_], rng) == "Your answer does not fit what Zoey says."
    assert env.hint(task, [env.verify(task, "?")], rng).startswith("Your answer could not be read.")


def test_counts_are_grouped_so_that_each_group_leaves_two_answers() -> None:
    assert groups_of({1: 2, 2: 1}) == [(1, 2)]
    assert groups_of({1: 3, 2: 3, 3: 1}) == [(1, 1), (2, 3)]
    assert groups_of({1: 1, 2: 1, 3: 1, 4: 1}) == [(1, 2), (3, 4)]
    assert groups_of({2: 1}) == [(2, 2)] and groups_of({}) == []
    assert hint_counts(3, 0b001, [0b000])[0][0] == (1, 1)
    assert hint_counts(3, 0b111, [0b000])[0][0] == (2, 3)


@pytest.mark.parametrize(("people", "turns"), [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2)])
def test_neither_a_count_nor_its_absence_singles_out_one_of_several_open_answers(people: int, turns: int) -> None:
    for attempts in itertools.product(range(2**people), repeat=turns):
        before: dict[tuple, set[int]] = {}
        after: dict[tuple, set[int]] = {}
        for solution in set(range(2**people)) - set(attempts):
            told = tuple(count for count, _ in hint_counts(people, solution, attempts))
            before.setdefault(told[:-1], set()).add(solution)
            after.setdefault(told, set()).add(solution)
        for told, left in after.items():
            assert len(left) >= min(2, len(before[told[:-1]]))


@pytest.mark.parametrize(("people", "depth"), [(2, 2), (3, 3), (5, 2), (8, 2)])
def test_hints_are_true_misleading_hints_point_away_and_neither_states_a_role(people: int, depth: int) -> None:
    env = environment(people=people, depth=depth)
    for index in range(40):
        rng = random.Random(index)
        task = env.task("train", index)
        names, puzzle = task.public["people"], logic.as_puzzle(task.public["statements"])
        attempts = []
        while len(attempts) < 4:
            attempts.append(
                env.verify(task, env.simulate_attempt(task, attempts, rng, follow_hint=False, correct=False))
            )
            bits = sum(1 << i for i, name in enumerate(names) if attempts[-1].parts[name] == "knight")
            wrong = people - len(attempts[-1].correct_parts)
            for true, text in (
                (True, env.hint(task, attempts, rng)),
                (False, env.misleading_hint(task, attempts, rng)),
            ):
                assert asserted_roles(text, names) == [] and env.find_answers(task, text) == []
                named = re.match(r"Your answer does not fit what (\w+) says\.", text)
                count = re.search(r"(\d)(?: to (\d))? of \d (?:people|person)", text)
                holds = count is None or int(count[1]) <= wrong <= int(count[2] or count[1])
                assert named is not None
                person = names.index(named[1])
                if true:
                    assert holds and person == logic.first_contradicted(puzzle, bits)
                else:
                    assert logic.fits(puzzle, person, bits) or (count is not None and not holds)


def test_misleading_hints_work_on_a_right_and_an_unreadable_attempt() -> None:
    env = environment(people=3)
    task = env.task("test", 0)
    for attempt in (wrap_answer(env.gold_answer(task)), "nothing"):
        text = env.misleading_hint(task, [env.verify(task, attempt)], random.Random(1))
        assert text.startswith("Your answer does not fit what ")


# -- the imperfect student -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("think", [False, True])
@pytest.mark.parametrize("people", [2, 3, 6])
def test_the_imitated_student_follows_or_ignores_the_hint(people: int, think: bool) -> None:
    env = environment(people=people, think=think)
    ignored_fits = []
    for index in range(40):
        rng = random.Random(index)
        task = env.task("train", index)
        names, puzzle = task.public["people"], logic.as_puzzle(task.public["statements"])
        assert env.verify(task, env.simulate_attempt(task, [], rng, follow_hint=True, correct=True)).correct
        first = env.verify(task, env.simulate_attempt(task, [], rng, follow_hint=False, correct=False))
        assert first.well_formed and not first.correct
        hint = env.hint(task, [first], rng)
        person = next(i for i, name in enumerate(names) if f"what {name} says" in hint)
        for follow in (True, False):
            second = env.verify(task, env.simulate_attempt(task, [first], rng, follow_hint=follow, correct=False))
            bits = sum(1 << i for i, name in enumerate(names) if second.parts[name] == "knight")
            assert second.well_formed and second.parsed != first.parsed
            if follow:
                assert logic.fits(puzzle, person, bits)
            else:
                assert not second.correct
                ignored_fits.append(logic.fits(puzzle, person, bits))
        unreadable = env.verify(task, "?")
        assert env.verify(
            task, env.simulate_attempt(task, [unreadable], rng, follow_hint=True, correct=False)
        ).well_formed
    assert 0 < sum(ignored_fits) < len(ignored_fits)


def test_a_student_who_always_follows_never_repeats_and_ends_up_right() -> None:
    env = environment(people=2)
    for index in range(60):
        rng, task, attempts = random.Random(index), env.task("train", index), []
        while not (attempts and attempts[-1].correct):
            attempts.append(
                env.verify(task, env.simulate_attempt(task, attempts, rng, follow_hint=True, correct=False))
            )
        assert len({verdict.parsed for verdict in attempts}) == len(attempts) <= 4


# -- roles asserted in free text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Zoey is a knight.", {"Zoey": "knight"}),
        ("so zoey must be the KNAVE", {"Zoey": "knave"}),
        ("Zoey is not a knight", {"Zoey": "knave"}),
        ("Zoey isn't a knave", {"Zoey": "knight"}),
        ("Zoey and Owen are both knaves", {"Zoey": "knave", "Owen": "knave"}),
        ("neither Zoey nor Owen is a knave", {"Zoey": "knight", "Owen": "knight"}),
        ("Everyone is a knave", {"Zoey": "knave", "Owen": "knave"}),
        ("none of them are knights", {"Zoey": "knave", "Owen": "knave"}),
        ("Owen=knave; Zoey=knight", {"Owen": "knave", "Zoey": "knight"}),
        ("Zoey (a knight) and Owen (knave)", {"Zoey": "knight", "Owen": "knave"}),
        ("knaves: Zoey, Owen", {"Zoey": "knave", "Owen": "knave"}),
        ("the knave is Owen", {"Owen": "knave"}),
        ("Zoey tells the truth but Owen always lies", {"Zoey": "knight", "Owen": "knave"}),
        ("Zoey, a knight, met Owen", {"Zoey": "knight"}),
        ("Your answer does not fit what Zoey says. 1 of 2 people is wrong.", {}),
        ("Look at Zoey again: what would a knave say?", {}),
        ("Zoeys is a knight, BOwen is a knave", {}),
    ],
)
def test_asserted_roles_are_found_in_many_wordings(text: str, expected: dict[str, str]) -> None:
    found = asserted_roles(text, ["Zoey", "Owen"])
    assert {name: role for _, _, name, role in found} == expected
    assert all(0 <= start < end <= len(text) for start, end, _, _ in found)


def test_candidates_cover_everybody_without_contradiction() -> None:
    env, task = environment(), zoey()
    text = "Hm. Zoey is a knight, so Owen is a knave."
    (start, end, form) = env.find_answers(task, text)[0]
    assert (text[start:end], form) == ("Zoey is a knight, so Owen is a knave", "Owen=knave; Zoey=knight")
    assert env.score_parsed(task, form).correct
    assert env.find_answers(task, "Zoey is a knight.") == []
    corrected = env.find_answers(task, "Zoey is a knave. No: Zoey is a knight and Owen is a knave.")
    assert [form for _, _, form in corrected] == ["Owen=knave; Zoey=knight"]
    assert env.find_answers(task, wrap_answer("Zoey is a knave, Owen is a knight"))[0][2] == "Owen=knight; Zoey=knave"


@pytest.mark.slow
def test_asserted_roles_are_found_in_huge_texts_within_seconds() -> None:
    env, task = environment(), zoey()
    start = time.process_time()
    for unit in (
        "Zoey is a knight. ",
        "Zoey, ",
        "Zoey is" + " " * 500,
        "knave ",
        "a knave is ",
        "neither Zoey nor ",
        " ",
    ):
        env.find_answers(task, unit * (200_000 // len(unit)))
    assert time.process_time() - start < 3.0
