"""Knights and knaves as logic: the English reading has the gold solution alone, keys are exact, texts read back."""

from __future__ import annotations

import itertools
import random
import re
import time

import pytest
from knights_knaves_oracle import evaluate, height

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.puzzles.knights_knaves import logic as logic
from rl2f_core.environments.puzzles.knights_knaves import text as words
from rl2f_core.environments.puzzles.knights_knaves.environment import KnightsKnaves
from rl2f_core.errors import DataError

ROLES = ("knight", "knave")
ZOEY = (("knave", 1), ("and", ("knight", 0), ("knight", 1)))
"""Zoey a knight makes Owen a knave, whose words are then false, which fits.  Zoey a knave makes Owen a knight, who then
calls Zoey a knight, which does not fit.  So Zoey is a knight and Owen is a knave: 0b01."""
TRIO = (
    ("iff", ("knight", 1), ("knight", 2)),
    ("knave", 2),
    ("imp", ("knight", 0), ("knight", 1)),
)
"""B and C differ by B's words, so A lies; C's words are then true, so C is a knight and B a knave: 0b100."""


def environment(**settings: object) -> KnightsKnaves:
    return KnightsKnaves(KnightsKnaves.Config.model_validate(settings))


def renamed(statement: logic.Statement, number: dict[int, int], rng: random.Random) -> logic.Statement:
    """The statement about other people, with the parts of commutative connectives in any order."""
    if statement[0] in logic.LEAVES:
        return (statement[0], number[statement[1]])
    parts = [renamed(part, number, rng) for part in statement[1:]]
    if statement[0] != "imp":
        rng.shuffle(parts)
    return (statement[0], *parts)


def shuffled(puzzle: logic.Puzzle, rng: random.Random) -> logic.Puzzle:
    people = list(range(len(puzzle)))
    rng.shuffle(people)
    number = dict(enumerate(people))
    moved = {number[i]: renamed(statement, number, rng) for i, statement in enumerate(puzzle)}
    return tuple(moved[i] for i in range(len(puzzle)))


# -- an evaluator that reads the English text, written apart from the one under test -------------------------------


def english_truth(said: str, speaker: str, roles: dict[str, str]) -> bool:
    """Substitute leaves by T and F, then reduce brackets from the inside out."""
    said = re.sub(r"\bI am\b", f"{speaker} is", said)
    said = re.sub(
        r"(\w+) is (not )?an? (\w+)", lambda m: "T" if (roles[m[1]] == m[3]) != bool(m[2]) else "F", said
    ).lower()
    while (inner := re.search(r"\(([^()]*)\)", said)) is not None:
        said = said[: inner.start()] + flat_truth(inner[1]) + said[inner.end() :]
    return flat_truth(said) == "t"


def flat_truth(said: str) -> str:
    for shape, rule in {
        r"([tf])": lambda a: a,
        r"it is not true that ([tf])": lambda a: not a,
        r"if ([tf]) then ([tf])": lambda a, b: b if a else True,
        r"([tf]) if and only if ([tf])": lambda a, b: a is b,
        r"([tf]) and ([tf])": lambda a, b: min(a, b),
        r"([tf]) or ([tf])": lambda a, b: max(a, b),
    }.items():
        if (match := re.fullmatch(shape, said)) is not None:
            return "t" if rule(*(group == "t" for group in match.groups())) else "f"
    raise AssertionError(f"ambiguous or unknown English: {said}")


