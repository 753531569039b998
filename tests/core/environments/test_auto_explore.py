"""`auto_explore`: commands, rewards, trees of one split, hints, the oracle, and the files."""

from __future__ import annotations

import random
from typing import Any

import pytest
from stateful_contract import check_episode, check_oracle, take

from rl2f_core.environments.base import new_task
from rl2f_core.environments.worlds.auto_explore.environment import BELOW, ELSEWHERE, HERE, AutoExplore, TreeState
from rl2f_core.environments.worlds.auto_explore.files import files, paths_of, read
from rl2f_core.errors import DataError
from rl2f_core.types import SPLITS, Task

TREE = ("heapq/heappop.py", "heapq/heapreplace.py", "json/decoder/JSONDecoder/decode.py", "json/load.py")


def environment(**config: Any) -> AutoExplore:
    return AutoExplore(AutoExplore.Config(**config))


def made(answer: str, paths: tuple[str, ...] = TREE) -> Task:
    return new_task(environment(), "made", {"question": "Which one?", "files": list(paths)}, {"answer": answer})


def test_a_file_is_found_read_and_named() -> None:
    held, task = environment(), made("json/load.py")
    assert held.prompt(task.public).splitlines()[1] == "You are in /: heapq/, json/"
    verdicts = take(held, task, ["cd json", "cat load.py", "id load.py"])
    assert verdicts[0].observation == "$ cd json\nYou are in /json/: decoder/, load.py"
    assert verdicts[1].observation == f"$ cat load.py\n{read('json/load.py')}\nYou are in /json/: decoder/, load.py"
    assert "return loads(fp.read()" in str(verdicts[1].observation)
    assert [(v.reward, v.correct, v.done) for v in verdicts] == [(-1, False, False)] * 2 + [(14, True, True)]
    assert held.plan(task) == ["cd json", "cat load.py", "id load.py"]


def test_a_wrong_file_ends_the_episode() -> None:
    verdicts = take(environment(), made("json/load.py"), ["cd heapq", "id heappop.py", "cd .."])
    assert [(v.reward, v.correct, v.done) for v in verdicts] == [(-1, False, False), (-16, False, True)]
    assert verdicts[-1].observation == "You chose heapq/heappop.py, which is another file."


def test_commands_of_a_directory_are_its_entries_and_a_file_is_read_once() -> None:
    held, task = environment(), made("json/load.py")
    assert held.valid_actions(task, TreeState()) == ["cd heapq", "cd json"]
    inside = ["cd ..", "cd decoder", "cat load.py", "id load.py"]
    assert held.valid_actions(task, TreeState("json/")) == inside
    after = held.restore(task, take(held, task, ["cd json", "cat load.py", "cd decoder", "cd .."]))
    assert held.valid_actions(task, after) == ["cd ..", "cd decoder", "id load.py"]


@pytest.mark.parametrize(
    "action",
    ["cd ..", "cd /", "cd json/decoder", "cat json/load.py", "cat /etc/passwd", "cat ../../README.md", "ls", "cat",
     "cat load.py", "id load.py", "cat LICENSE.txt", "cd heapq; id heappop.py", "cd $HOME", "CD json"],
)  # fmt: skip
def test_nothing_but_entries_of_the_current_directory_is_valid(action: str) -> None:
    (verdict,) = take(environment(), made("json/load.py"), [action])
    assert verdict.observation == "This is not a valid action. Valid actions: cd heapq, cd json."
    assert (verdict.reward, verdict.done) == (-1, False)


def test_the_oracle_goes_straight_to_the_file_from_everywhere() -> None:
    held, task, rng = environment(), made("json/decoder/JSONDecoder/decode.py"), random.Random(0)
    assert held.plan(task) == ["cd json", "cd decoder", "cd JSONDecoder", "cat decode.py", "id decode.py"]
    assert held.distance(task, TreeState("heapq/")) == 6 / 8
    assert held.distance(task, TreeState("json/", frozenset({TREE[2]}))) == 3 / 8
    for _ in range(20):
        state, done = TreeState(), False
        for _ in range(rng.randrange(8)):
            moves = [a for a in held.valid_actions(task, state) if not a.startswith("id ")]
            state = held.step(task, state, rng.choice(moves)).state
        needed = round(held.distance(task, state) * 8)
        for _ in range(needed):
            assert not done
            step = held.step(task, state, held.oracle_action(task, state))
            state, done = step.state, step.solved
        assert done


def test_hints_tell_where_the_file_is_relative_to_the_current_directory() -> None:
    held, task, rng = environment(), made("json/decoder/JSONDecoder/decode.py"), random.Random(0)
    for actions, hint in (
        (["cd heapq"], ELSEWHERE),
        (["cd heapq", "cd .."], BELOW),
        (["cd json", "cd decoder"], BELOW),
        (["cd json", "cd decoder", "cd JSONDecoder"], HERE),
    ):
        verdicts = take(held, task, actions)
        assert held.hint(task, verdicts, rng) == hint
        misleading = {held.misleading_hint(task, verdicts, random.Random(k)) for k in range(9)}
        assert misleading == {HERE, BELOW, ELSEWHERE} - {hint}


@pytest.mark.parametrize("depth", AutoExplore.level_values)
def test_every_depth_keeps_the_contract_and_splits_share_no_file(depth: int) -> None:
    held, shown = environment(depth=depth, breadth=4), {}
    for split in SPLITS:
        tasks = [held.task(split, index) for index in range(30)]
        shown[split] = {path for task in tasks for path in task.public["files"]}
        assert all(task.privileged["answer"].count("/") == depth for task in tasks)
        assert all(files()[task.privileged["answer"]].question in held.prompt(task.public) for task in tasks)
        check_episode(held, tasks[0], random.Random(depth), length=3)
        for task in tasks[:5]:
            check_oracle(held, task)
            assert len(held.plan(task)) == depth + 2
    assert not shown["train"] & shown["validation"] and not shown["test"] & (shown["train"] | shown["validation"])


def test_trees_have_the_configured_size() -> None:
    for breadth in (2, 5):
        held = environment(depth=2, breadth=breadth)
        for index in range(10):
            task = held.task("train", index)
            assert len({path.partition("/")[0] for path in task.public["files"]}) == breadth
            folders = {path.rpartition("/")[0] + "/" for path in task.public["files"]}
            listed = [held.valid_actions(task, TreeState(folder)) for folder in sorted(folders)]
            assert all(sum(a.startswith("cat ") for a in actions) <= breadth for actions in listed)
            assert all(sum(a.startswith("cd ") for a in actions) <= breadth + 1 for actions in listed)


def test_a_task_whose_file_is_not_in_the_corpus_is_refused() -> None:
    task = made("json/gone.py", ("json/gone.py", "json/load.py"))
    with pytest.raises(DataError, match=r"no such file.*json/gone\.py"):
        take(environment(), task, ["cd json", "cat gone.py"])


def test_every_file_belongs_to_one_split_and_no_question_is_asked_twice() -> None:
    assert sorted(path for split in SPLITS for path in paths_of(split)) == sorted(files())
    modules = [{path.partition("/")[0] for path in paths_of(split)} for split in SPLITS]
    assert sum(map(len, modules)) == len(set.union(*modules))
    questions = [file.question for file in files().values()]
    assert len(set(questions)) == len(questions) > 1000
    assert max(len(file.text) for file in files().values()) <= 500
