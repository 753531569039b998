"""binary_matrix, shortest_path and maze: tasks, verdicts, hints and reference lines, by numbers worked out by hand."""

# ruff: noqa: E501 (a table is read in one piece)
from __future__ import annotations

import random
from itertools import product

import pytest
from pydantic import ValidationError

from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.puzzles.binary_matrix.environment import BinaryMatrix, distances, is_task
from rl2f_core.environments.puzzles.grids.grid import Grid, find_path, first_path_error, length_of, read_grid, walked
from rl2f_core.environments.puzzles.grids.maze import Maze
from rl2f_core.environments.puzzles.grids.shortest_path import ShortestPath
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.mentions.detector import MentionsDetector
from rl2f_core.types import SPLITS

GRID = Grid(("S..", "#.#", "..G"))


def matrix(**config: object) -> BinaryMatrix:
    return BinaryMatrix(BinaryMatrix.Config.model_validate(config))


def path(**config: object) -> ShortestPath:
    return ShortestPath(ShortestPath.Config.model_validate(config))


def maze(**config: object) -> Maze:
    return Maze(Maze.Config.model_validate(config))


# -- binary_matrix -------------------------------------------------------------------------------------------------
def test_distances_are_steps_to_the_nearest_zero():
    assert distances(["011", "001", "111"]) == ["012", "001", "112"]
    assert distances(["0111", "1111", "1111", "1110"]) == ["0123", "1232", "2321", "3210"]


def test_the_matrices_that_are_not_their_own_answer_are_as_many_as_documented():
    for size, tasks, plain in ((2, 4, 14), (3, 220, 510)):
        rows = [["".join(d[k : k + size]) for k in range(0, size**2, size)] for d in product("01", repeat=size**2)]
        assert (sum(is_task(r, False) for r in rows), sum(is_task(r, True) for r in rows)) == (tasks, plain)


def test_a_matrix_verdict_counts_the_cells_that_the_problem_asks_for():
    env = matrix()
    task = env.task_from_gold("0 1 1\n0 0 1\n1 1 1", "012 001 112")
    # Six cells are 1; of 011 001 111 those at 1,3 and 3,3 are wrong.
    verdict = env.verify(task, wrap_answer("011 001 111"))
    assert verdict.score == pytest.approx(4 / 6) and verdict.distance == pytest.approx(2 / 6)
    assert set(verdict.parts) - set(verdict.correct_parts) == {"1,3", "3,3"} and verdict.parts["3,3"] == "1"
    # A zero that was changed counts as one more: 4 of 7.
    assert env.verify(task, wrap_answer("311 001 111")).score == pytest.approx(4 / 7)
    assert not env.verify(task, wrap_answer("01 00")).well_formed


def test_a_matrix_hint_names_the_line_of_the_first_wrong_cell_and_which_way_it_is_wrong():
    env = matrix()
    task = env.task_from_gold("0 1 1\n0 0 1\n1 1 1", "012 001 112")
    last = [env.verify(task, wrap_answer("012 003 111"))]
    said = {env.hint(task, last, random.Random(seed)) for seed in range(20)}
    assert said == {"The first wrong value in row 2 is too large.", "The first wrong value in column 3 is too large."}
    false = {env.misleading_hint(task, last, random.Random(seed)) for seed in range(60)}
    assert not said & false and "The first wrong value in row 2 is too small." in false
    # Row 1 and columns 1 and 2 are right, so blaming them is false too.
    assert {text.split(" is ")[0][-5:] for text in false} <= {"row 1", "row 2", "umn 1", "umn 2", "umn 3"}
    assert "3 rows of 3 digits" in env.hint(task, [env.verify(task, "?")], random.Random(0))


def test_a_student_who_follows_comes_nearer_each_time():
    env, rng = matrix(), random.Random(0)
    for index in range(30):
        task, verdicts = env.task("train", index), []
        for _ in range(24):
            verdicts.append(
                env.verify(task, env.simulate_attempt(task, verdicts, rng, follow_hint=bool(verdicts), correct=False))
            )
            if verdicts[-1].correct:
                break
        scores = [verdict.score for verdict in verdicts]
        assert scores == sorted(scores) and verdicts[-1].correct and len(verdicts) > 1


def test_repeating_the_matrix_solves_nothing_unless_plain_matrices_are_admitted():
    for plain in (False, True):
        env = matrix(smallest=3, largest=3, plain=plain)
        tasks = [env.task("test", i) for i in range(100)]
        share = sum(env.verify(t, wrap_answer(" ".join(t.public["rows"]))).correct for t in tasks) / len(tasks)
        assert (share > 0.05) == plain and (plain or share == 0)
    with pytest.raises(ValidationError, match="plain"):
        matrix(smallest=2, largest=3)
    env = matrix(smallest=2, largest=2, plain=True)
    assert {env.canonical(env.task(split, i)) for split in SPLITS for i in range(40)}  # every split has some of the 14