def english_solutions(text: str, people: list[str]) -> list[dict[str, str]]:
    spoken = []
    for line in text.splitlines()[1:-1]:
        before, said, after = line.split('"')
        (speaker,) = [name for name in people if re.search(rf"\b{name}\b", before + after)]
        spoken.append((speaker, said.rstrip(".,")))
    assert sorted(speaker for speaker, _ in spoken) == sorted(people)
    found = []
    for pattern in itertools.product(ROLES, repeat=len(people)):
        roles = dict(zip(people, pattern, strict=True))
        if all((roles[speaker] == "knight") == english_truth(said, speaker, roles) for speaker, said in spoken):
            found.append(roles)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("people", "depth", "count"),
    [(2, 2, 80), (2, 3, 60), (3, 2, 60), (3, 3, 60), (4, 3, 60), (5, 2, 40), (6, 3, 8), (7, 3, 5), (8, 3, 4)],
)
def test_the_english_text_of_every_puzzle_has_exactly_the_gold_solution(people: int, depth: int, count: int) -> None:
    env = environment(people=people, depth=depth)
    for index in range(count):
        task = env.task("train", index)
        found = english_solutions(env.prompt(task.public), task.public["people"])
        assert [words.normal_form(roles) for roles in found] == [env.gold_answer(task)]
        assert env.verify(task, wrap_answer(env.gold_answer(task))).score == 1.0
        assert max(height(s) for s in logic.as_puzzle(task.public["statements"])) <= depth


def test_hand_worked_puzzles_have_their_one_solution() -> None:
    assert logic.solutions(ZOEY) == [0b01]
    assert logic.solutions(TRIO) == [0b100]
    assert logic.solutions((("knight", 1), ("knight", 0))) == [0b00, 0b11]
    assert logic.solutions((("knave", 0), ("knight", 0))) == []


def test_leaves_alone_never_have_one_solution_so_depth_starts_at_two() -> None:
    leaves = [(kind, person) for kind in logic.LEAVES for person in range(3)]
    assert all(len(logic.solutions(puzzle)) % 2 == 0 for puzzle in itertools.product(leaves, repeat=3))
    with pytest.raises(ValueError, match="depth"):
        environment(depth=1)
    with pytest.raises(DataError, match="exactly one solution"):
        logic.generate(0b10, 2, 1, random.Random(0), tries=50)


def test_truth_tables_agree_with_plain_evaluation() -> None:
    rng = random.Random(5)
    for _ in range(200):
        people = rng.randint(2, 5)
        statement = logic.random_statement(0, people, 3, rng)
        bits = [evaluate(statement, a) for a in range(2**people)]
        assert logic.truth_table(statement, people) == sum(bit << a for a, bit in enumerate(bits))
        assert any(bits) and not all(bits)


def test_nobody_says_i_am_a_knave_and_no_statement_is_empty() -> None:
    def self_accusation(statement: logic.Statement, speaker: int) -> bool:
        if logic.is_leaf(statement):
            return statement == ("knave", speaker)
        return any(self_accusation(part, speaker) for part in statement[1:])

    rng = random.Random(6)
    for _ in range(100):
        puzzle = logic.generate(rng.randrange(8), 3, 3, rng)
        for speaker, statement in enumerate(puzzle):
            assert not self_accusation(statement, speaker)
            assert any(evaluate(statement, a) != bool(a >> speaker & 1) for a in range(8))


# -- canonical form ------------------------------------------------------------------------------------------------


def brute_key(puzzle: logic.Puzzle) -> str:
    """The smallest encoding over all orders of the people."""
    keys = []
    for order in itertools.permutations(range(len(puzzle))):
        labels = [str(place) for place in order]
        keys.append(
            ";".join(logic.encode(puzzle[i], labels) for i in sorted(range(len(puzzle)), key=order.__getitem__))
        )
    return min(keys)


def test_renaming_people_keeps_the_hand_worked_key_and_another_puzzle_changes_it() -> None:
    reordered = (("and", ("knight", 0), ("knight", 1)), ("knave", 0))
    assert logic.canonical_key(ZOEY) == logic.canonical_key(reordered)
    assert logic.canonical_key(ZOEY) != logic.canonical_key((("knave", 1), ("or", ("knight", 0), ("knight", 1))))
    one = (("imp", ("knight", 0), ("knight", 1)), ("knave", 0))
    assert logic.canonical_key(one) != logic.canonical_key((("imp", ("knight", 1), ("knight", 0)), ("knave", 0)))


def test_every_renaming_and_reordering_has_the_same_key() -> None:
    rng = random.Random(7)
    for _ in range(300):
        people = rng.randint(2, 8)
        puzzle = tuple(logic.random_statement(i, people, rng.randint(1, 3), rng) for i in range(people))
        assert logic.canonical_key(puzzle) == logic.canonical_key(shuffled(puzzle, rng))


