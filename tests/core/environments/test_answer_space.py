"""Candidate answers: regions, and hint statements against brute force in every environment that has an answer space."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import product
from math import log2
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.dialogue.rollout.hint_information import measure_hints
from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.candidates import contains, count, intersect, one_of
from rl2f_core.environments.capabilities import AnswerSpace, Demonstrator, MisleadingHints
from rl2f_core.environments.puzzles.grids.path_environment import PathEnvironment, grid_of
from rl2f_core.environments.puzzles.knights_knaves import logic
from rl2f_core.environments.puzzles.knights_knaves.hint_counts import hint_counts
from rl2f_core.types import Hint, Task, Turn, Verdict

LEVELS: list[tuple[str, dict[str, Any]]] = [
    ("secret_code", {"length": 3, "letters": 3}),
    ("secret_code", {"length": 4, "letters": 2}),
    ("guess_number", {"size": 12}),
    ("arithmetic", {"digits": 1, "operations": ["+", "-", "x"]}),
    ("arithmetic", {"digits": 2, "operations": ["-"]}),
    ("knights_knaves", {"people": 3}),
    ("knights_knaves", {"people": 4}),
    ("binary_matrix", {"smallest": 2, "largest": 2, "plain": True}),
    ("shortest_path", {"smallest": 3, "largest": 4}),
    ("maze", {"rooms": 2, "loops": 0.5}),
]
"""Small levels of six environments whose answers can be listed."""


def build(name: str, config: dict[str, Any]) -> Any:
    kind = registry.get("environment", name)
    return kind(kind.Config(**config))


def dialogue(environment: Any, task: Task, rng: random.Random, turns: int = 4) -> list[Turn]:
    """Simulated wrong attempts with scripted hints; half of the attempts follow the hint before them."""
    assert isinstance(environment, MisleadingHints) and isinstance(environment, Demonstrator)
    result: list[Turn] = []
    verdicts: list[Verdict] = []
    for index in range(turns):
        text = environment.simulate_attempt(
            task, verdicts, rng, follow_hint=bool(verdicts) and rng.random() < 0.5, correct=False
        )
        verdicts.append(environment.verify(task, text))
        hint = None
        if not verdicts[-1].correct and index < turns - 1:
            hint = Hint(text=environment.hint(task, verdicts, random.Random(index)), teacher="scripted")
        result.append(Turn(index=index, attempt=text, verdict=verdicts[-1], hint=hint))
        if verdicts[-1].correct:
            break
    return result


# -- brute force: list the answers, and keep those for which the teacher would have written the same hint ------------
def listed(environment: Any, task: Task) -> list[str]:
    """All answers of the problem's form, in normal form."""
    public, name = task.public, environment.name
    if name == "secret_code":
        return [" ".join(code) for code in product(public["letters"], repeat=public["length"])]
    if name == "guess_number":
        return [str(number) for number in range(public["low"], public["high"] + 1)]
    if name == "arithmetic":
        ends = [10 ** (len(str(public[k])) - 1) for k in "ab"], [10 ** len(str(public[k])) - 1 for k in "ab"]
        values = [
            a + b if public["operation"] == "+" else a - b if public["operation"] == "-" else a * b
            for a in (ends[0][0], ends[1][0])
            for b in (ends[0][1], ends[1][1])
        ]
        return [str(number) for number in range(min(values), max(values) + 1)]
    if name == "knights_knaves":
        people = sorted(public["people"])
        return [
            "; ".join(f"{person}={role}" for person, role in zip(people, roles, strict=True))
            for roles in product(environment.config.roles, repeat=len(people))
        ]
    if name == "binary_matrix":
        n = len(public["rows"])
        values = [["0"] if cell == "0" else [str(d) for d in range(1, 2 * n - 1)] for cell in "".join(public["rows"])]
        return [" ".join("".join(cells[k * n : k * n + n]) for k in range(n)) for cells in product(*values)]
    return [" ".join(way) for way in walks(task)] + ["infeasible"] * environment.infeasible


def walks(task: Task) -> list[str]:
    """All walks from S to G that visit no cell twice, by recursion over cells."""
    grid = {(r, c): x for r, row in enumerate(task.public["grid"]) for c, x in enumerate(row)}
    moves = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}

    def extend(cell: tuple[int, int], seen: set[tuple[int, int]]) -> list[str]:
        if grid[cell] == "G":
            return [""]
        near = {x: (cell[0] + d[0], cell[1] + d[1]) for x, d in moves.items()}
        return [
            x + rest
            for x, place in near.items()
            if grid.get(place, "#") != "#" and place not in seen
            for rest in extend(place, {*seen, place})
        ]

    start = next(cell for cell, x in grid.items() if x == "S")
    return extend(start, {start})