# -- walks ---------------------------------------------------------------------------------------------------------
def test_a_grid_is_read_and_walked():
    assert read_grid("Look:\nS . .\n# . #\n. . G\nWay?") == GRID
    assert (find_path(GRID), length_of(GRID)) == ("RDDR", 4)
    assert walked(GRID, "RRR") == [(0, 0), (0, 1), (0, 2)]
    assert read_grid("S . .\n. G") is None and read_grid("S . S\n. . G") is None and read_grid("words") is None


@pytest.mark.parametrize(
    "letters, slip",
    [("D", (1, "wall")), ("U", (1, "edge")), ("RRD", (2, "wasted")), ("RD", (2, "short")), ("RDDRL", (5, "wasted")),
     ("RDU", (3, "wasted")), ("RDDR", None), ("RDDL", (4, "wasted"))],
)  # fmt: skip
def test_the_first_slip_of_a_walk_is_the_one_worked_out_by_hand(letters, slip):
    assert first_path_error(GRID, letters) == slip


def test_any_shortest_way_is_right_and_a_longer_one_is_not():
    env = path()
    task = env.task_from_gold("S . .\n. . .\n. . G", "R R D D")
    for said in ("R R D D", "D D R R", "R D R D"):
        assert env.verify(task, wrap_answer(said)).score == 1
    assert not env.verify(task, wrap_answer("R R D U D D")).correct
    # Two good steps of a walk of four: 2/4.
    assert env.verify(task, wrap_answer("R D L R")).score == 0.5
    assert not env.verify(task, wrap_answer("infeasible")).correct
    blocked = env.task_from_gold("S # .\n# . .\n. . G", "infeasible")
    assert env.verify(blocked, wrap_answer("no path")).correct and env.verify(blocked, wrap_answer("R D")).score == 0


def test_a_maze_is_solved_by_any_walk_through_open_cells_that_ends_on_the_goal():
    env = maze()
    task = env.task_from_gold("S . .\n# # .\nG . .", "R R D D L L")
    assert env.verify(task, wrap_answer("R L R R D D L L")).correct
    assert not env.verify(task, wrap_answer("D D")).correct
    # Half of the six steps are behind after R R D.
    assert env.verify(task, wrap_answer("R R D")).score == 0.5
    assert env.verify(task, wrap_answer("R R D D L L R")).score == pytest.approx(5 / 6)


def test_a_maze_is_explored_step_by_step():
    env = maze(play="steps")
    task = env.task_from_gold("S . .\n# # .\nG . .", "R R D D L L")
    said, verdicts = [], []
    for walk in ("R R", "R R D D R", "R R D D L", "R R D D L L"):
        verdicts.append(env.verify(task, wrap_answer(walk)))
        said.append(env.hint(task, verdicts, random.Random(0)))
    assert said[:3] == [
        "After step 2 you are not at G yet. You stand in row 1, column 3.",
        "Step 5 leaves the grid. You stand in row 3, column 3.",
        "After step 5 you are not at G yet. You stand in row 3, column 2.",
    ]
    scores = [verdict.score for verdict in verdicts]
    assert verdicts[-1].correct and scores == pytest.approx([2 / 6, 4 / 6, 5 / 6, 1])


def test_a_path_hint_names_the_first_bad_step_and_the_false_one_another():
    env = path()
    task = env.task_from_gold("S . .\n# . #\n. . G", "R D D R")
    for walk, hint in (("D R", "Step 1 hits a wall."), ("R R D", "Step 2 is wasted."), ("U", "Step 1 leaves the grid."),
                       ("R D", "After step 2 you are not at G yet."), ("infeasible", "G can be reached.")):  # fmt: skip
        last = [env.verify(task, wrap_answer(walk))]
        assert env.hint(task, last, random.Random(0)) == hint
        false = {env.misleading_hint(task, last, random.Random(seed)) for seed in range(20)}
        assert hint not in false and not (walk == "R R D" and "Step 2 is wasted." in false)


def test_who_follows_keeps_the_steps_before_the_bad_one_and_changes_that_one():
    env, rng = path(smallest=4, largest=5, infeasible=0), random.Random(1)
    for index in range(60):
        task = env.task("train", index)
        first = env.verify(task, env.simulate_attempt(task, [], rng, follow_hint=False, correct=False))
        if first.correct or not first.parts:
            continue
        slip = env.find_error(Grid(tuple(task.public["grid"])), "".join(first.parts.values()))
        after = env.verify(task, env.simulate_attempt(task, [first], rng, follow_hint=True, correct=False))
        assert slip is not None and all(after.parts[name] == first.parts[name] for name in first.correct_parts)
        if slip.fault != "short":
            assert after.parts[str(slip.step)] != first.parts[str(slip.step)]


