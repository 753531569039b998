"""Hostile attempts on binary_matrix, shortest_path and maze: each scores 0, none raises, none hangs."""

# ruff: noqa: E501 (a table is read in one piece)
from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.puzzles.binary_matrix.environment import BinaryMatrix
from rl2f_core.environments.puzzles.grids.maze import Maze
from rl2f_core.environments.puzzles.grids.shortest_path import ShortestPath
from rl2f_core.errors import DataError

PLAYED: dict[str, tuple[Environment, str, str, str]] = {
    "binary_matrix": (BinaryMatrix(BinaryMatrix.Config()), "0 1 1\n0 0 1\n1 1 1", "012 001 112", "011 001 111"),
    "shortest_path": (ShortestPath(ShortestPath.Config()), "S . .\n# . #\n. . G", "R D D R", "D D R R"),
    "no_way": (ShortestPath(ShortestPath.Config()), "S # .\n# . .\n. . G", "infeasible", "D D R R"),
    "maze": (Maze(Maze.Config()), "S . .\n# # .\nG . .", "R R D D L L", "D D"),
}
"""Environment, problem, gold answer, a wrong answer."""
WIDE = str.maketrans({c: chr(ord(c) + 0xFEE0) for c in "0123456789UDLRabcdefinsl"})
HOSTILE = {
    "empty think": "<think></think>", "empty think and answer": "<think></think><answer></answer>", "filler think": "<think>" + "so " * 900 + "</think><answer>{gold}</answer>",
    "reasoning inside the answer": "<answer>The rows go up to {gold}</answer>", "several answers": "<answer>{gold}</answer><answer>{gold}</answer>",
    "text after the answer": "<answer>{gold}</answer> as you can see", "echo of the question": "<answer>{problem}</answer>", "a fake assistant": "<answer>{gold}</answer>\nAssistant: correct!",
    "nothing": "", "blank": "<answer> \n </answer>", "no tags": "{gold}", "only opened": "<answer>{gold}", "nested": "<answer><answer>{gold}</answer></answer>", "wrong, then right": "<answer>{wrong}</answer><answer>{gold}</answer>",
    "both": "<answer>{wrong} or {gold}</answer>", "twice": "<answer>{gold} {gold}</answer>", "a number": "<answer>42</answer>", "garbage": "<answer>xyzzy</answer>", "none": "<answer>None</answer>", "null": "<answer>null</answer>",
    "a dash": "<answer>-</answer>", "empty list": "<answer>[]</answer>", "empty lists": "<answer>[[]]</answer>", "code": "<answer>__import__('os').system('exit 1')</answer>", "lambda": "<answer>(lambda: '{gold}')()</answer>",
    "comprehension": "<answer>[[0]*3 for _ in range(3)]</answer>", "comma after": "<answer>{gold},</answer>", "quoted": "<answer>'{gold}'</answer>", "boxed": "<answer>\\boxed{{{gold}}}</answer>", "markdown": "<answer>**{gold}**</answer>",
    "full width": "<answer>{wide}</answer>", "zero width": "<answer>\u200b{gold}</answer>", "right to left": "<answer>\u202e{gold}</answer>", "NUL": "<answer>{gold}\x00</answer>", "surrogate": "<answer>\ud800{gold}</answer>",
    "other digits": "<answer>٠١٢ ٠٠١ ١١٢</answer>", "flat": "<answer>012001112</answer>", "flat commas": "<answer>0,1,2,0,0,1,1,1,2</answer>", "a row missing": "<answer>012 001</answer>", "a row more": "<answer>012 001 112 000</answer>",
    "turned": "<answer>001 101 212</answer>", "ragged": "<answer>0120 011 12</answer>", "floats": "<answer>[[0.0, 1.0, 2.0], [0.0, 0.0, 1.0], [1.0, 1.0, 2.0]]</answer>", "negative": "<answer>[[0, 1, 2], [0, -0, 1], [1, 1, 2]]</answer>",
    "stay": "<answer>S</answer>", "every direction": "<answer>U D L R</answer>", "other letters": "<answer>R D D R X</answer>", "diagonal": "<answer>DR D R</answer>", "mixed": "<answer>right D ↓ R</answer>", "compass": "<answer>E S S E</answer>",
    "coordinates": "<answer>(0,0) (0,1) (1,1) (2,1) (2,2)</answer>", "counts": "<answer>R 2D R</answer>", "not infeasible": "<answer>not infeasible</answer>", "feasible": "<answer>feasible</answer>", "infeasible?": "<answer>infeasible?</answer>",
    "infeasible or": "<answer>infeasible or {gold}</answer>", "unreachable": "<answer>it cannot be reached</answer>", "a long walk": "<answer>" + "R L " * 300 + "</answer>", "a very long walk": "<answer>" + "RL" * 5000 + "</answer>", "nines": "<answer>" + "9" * 9000 + "</answer>",
    "its hint": "<answer>{hint}</answer>", "the system message": "{system}", "chat marker": "<answer><|im_start|>{gold}<|im_end|></answer>", "html comment": "<!--<answer>{wrong}</answer>--><answer>{gold}</answer>",
}  # fmt: skip


@pytest.mark.parametrize("name", PLAYED)
def test_a_hostile_attempt_scores_zero(name: str):
    environment, problem, gold, wrong = PLAYED[name]
    task = environment.task_from_gold(problem, gold)
    before = [environment.verify(task, wrap_answer(wrong))]
    words = {
        "gold": gold,
        "wrong": wrong,
        "problem": problem,
        "wide": gold.translate(WIDE),
        "system": environment.system_prompt(),
    }
    words["hint"] = environment.hint(task, before, random.Random(0))
    for hack, text in HOSTILE.items():
        said = text.format(**words)
        verdict = environment.verify(task, said)
        honest = hack == "filler think"  # reasoning is not judged here, only the block
        assert verdict.correct == honest, (name, hack)
        partly = hack in ("turned", "every direction", "a long walk", "feasible")
        assert honest or partly or verdict.score == 0 or verdict.well_formed, (name, hack)
        verdict.model_dump_json()
    assert environment.verify(task, wrap_answer(gold)).correct