def agrees(environment: Any, task: Task, turns: Sequence[Turn], candidate: str) -> bool:
    """Whether the hint of the last of `turns` agrees with a candidate."""
    hint = turns[-1].hint
    assert hint is not None
    if isinstance(environment, PathEnvironment):
        return path_agrees(environment, task, turns[-1], candidate)
    if environment.name == "knights_knaves":
        return roles_agree(environment, task, turns, candidate)
    key = {"secret_code": "code", "guess_number": "number"}.get(environment.name, "answer")
    other = task.model_copy(update={"privileged": {key: candidate}})
    verdicts = [environment.verify(other, turn.attempt) for turn in turns]
    if verdicts[-1].correct:
        return False
    return environment.hint(other, verdicts, random.Random(turns[-1].index)) == hint.text


def path_agrees(environment: PathEnvironment, task: Task, turn: Turn, candidate: str) -> bool:
    parsed = turn.verdict.parsed
    if parsed == "infeasible":
        return candidate != "infeasible"
    assert parsed is not None
    steps, error = parsed.split(), environment.find_error(grid_of(task), parsed.replace(" ", ""))
    assert error is not None
    if candidate == "infeasible":
        return error.fault != "wasted"
    right, way = steps[: error.correct_steps], candidate.split()
    return way[: len(right)] == right and way[: len(right) + 1] != steps[: len(right) + 1]


def roles_agree(environment: Any, task: Task, turns: Sequence[Turn], candidate: str) -> bool:
    """The candidate fits the named statement, and would have had the same counts in all hints so far."""
    people = task.public["people"]

    def bits(answer: str | None) -> int:
        assert answer is not None
        roles = dict(item.split("=") for item in answer.split("; "))
        return sum((roles[person] == "knight") << i for i, person in enumerate(people))

    puzzle, tried = logic.as_puzzle(task.public["statements"]), [bits(turn.verdict.parsed) for turn in turns]
    named = logic.first_contradicted(puzzle, tried[-1])
    if named is not None and not logic.fits(puzzle, named, bits(candidate)):
        return False
    gold = bits(environment.gold_answer(task))
    return hint_counts(len(people), bits(candidate), tried)[-1][0] == hint_counts(len(people), gold, tried)[-1][0]


@pytest.mark.parametrize(("name", "config"), LEVELS)
def test_hint_bits_equal_brute_force(name: str, config: dict[str, Any]):
    environment, rng, hints = build(name, config), random.Random(7), 0
    for index in range(12):
        task = environment.task("test", index)
        turns = dialogue(environment, task, rng)
        measured = measure_hints(environment, task, turns)
        candidates = listed(environment, task)
        for k, turn in enumerate(measured):
            if turn.hint is None:
                continue
            tried = {earlier.verdict.parsed for earlier in turns[: k + 1]}
            for known in (candidates, listed(environment, task)):
                before = [c for c in known if c not in tried]
                candidates = [c for c in before if agrees(environment, task, turns[: k + 1], c)]
                if candidates:
                    break
            assert (turn.hint_bits, turn.bits_left) == (
                pytest.approx(log2(len(before) / len(candidates)), abs=1e-5),
                pytest.approx(log2(len(candidates)), abs=1e-5),
            )
            assert turn.determines_answer == (candidates == [environment.gold_answer(task)] != before)
            hints += 1
    assert hints >= 10


@pytest.mark.parametrize(("name", "config"), [*LEVELS, ("binary_matrix", {}), ("secret_code", {"length": 8})])
def test_a_true_hint_never_excludes_every_candidate(name: str, config: dict[str, Any]):
    """The gold answer stays a candidate; of several shortest paths, one that continues the attempt does."""
    environment, rng = build(name, config), random.Random(1)
    for index in range(20):
        task = environment.task("train", index)
        turns = dialogue(environment, task, rng)
        measured = measure_hints(environment, task, turns)
        assert [turn.hint_bits is not None for turn in measured] == [turn.hint is not None for turn in turns]
        space, verdicts = environment.answer_space(task), []
        gold = environment.answer_values(task, environment.gold_answer(task))
        assert contains(space, gold)
        for turn in turns:
            verdicts.append(turn.verdict)
            if turn.hint is not None and not isinstance(environment, PathEnvironment):
                for statement in environment.hint_statements(task, verdicts, turn.hint.text):
                    assert contains(statement, gold)


@pytest.mark.parametrize(("name", "config"), LEVELS)
def test_every_scripted_and_misleading_hint_has_a_known_meaning(name: str, config: dict[str, Any]):
    environment, rng = build(name, config), random.Random(2)
    for index in range(20):
        task = environment.task("train", index)
        verdicts: list[Verdict] = []
        for turn in dialogue(environment, task, rng):
            verdicts.append(turn.verdict)
            if turn.verdict.correct:
                break
            for text in (environment.hint(task, verdicts, rng), environment.misleading_hint(task, verdicts, rng)):
                known = environment.hint_statements(task, verdicts, text)
                beyond = isinstance(environment, PathEnvironment) and known is None  # names a step that was not made
                assert known is not None or (beyond and text != environment.hint(task, verdicts, rng))
        unread = [environment.verify(task, wrap_answer("?"))]
        assert environment.hint_statements(task, unread, environment.hint(task, unread, rng)) == () or (
            name == "secret_code"
        )


