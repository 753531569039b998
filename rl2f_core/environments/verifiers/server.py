"""Serve environments to `taskset_package`: one JSON object per line in, one out, on standard input and output.

    python -m rl2f_core.environments.verifiers.server

Each request names the environment, its settings and a split. Jobs: `tasks` returns prompts; `verify` returns the result
of a dialogue, given all its attempts. Privileged data stays in this process.
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections.abc import Callable
from typing import TextIO

from rl2f_core import registry
from rl2f_core.config.loading import validate_config
from rl2f_core.environments.base import CONTENTLESS, Environment
from rl2f_core.environments.capabilities import ScriptedHints
from rl2f_core.types import Split, Task, Verdict


@functools.lru_cache(8)
def open_environment(name: str, settings: str) -> Environment:
    """Build an environment from its name and a JSON object. Raises `ConfigError` for unknown names or settings."""
    data = registry.expand_type("environment", {"type": name, **json.loads(settings)})
    kind = registry.get("environment", data["type"])
    return kind(validate_config(kind.Config, data))


def list_tasks(environment: Environment, split: Split, count: int) -> list[dict[str, str]]:
    """Return id and prompt of the first tasks of a split."""
    tasks = [environment.task(split, index) for index in range(count)]
    system = environment.system_prompt()
    return [{"id": task.id, "system": system, "prompt": environment.prompt(task.public)} for task in tasks]


def verify(environment: Environment, split: Split, index: int, attempts: list[str]) -> dict[str, object]:
    """Verify the attempts of a dialogue in order, until it ends.

    Returns:
        `reward` is the sum of the steps' rewards in a stateful environment, with `unfinished_reward` without an end;
        otherwise 1 if the last attempt is correct. `solved`; `done`; and `message`, what the student reads next if the
        dialogue continues.
    """
    task, verdicts = environment.task(split, index), list[Verdict]()
    for attempt in attempts:
        verdicts.append(environment.verify_turn(task, verdicts, attempt))
        if verdicts[-1].correct or verdicts[-1].done:
            break
    last = verdicts[-1]
    done = last.correct or last.done
    reward = float(bool(last.correct))
    if environment.stateful:
        reward = sum(v.reward or 0.0 for v in verdicts) + (0.0 if done else environment.unfinished_reward(task))
    message = "" if done else _message(environment, task, verdicts)
    return {"reward": reward, "solved": last.correct, "done": done, "message": message}


def _message(environment: Environment, task: Task, verdicts: list[Verdict]) -> str:
    """Return the observation, if there is one, and the environment's hint; without both, that the attempt is wrong."""
    hint = ""
    if isinstance(environment, ScriptedHints):
        hint = environment.hint(task, verdicts, random.Random(f"{task.id} {len(verdicts)}"))
    return "\n\n".join(filter(None, (verdicts[-1].observation, hint))) or CONTENTLESS


JOBS: dict[str, Callable[..., object]] = {"tasks": list_tasks, "verify": verify}


def answer(line: str) -> dict[str, object]:
    """Run one job and return its reply, or the error."""
    try:
        request = json.loads(line)
        environment = open_environment(request["environment"], request["settings"])
        return {"value": JOBS[request["job"]](environment, request["split"], **request["args"])}
    except Exception as error:  # an environment may raise anything
        return {"error": f"{type(error).__name__}: {error}"}


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer requests until the input ends."""
    for line in requests:
        replies.write(json.dumps(answer(line)) + "\n")
        replies.flush()


if __name__ == "__main__":
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what an environment prints must not mix with the replies
    serve(os.fdopen(os.dup(0), encoding="utf-8"), private)