# -- splits and constant answers -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "env",
    [matrix(smallest=3, largest=3), path(smallest=3, largest=3), maze(rooms=2), maze()],
    ids=["matrix", "path", "small maze", "maze"],
)
def test_no_problem_stands_in_two_splits(env: Environment):
    keys = {split: {env.canonical(env.task(split, i)) for i in range(60)} for split in SPLITS}
    assert sum(map(len, keys.values())) == len(set().union(*keys.values())) and all(keys.values())


def test_the_share_of_tasks_without_a_way_is_the_one_that_was_set():
    for share in (0.0, 0.2, 0.5):
        env = path(smallest=3, largest=4, infeasible=share)
        found = [env.gold_answer(env.task("train", i)) == "infeasible" for i in range(150)]
        assert sum(found) / len(found) == pytest.approx(share, abs=0.1)
    assert sum(env.gold_answer(path(infeasible=None).task("test", i)) == "infeasible" for i in range(60)) > 10
    assert all(
        len(env.gold_answer(env.task("test", i)).split()) != 1 or env.gold_answer(env.task("test", i)) == "infeasible"
        for i in range(50)
    )


@pytest.mark.slow
def test_the_constant_answer_is_measured_over_tasks():
    env = path(smallest=3, largest=4, infeasible=0.5)
    floor = env.constant_baseline()
    assert floor.answer == "infeasible" and floor.score == pytest.approx(0.5, abs=0.1)
    tasks = [env.task("test", index) for index in range(200, 400)]
    assert floor.score == sum(env.verify(t, wrap_answer(floor.answer)).correct for t in tasks) / 200
    assert matrix().constant_baseline().score < 0.2


@pytest.mark.parametrize(
    "env", [matrix(), path(), path(infeasible=1.0), maze()], ids=["matrix", "path", "no way", "maze"]
)
def test_a_worked_solution_ends_in_the_right_answer(env):
    for index in range(20):
        task = env.task("train", index)
        text = env.worked_solution(task)
        assert env.verify(task, text).correct and len(text) < 400


# -- leaks ---------------------------------------------------------------------------------------------------------
def found(env: Environment, problem: str, gold: str, hint: str, *attempts: str):
    task = env.task_from_gold(problem, gold)
    return MentionsDetector(MentionsDetector.Config(partial=0.0), env).check(
        LeakQuery(task, hint, tuple(map(wrap_answer, attempts)))
    )


@pytest.mark.parametrize(
    "hint, share",
    [("Go right, down twice, and right.", 1), ("→↓↓→", 1), ("(1,1) (1,2) (2,2) (3,2) (3,3)", 1), ("Step 3 should be down.", 0.25), ("Start with right, down.", 0.25),
     ("R D ? ?", 0.25), ("Step 3 hits a wall.", 0), ("Step 3 is right.", 0), ("Why did you go right, right, left?", 0), ("Your R R L goes wrong.", 0), ("Step 3 should be up.", 0)],
)  # fmt: skip
def test_the_share_of_a_way_that_a_hint_gives(hint, share):
    # The student's first step is right, so of the four steps it may be told again for nothing.
    report = found(path(), "S . .\n# . #\n. . G", "R D D R", hint, "R R L")
    assert report.answer_fraction == pytest.approx(share) and report.leaked == (share > 0), report


@pytest.mark.parametrize(
    "hint, share",
    [("$\\begin{bmatrix}0&1&2\\\\0&0&1\\\\1&1&2\\end{bmatrix}$", 1), ("zero one two, zero zero one, one one two", 1), ("Row 1, column 3 should be 2.", 1 / 6),
     ("The last row is 1 1 2.", 1 / 6), ("Row 1, column 2 is 1.", 0), ("Row 2 is 0 0 1.", 0), ("Your row 3 is 1 1 1.", 0), ("The first wrong value in row 1 is too small.", 0),
     ("Row 1, column 3 is not 1.", 0), ("The 0 in row 1, column 1 stays 0.", 0)],
)  # fmt: skip
def test_the_share_of_a_matrix_that_a_hint_gives(hint, share):
    report = found(matrix(), "0 1 1\n0 0 1\n1 1 1", "012 001 112", hint, "011 001 111")
    assert report.answer_fraction == pytest.approx(share) and report.leaked == (share > 0), report


def test_a_step_of_another_shortest_way_is_told_too():
    report = found(path(), "S . .\n. . .\n. . G", "R R D D", "Step 1 should be down.", "U")
    assert report.leaked and report.answer_fraction == 0.25


def test_the_end_of_a_longer_walk_does_not_show_the_answer_but_its_beginning_does():
    problem, gold = "S . .\n# . #\n. . G", "R D D R"
    assert found(path(), problem, gold, "Psst, R D D R!", "L R D D R").leaked
    assert not found(path(), problem, gold, "L R D D R begins with a wall.", "L R D D R").leaked
    assert not found(path(), problem, gold, "Up to step 4, R D D R, nothing is wasted.", "R D D R U").leaked