@pytest.mark.parametrize(
    ("name", "config"),
    [*LEVELS[5:], ("knights_knaves", {"people": 2}), ("shortest_path", {}), ("maze", {"loops": 0.3})],
)
def test_scripted_hints_are_true_and_misleading_ones_false(name: str, config: dict[str, Any]):
    """Of several right paths, a true hint describes one. A false hint names no step that is wrong.

    `infeasible` agrees with any wall, so without a path a false hint about walls states nothing about the answer.
    """
    environment, rng = build(name, config), random.Random(4)
    found: dict[str, list[bool | None]] = {"scripted": [], "misleading": []}
    for index in range(30):
        task = environment.task("train", index)
        if environment.gold_answer(task) == "infeasible":
            continue
        wrong = environment.simulate_attempt(task, [], rng, follow_hint=False, correct=False)
        verdicts = [environment.verify(task, wrong)]
        false = environment.misleading_hint(task, verdicts, rng)
        for teacher, text in (("scripted", environment.hint(task, verdicts, rng)), ("misleading", false)):
            turn = Turn(index=0, attempt="x", verdict=verdicts[0], hint=Hint(text=text, teacher=teacher))
            found[teacher].append(measure_hints(environment, task, [turn])[0].hint_true)
        if isinstance(environment, PathEnvironment) and verdicts[0].parsed and verdicts[0].parsed != "infeasible":
            error = environment.find_error(grid_of(task), verdicts[0].parsed.replace(" ", ""))
            assert error is not None and not re.search(rf"[Ss]tep {error.step}\b", false)
    assert False not in found["scripted"] and True not in found["misleading"]
    assert found["scripted"].count(True) >= 10 and found["misleading"].count(False) >= 10


@pytest.mark.parametrize(("name", "config"), LEVELS)
def test_other_texts_have_no_known_meaning(name: str, config: dict[str, Any]):
    environment = build(name, config)
    task = environment.task("train", 0)
    turns = dialogue(environment, task, random.Random(0), turns=2)
    for text in ("Look again at the start.", "Correct so far: […] ?", "Too low, I think.", "Step 3 is nice."):
        assert environment.hint_statements(task, [turns[0].verdict], text) is None


# -- regions ---------------------------------------------------------------------------------------------------
def test_regions_count_like_the_list_of_their_answers():
    """Random conditions on 4 parts with 3 values, against all 81 answers."""
    rng, names, values = random.Random(0), "abcd", (1, 2, 3)
    answers = [dict(zip(names, each, strict=True)) for each in product(values, repeat=4)]
    space = ({name: frozenset(values) for name in names},)
    for _ in range(200):
        first, second = rng.sample(names, 2)
        kept, other = frozenset(rng.sample(values, rng.randint(1, 3))), frozenset(rng.sample(values, rng.randint(1, 3)))
        either = ({first: kept}, {first: frozenset(values) - kept, second: other})
        conditions = [one_of(second, rng.sample(values, 2)), either]
        tests: list[Callable[[Any], bool]] = [
            lambda a, c=conditions: contains(c[0], a),
            lambda a, k=kept, o=other, x=first, y=second: a[x] in k or a[y] in o,
        ]
        remaining = [answer for answer in answers if all(test(answer) for test in tests)]
        excluded = rng.sample(answers, 5) * 2
        region = intersect(space, *conditions)
        assert count(region) == len(remaining)
        assert count(region, excluded) == sum(answer not in excluded for answer in remaining)
        assert all(contains(region, answer) == (answer in remaining) for answer in answers)


def test_large_spaces_are_counted_without_listing_them():
    """26⁸ codes; a confirmed letter leaves 26⁷, a refuted one 25 · 26⁶ of them."""
    environment = build("secret_code", {"length": 8, "letters": 26})
    task = environment.task("test", 0)
    space = environment.answer_space(task)
    assert count(space) == 26**8
    left = intersect(space, one_of("1", "A"), one_of("2", set("ABCDEFGHIJKLMNOPQRSTUVWXYZ") - {"B"}))
    assert count(left) == 25 * 26**6


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("arithmetic", {"digits": 3, "operations": ["x"]}),
        ("shortest_path", {"smallest": 9, "largest": 9, "p_blocked": 0.05, "infeasible": 0}),
    ],
)
def test_a_space_above_the_limit_has_no_bits(name: str, config: dict[str, Any]):
    environment = build(name, config)
    task = environment.task("test", 0)
    assert environment.answer_space(task) is None
    turns = dialogue(environment, task, random.Random(0), turns=2)
    assert measure_hints(environment, task, turns) == tuple(turns)


def test_a_mixture_counts_the_answers_of_each_part():
    parts = [{"environment": {"type": "secret_code", "length": 2, "letters": 4}}, {"environment": {"type": "maze"}}]
    mixture = build("mixture", {"environments": parts})
    assert isinstance(mixture, AnswerSpace)
    task = next(task for task in (mixture.task("test", i) for i in range(5)) if task.environment == "secret_code")
    assert count(mixture.answer_space(task)) == 16
    other = build("mixture", {"environments": [parts[0], {"environment": {"type": "gsm_symbolic"}}]})
    assert isinstance(other, Environment) and not isinstance(other, AnswerSpace)
