"""`auto_explore`: find the file that fits a description in a directory tree, one command per attempt.

Commands and rewards are those of AutoExplore in Reflect-RL (arXiv 2402.12621): `cd`, `cat` and `id`, −1 per step, +15
at the end for the right `id`, otherwise −15, also without an `id`. The tree is part of Python's standard library and
exists in memory only; nothing is executed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import new_task, wrap_answer
from rl2f_core.environments.capabilities import Baselines, Levels, MisleadingHints
from rl2f_core.environments.stateful import OracleEnvironment, Step
from rl2f_core.environments.worlds.auto_explore.files import files, paths_of, read
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

STEP_REWARD, END_REWARD = -1.0, 15.0
ERROR_COST, WARNING_COST = 2.0, 1.0
HERE, BELOW, ELSEWHERE = (
    "The file is in the current directory.",
    "The file is in a directory below the current one.",
    "The file is not below the current directory.",
)


class TreeState(NamedTuple):
    """What commands change."""

    directory: str = ""
    """Path of the current directory: empty at the root, otherwise it ends with a slash."""
    read: frozenset[str] = frozenset()
    """Paths of the files that `cat` has shown."""


@register("environment")
class AutoExplore(OracleEnvironment[TreeState], MisleadingHints, Baselines, Levels):
    """`cat` shows a file of the current directory once. `id` names the answer and ends the episode."""

    invalid_reward = STEP_REWARD
    level_field = "depth"
    level_values = (1, 2, 3)

    class Config(ComponentConfig):
        """Size of the tree."""

        type: Literal["auto_explore"] = "auto_explore"
        """Name of the environment."""
        depth: int = Field(1, ge=1, le=3, json_schema_extra=BASIC_FIELD)
        """Directories between the root and the file."""
        breadth: int = Field(3, ge=2, le=8, json_schema_extra=BASIC_FIELD)
        """Maximum number of directories, and of files, in a directory."""
        invalid_costs: bool = False
        """An invalid command costs 2 more (*Error*), an attempt without a command 1 more (*Warning*). The released code
        of Reflect-RL defines these costs but never charges them."""
        seed: int = 0
        """Seed of the task order."""

    config: Config

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        """Return a task whose tree has files of one split only, so that splits share no file."""
        depth, breadth = self.config.depth, self.config.breadth
        rng = random.Random(f"{self.name}/{self.config.seed}/{split}/{index}")
        paths = [path for path in paths_of(split) if path.count("/") <= depth]
        target = rng.choice([path for path in paths if path.count("/") == depth])
        public = {"question": files()[target].question, "files": sorted(_grow(rng, paths, "", target, breadth))}
        task = new_task(self, f"depth {depth}", public, {"answer": target})
        return task.model_copy(update={"split": split, "id": f"{self.name}/{split}/{index}"})

    def system_prompt(self) -> str:
        return (
            "You search a directory tree for the function that a sentence describes. Reply with one command: "
            "cd DIRECTORY, cd .., cat FILE (shows a file), or id FILE (your answer, which ends the search). "
            f"Example: {wrap_answer('cat merge.py')}."
        )

    def prompt(self, public: TaskData) -> str:
        return f"Which file fits this description? {public['question']}\n{_listing(public['files'], '')}"

    # -- episode -----------------------------------------------------------------------------------------------
    def initial(self, task: Task) -> TreeState:
        return TreeState()

    def valid_actions(self, task: Task, state: TreeState) -> Sequence[str]:
        folders, names = _entries(task.public["files"], state.directory)
        unread = [name for name in names if state.directory + name not in state.read]
        up = ["cd .."] if state.directory else []
        moves = [*up, *(f"cd {name}" for name in folders)]
        return [*moves, *(f"cat {name}" for name in unread), *(f"id {name}" for name in names)]

    def step(self, task: Task, state: TreeState, action: str) -> Step[TreeState]:
        command, _, name = action.partition(" ")
        path = state.directory + name
        if command == "id":
            solved = path == task.privileged["answer"]
            text = f"You chose {path}, which is {'the file' if solved else 'another file'}."
            return Step(state, text, STEP_REWARD + (END_REWARD if solved else -END_REWARD), done=True, solved=solved)
        shown = ""
        if command == "cat":
            state, shown = state._replace(read=state.read | {path}), f"{read(path)}\n"
        elif name == "..":
            state = state._replace(directory=_parent(state.directory))
        else:
            state = state._replace(directory=f"{path}/")
        return Step(state, f"$ {action}\n{shown}{_listing(task.public['files'], state.directory)}", STEP_REWARD)

    def _act(self, task: Task, earlier: Sequence[Verdict], action: str | None, problem: str = "") -> Verdict:
        verdict = super()._act(task, earlier, action, problem)
        if verdict.well_formed or not self.config.invalid_costs:
            return verdict
        return verdict.model_copy(update={"reward": STEP_REWARD - (WARNING_COST if action is None else ERROR_COST)})

    def unfinished_reward(self, task: Task) -> float:
        return -END_REWARD

    def oracle_action(self, task: Task, state: TreeState) -> str:
        """Go to the file, read it and name it."""
        target: str = task.privileged["answer"]
        if not target.startswith(state.directory):
            return "cd .."
        folder, _, rest = target.removeprefix(state.directory).partition("/")
        if rest:
            return f"cd {folder}"
        return f"id {folder}" if target in state.read else f"cat {folder}"

    def plan(self, task: Task) -> list[str]:
        """Return the oracle's commands from the root to the end; reads no file."""
        *folders, name = task.privileged["answer"].split("/")
        return [*(f"cd {folder}" for folder in folders), f"cat {name}", f"id {name}"]

    def distance(self, task: Task, state: TreeState) -> float:
        """Return the commands that the oracle needs, divided by those from the farthest directory."""
        target: str = task.privileged["answer"]
        up, common = 0, state.directory
        while not target.startswith(common):
            up, common = up + 1, _parent(common)
        needed = up + target.removeprefix(common).count("/") + (target not in state.read) + 1
        return needed / (2 * max(path.count("/") for path in task.public["files"]) + 2)

    # -- optional parts ----------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Return whether the file is in the current directory, below it, or neither."""
        target: str = task.privileged["answer"]
        directory = self.restore(task, attempts).directory
        if not target.startswith(directory):
            return ELSEWHERE
        return BELOW if "/" in target.removeprefix(directory) else HERE

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Return one of the other two hints."""
        true = self.hint(task, attempts, rng)
        return rng.choice([text for text in (HERE, BELOW, ELSEWHERE) if text != true])

    def constant_baseline(self) -> ConstantBaseline:
        """The root contains no file, so no command alone solves a task."""
        return ConstantBaseline("cd ..", 0.0)


def _entries(paths: Sequence[str], directory: str) -> tuple[list[str], list[str]]:
    """Return the directories and the files in a directory."""
    inside = [path.removeprefix(directory).partition("/") for path in paths if path.startswith(directory)]
    return list(dict.fromkeys(head for head, slash, _ in inside if slash)), [
        head for head, slash, _ in inside if not slash
    ]


def _listing(paths: Sequence[str], directory: str) -> str:
    """Return the current directory and what it contains."""
    folders, names = _entries(paths, directory)
    return f"You are in /{directory}: {', '.join([*(f'{name}/' for name in folders), *names])}"


def _parent(directory: str) -> str:
    """Return the directory above."""
    return directory[: directory.rstrip("/").rfind("/") + 1]


def _grow(rng: random.Random, paths: Sequence[str], directory: str, target: str, breadth: int) -> list[str]:
    """Return files of a random tree below a directory that contains the target if it is below the directory."""
    folders, names = _entries(paths, directory)
    head = target.removeprefix(directory).partition("/")[0] if target.startswith(directory) else ""

    def choose(entries: list[str]) -> list[str]:
        others = [entry for entry in entries if entry != head]
        kept = [head] if head in entries else []
        return kept + rng.sample(others, min(len(others), breadth - len(kept)))

    result = [directory + name for name in choose(names)]
    for name in choose(folders):
        below = f"{directory}{name}/"
        result += _grow(rng, [path for path in paths if path.startswith(below)], below, target, breadth)
    return result