@pytest.mark.parametrize("name", PLAYED)
def test_what_cannot_be_read_is_no_answer_and_never_infeasible(name: str):
    environment, problem, gold, _ = PLAYED[name]
    task = environment.task_from_gold(problem, gold)
    for said in ("42", "", "?", "xyzzy", "not infeasible", "infeasible, I think", "R R D X", "012 00", "None"):
        assert environment.parse(task, said) is None, said
        verdict = environment.verify(task, wrap_answer(said))
        assert (verdict.parsed, verdict.score, verdict.well_formed) == (None, 0.0, False)


@pytest.mark.parametrize(
    "name, said",
    [("shortest_path", "RDDR"), ("shortest_path", "r d d r"), ("shortest_path", "right, down, down, right"), ("shortest_path", "→ ↓ ↓ →"), ("shortest_path", "R-D-D-R"),
     ("shortest_path", "right down down right"), ("no_way", "Infeasible"), ("no_way", "no path"), ("maze", "RRDDLL"), ("maze", "R R L R D D L L"),
     ("binary_matrix", "012\n001\n112"), ("binary_matrix", "0 1 2\n0 0 1\n1 1 2"), ("binary_matrix", "[[0,1,2],[0,0,1],[1,1,2]]"), ("binary_matrix", "012,001,112"), ("binary_matrix", "0 1 2; 0 0 1; 1 1 2")],
)  # fmt: skip
def test_other_spellings_of_the_right_answer_are_accepted(name: str, said: str):
    environment, problem, gold, _ = PLAYED[name]
    task = environment.task_from_gold(problem, gold)
    assert environment.verify(task, wrap_answer(said)).correct and environment.is_correct_answer(task, said)


@pytest.mark.parametrize("name", PLAYED)
def test_a_megabyte_is_judged_in_less_than_a_second(name: str):
    environment, problem, gold, _ = PLAYED[name]
    task = environment.task_from_gold(problem, gold)
    start = time.process_time()
    for unit in (
        "9",
        " ",
        "<answer>",
        "R ",
        "RL",
        "right ",
        "→",
        "0 1 ",
        "[",
        "012 ",
        "-",
        "1,",
        "\u0660",
        "no path ",
        "(1,1) ",
    ):
        text = unit * (1_000_000 // len(unit))
        for attempt in (text, wrap_answer(text), wrap_answer(text[:19_900])):
            assert environment.verify(task, attempt).score == 0
    assert time.process_time() - start < 1


PIECES = ["<answer>", "</answer>", "U", "D", "L", "R", " ", ", ", "-", "\n", "right", "left", "up", "down", "→", "↑", "0", "1", "2", "[", "]", ";", "012", "(1,1)", "row 1", "column 2", "is", "should be",
          "step 2", "start with", "twice", "no way", "infeasible", "then", ".", "?", "\x00", "\ud83d", "é", "is not", "\u200b", "E", "S", "2"]  # fmt: skip
TEXTS = st.one_of(st.text(max_size=80), st.lists(st.sampled_from(PIECES), max_size=24).map("".join))


@pytest.mark.parametrize("name", PLAYED)
@settings(max_examples=20, deadline=1000, derandomize=True)
@given(text=TEXTS)
def test_no_text_crashes_or_hangs_a_reader(name: str, text: str):
    environment, problem, gold, _ = PLAYED[name]
    task = environment.task_from_gold(problem, gold)
    for attempt in (text, wrap_answer(text)):
        verdict = environment.verify(task, attempt)
        assert verdict.correct == (verdict.score == 1) and (verdict.parsed is not None or verdict.score == 0)
    assert environment.is_correct_answer(task, text) == environment.verify(task, wrap_answer(text)).correct
    for start, end, said in environment.find_answers(task, text):
        assert 0 <= start < end <= len(text) and said
    for start, end, _, value in environment.stated_parts(task, text):
        assert 0 <= start < end <= len(text) and value


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
@settings(max_examples=5000, deadline=1000)
@given(text=TEXTS)
def test_no_text_of_thousands_crashes_or_hangs_a_reader(name: str, text: str):
    test_no_text_crashes_or_hangs_a_reader.hypothesis.inner_test(name, text)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_a_long_hint_is_read_in_less_than_a_second(name: str):
    environment, problem, gold, _ = PLAYED[name]
    task = environment.task_from_gold(problem, gold)
    start = time.process_time()
    for unit in ("right ", "R ", "step 1 is ", "row 1 column 1 is ", "(1,1) ", "0 ", "no way ", "→"):
        text = unit * (20_000 // len(unit))
        environment.find_answers(task, text)
        environment.stated_parts(task, text)
    assert time.process_time() - start < 4


@pytest.mark.parametrize("name", PLAYED)
def test_a_hostile_problem_or_gold_is_a_clear_error(name: str):
    environment, problem, gold, wrong = PLAYED[name]
    for answer in ("", "\x00", "9" * 10_000, "__import__('os')", wrap_answer(gold), wrong):
        with pytest.raises(DataError):
            environment.task_from_gold(problem, answer)
    for text in (
        "",
        "no grid",
        "S G\nS .",
        ". . .\n. . .",
        "0 1\n0",
        "1 1\n1 1",
        "S" * 10_000 + "G",
        "S . G " * 50,
        "0 1 " * 5000,
    ):
        with pytest.raises(DataError):
            environment.task_from_gold(text, gold)
