"""Stateful environments: each attempt is one action, and the reply of the environment is an observation.

A dialogue is an episode. The verdict on an attempt contains observation, reward and end of the episode; the student
reads the observation, and then the hint, if there is one. No state is stored: it follows from the task and the recorded
actions, so a fork or a resumed dialogue continues exactly. `restore` compares the observations with the recorded ones.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.capabilities import Demonstrator
from rl2f_core.errors import DataError, shorten
from rl2f_core.types import Task, Verdict

StateT = TypeVar("StateT")
MAX_ACTION_CHARS = 200
"""Longer actions are unparsable."""
MAX_LISTED = 40
"""Valid actions that the reply to an invalid one lists."""
MAX_PLAN = 200
"""Actions of the longest plan."""


@dataclass(frozen=True, slots=True)
class Step(Generic[StateT]):
    """The result of one action."""

    state: StateT
    observation: str
    """What the student reads."""
    reward: float
    done: bool = False
    """The episode ended."""
    solved: bool = False
    """The task is solved, which ends the episode."""


class StatefulEnvironment(Environment, Generic[StateT]):
    """An environment with a state that actions change.

    A subclass implements `task`, `prompt` (with the first observation), `initial`, `valid_actions` and `step`. States
    and steps depend only on the task and the actions. An invalid action uses a turn and does not change the state.
    """

    stateful = True
    has_rewards = True

    @property
    def invalid_reward(self) -> float:
        """Reward of an invalid action."""
        return 0.0

    @abstractmethod
    def initial(self, task: Task) -> StateT:
        """Return the state before the first action."""

    @abstractmethod
    def valid_actions(self, task: Task, state: StateT) -> Sequence[str]:
        """Return the actions that are possible in a state, in normal form."""

    @abstractmethod
    def step(self, task: Task, state: StateT, action: str) -> Step[StateT]:
        """Take a valid action. The caller does not use `state` again, so a mutable one may change."""

    def distance(self, task: Task, state: StateT) -> float | None:
        """Return the distance to the goal in (0, 1] before it is reached; None if it is undefined."""
        return None

    def system_prompt(self) -> str:
        return f"Each reply is one action: {wrap_answer('action')}."

    def rules(self) -> str:
        """Return the system message of prompts that list the valid actions: the rules without an answer format."""
        return ""

    def describe_state(self, task: Task, earlier: Sequence[Verdict]) -> str:
        """Return the current state for a student that reads each state in a prompt of its own.

        The default is the problem, and after an action the actions so far and the last observation.
        """
        last = (earlier[-1].observation or "",) if earlier else ()
        return "\n".join((self.prompt(task.public), *actions_so_far(earlier), *last))

    def gold_answer(self, task: Task) -> str:
        """Return a solution as text, for leak detection and people; empty if none is known.

        `verify` does not accept it, because an attempt is one action.
        """
        return ""

    def parse(self, task: Task, text: str) -> str | None:
        """Return the action with single spaces; None if it is empty, too long or not printable."""
        action = " ".join(text.split())
        return action if action and len(action) <= MAX_ACTION_CHARS and action.isprintable() else None

    def verify(self, task: Task, attempt: str) -> Verdict:
        """Return the verdict on the first action."""
        return self.verify_turn(task, (), attempt)

    def verify_turn(self, task: Task, earlier: Sequence[Verdict], attempt: str) -> Verdict:
        """Take the action of an attempt after the recorded ones.

        Raises `DataError` if the episode has ended, or if `restore` does.
        """
        inner, problem = self.extract(attempt)
        action = None if inner is None else self.parse(task, inner)
        return self._act(task, earlier, action, problem)

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        return self._act(task, (), parsed)

    def restore(self, task: Task, earlier: Sequence[Verdict]) -> StateT:
        """Return the state after recorded actions, which are taken again.

        Raises `DataError` if an action is not valid, an observation differs, or an action follows the end.
        """
        state = self.initial(task)
        for index, verdict in enumerate(earlier):
            if index and earlier[index - 1].done:
                raise DataError("The recorded episode continues after its end.", value=f"turn {index + 1}")
            if not verdict.well_formed:
                continue
            action = verdict.parsed or ""
            step = self.step(task, state, action) if action in self.valid_actions(task, state) else None
            if step is None or step.observation != verdict.observation:
                what = "action is not valid" if step is None else "observation differs"
                raise DataError(
                    f"The recorded episode does not match the environment: at turn {index + 1} the {what}.",
                    value=shorten(action if step is None else step.observation, 200),
                    known=[shorten(verdict.observation or "", 200)],
                    fix="Use the environment and configuration that recorded it.",
                )
            state = step.state
        return state

    def _act(self, task: Task, earlier: Sequence[Verdict], action: str | None, problem: str = "") -> Verdict:
        if earlier and earlier[-1].done:
            raise DataError("The episode has ended.", value=f"turn {len(earlier)}")
        state = self.restore(task, earlier)
        valid = self.valid_actions(task, state)
        if action is None or action not in valid:
            listed = ", ".join(valid[:MAX_LISTED]) + (", …" if len(valid) > MAX_LISTED else "")
            last = next((v.observation for v in reversed(earlier) if v.well_formed), None)
            return Verdict(
                correct=False,
                score=0.0,
                parsed=action,
                detail=problem or f"invalid action: {shorten(repr(action), 80)}",
                distance=self.distance(task, state) if action is not None else None,
                observation="\n\n".join(filter(None, (f"This is not a valid action. Valid actions: {listed}.", last))),
                reward=self.invalid_reward,
            )
        step = self.step(task, state, action)
        done = step.done or step.solved
        distance = self.distance(task, step.state) if not done else None
        return Verdict(
            correct=step.solved,
            score=float(step.solved),
            parsed=action,
            detail=f"{action}: reward {step.reward:g}" + (", solved" if step.solved else ", ended" if done else ""),
            well_formed=True,
            distance=0.0 if step.solved else distance,
            observation=step.observation,
            reward=step.reward,
            done=done,
        )


def actions_so_far(earlier: Sequence[Verdict]) -> tuple[str, ...]:
    """Return a line with the actions of an episode; none before the first."""
    return (f"Actions so far: {', '.join(verdict.parsed or '-' for verdict in earlier)}.",) if earlier else ()


class OracleEnvironment(StatefulEnvironment[StateT], Demonstrator):
    """A stateful environment with an oracle, which also writes demonstrations."""

    @abstractmethod
    def oracle_action(self, task: Task, state: StateT) -> str:
        """Return the best action in a state before the end."""

    def plan(self, task: Task) -> list[str]:
        """Return the oracle's actions from the initial state to the end, at most `MAX_PLAN`."""
        state = self.initial(task)
        actions: list[str] = []
        while len(actions) < MAX_PLAN:
            actions.append(self.oracle_action(task, state))
            step = self.step(task, state, actions[-1])
            if step.done or step.solved:
                break
            state = step.state
        return actions

    def reflection(self, task: Task, state: StateT, action: str) -> str:
        """Argue for an action: the oracle's in demonstrations of a reflector, another one to mislead."""
        return f"The next action is {action}."

    def correction(self, task: Task, state: StateT, wrong: str, action: str) -> str:
        """Explain that the last action was wrong, and argue for the next one."""
        return f"The last action, {wrong}, was a mistake. {self.reflection(task, state, action)}"

    def gold_answer(self, task: Task) -> str:
        """Return the oracle's plan, separated by commas. `verify` does not accept it: an attempt is one action."""
        return ", ".join(self.plan(task))

    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Write the oracle's action if `follow_hint` or `correct`, otherwise a random valid one."""
        state = self.restore(task, attempts)
        if follow_hint or correct:
            return wrap_answer(self.oracle_action(task, state))
        return wrap_answer(rng.choice(self.valid_actions(task, state)))