def test_keys_agree_with_brute_force_over_all_permutations_up_to_four_people() -> None:
    rng = random.Random(8)
    for people, depth, count in ((2, 2, 400), (3, 1, 300), (3, 2, 300), (4, 1, 300)):
        by_key: dict[str, set[str]] = {}
        by_brute: dict[str, set[str]] = {}
        for _ in range(count):
            puzzle = tuple(logic.random_statement(i, people, depth, rng) for i in range(people))
            key, brute = logic.canonical_key(puzzle), brute_key(puzzle)
            by_key.setdefault(key, set()).add(brute)
            by_brute.setdefault(brute, set()).add(key)
        assert len(by_key) < count
        assert all(len(held) == 1 for held in (*by_key.values(), *by_brute.values()))


def test_symmetric_puzzles_are_keyed_exactly_and_fast() -> None:
    rng = random.Random(9)
    ring = tuple(("knave", (i + 1) % 8) for i in range(8))
    squares = tuple(("knave", i // 4 * 4 + (i + 1) % 4) for i in range(8))
    pairs = tuple(("knave", i ^ 1) for i in range(8))
    alike = tuple(("and", ("knight", 0), ("knave", 1)) for _ in range(8))
    start = time.perf_counter()
    keys = [logic.canonical_key(puzzle) for puzzle in (ring, squares, pairs, alike)]
    assert keys == [logic.canonical_key(shuffled(puzzle, rng)) for puzzle in (ring, squares, pairs, alike)]
    assert len(set(keys)) == 4
    assert time.perf_counter() - start < 1.0


@pytest.mark.slow
def test_two_people_at_depth_two_have_57_puzzles_and_the_generator_makes_them_all() -> None:
    def parts(speaker: int) -> list[logic.Statement]:
        leaves = [(kind, p) for kind in logic.LEAVES for p in (0, 1) if (kind, p) != ("knave", speaker)]
        denied = [("not", leaf) for leaf in leaves]
        return [*leaves, *denied, *((op, a, b) for op in logic.BINARY for a in leaves for b in leaves if a != b)]

    def telling(statement: logic.Statement, speaker: int) -> bool:
        return logic.truth_table(statement, 2) not in (0, 15, (0b1010, 0b1100)[speaker])

    puzzles = [p for p in itertools.product(parts(0), parts(1)) if all(telling(s, i) for i, s in enumerate(p))]
    expected = {logic.canonical_key(p) for p in puzzles if len(logic.solutions(p)) == 1}
    rng = random.Random(10)
    made = {logic.canonical_key(logic.generate(rng.randrange(4), 2, 2, rng)) for _ in range(4000)}
    assert len(expected) == 57
    assert made == expected


# -- text ----------------------------------------------------------------------------------------------------------


def test_statements_and_puzzles_can_be_read_back_from_their_english() -> None:
    rng = random.Random(11)
    for _ in range(400):
        people = rng.sample(words.NAMES, rng.randint(2, 8))
        n = len(people)
        puzzle = tuple(logic.random_statement(i, n, 3, rng) for i in range(n))
        for speaker, statement in enumerate(puzzle):
            english = words.render_statement(statement, speaker, people, ROLES)
            assert words.parse_statement(english, speaker, people, ROLES) == statement
        text = words.render_puzzle(puzzle, people, [rng.randrange(len(words.SAYS)) for _ in people], ROLES)
        assert words.parse_puzzle(text, sorted(people), ROLES) == (people, puzzle)


def test_nested_statements_are_bracketed() -> None:
    people = ["Zoey", "Owen"]
    nested = ("imp", ("and", ("knight", 0), ("knave", 1)), ("not", ("or", ("knight", 0), ("not", ("knight", 1)))))
    assert words.render_statement(nested, 0, people, ROLES) == (
        "if (I am a knight and Owen is a knave) then (it is not true that (I am a knight or Owen is not a knight))"
    )
    for hostile in ("", "(" * 500, "if " * 300, "Zoey is", "Zoey is a knight and", "Zoey is a knight) or", "x" * 10**6):
        assert words.parse_statement(hostile, 0, people, ROLES) is None
