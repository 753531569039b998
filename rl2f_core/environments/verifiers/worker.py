"""The worker program: loads and scores tasksets of the package verifiers.

It runs in the Python environment of verifiers, so it imports only the standard library and verifiers. It reads one JSON
object per line and writes one per line, on private pipes: what a taskset prints does not reach them. When the parent
closes the pipe or ends, the worker ends with its process group.

Jobs: `warm` imports verifiers; `load` returns the tasks of a taskset; `score` scores replies with its rubric.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUNNER = asyncio.Runner()
"""One event loop for all jobs, because clients of judges belong to a loop."""


def warm(packages: str) -> str:
    """Import verifiers and return its version. `packages` is unused."""
    import verifiers.v1  # noqa: F401
    from verifiers import __version__

    return str(__version__)


@functools.lru_cache(4)
def read_tasks(name: str, settings: str, file_settings: str, max_tasks: int) -> list[Any]:
    """Return the first tasks of a taskset; settings are JSON objects. Raises `ValueError` if it is not text only."""
    import verifiers.v1 as vf

    config_type = vf.taskset_config_type(name)
    given = json.loads(settings)
    config = config_type.model_validate({**json.loads(file_settings), **given, "id": name})
    if paths := [key for key in given if isinstance(getattr(config, key, None), Path)]:
        raise ValueError(f"the settings {', '.join(paths)} are paths: put them into settings_file")
    environment = vf.environment_class(name)
    if environment is not vf.SingleAgentEnv:
        raise ValueError(f"it has the environment {environment.__name__}, and only one question and reply is supported")
    taskset = vf.load_taskset(config)
    if type(taskset).toolsets(config):
        raise ValueError("it has tools")
    tasks = list(itertools.islice(taskset, max_tasks))
    if not tasks:
        raise ValueError("it has no tasks")
    for number, task in enumerate(tasks):
        if reason := why_not_text(task):
            raise ValueError(f"its task {number} {reason}")
    return tasks


def why_not_text(task: Any) -> str:
    """Return why a task needs more than a text prompt, a reply and a rubric; empty if it does not."""
    import verifiers.v1 as vf

    kind = type(task)
    if kind.setup is not vf.Task.setup or kind.finalize is not vf.Task.finalize or kind.NEEDS_CONTAINER:
        return "needs a runtime: it prepares or inspects files"
    if kind.toolsets(task.config):
        return "has tools"
    judges = task.plugged_judges()
    rewards = [*task.hooks("reward"), *(judge.score for judge in judges)]
    if not rewards:
        return "has no reward"
    for reward in rewards:
        runtime = inspect.signature(reward).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            return f"needs a runtime for the reward {reward.__name__}"
    if any(not isinstance(message.content, str) for message in messages_of(task)):
        return "has a prompt that is not text"
    return "" if any(message.role == "user" for message in messages_of(task)) else "has no prompt"


def messages_of(task: Any) -> list[Any]:
    """Return the messages before the reply."""
    import verifiers.v1 as vf

    system, prompt = task.data.system_prompt, task.data.prompt
    messages = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or ())
    return [vf.SystemMessage(content=system), *messages] if system else messages


def load(**spec: Any) -> list[dict[str, object]]:
    """Return messages, key and JSON data of each task."""
    return [
        {
            "messages": [{"role": m.role, "content": m.content} for m in messages_of(task)],
            "key": task.key,
            "data": {key: value for key, value in task.data.model_dump(mode="json").items() if key != "prompt"},
        }
        for task in read_tasks(**spec)
    ]


def score(replies: list[dict[str, Any]], limit: float, **spec: Any) -> list[dict[str, object]]:
    """Score replies, each an object with `position`, `key` and `text`, at the same time."""
    tasks = read_tasks(**spec)

    async def score_all() -> list[dict[str, object]]:
        return await asyncio.gather(*(score_reply(tasks, limit=limit, **reply) for reply in replies))

    return RUNNER.run(score_all())


async def score_reply(tasks: list[Any], position: int, key: str, text: str, limit: float) -> dict[str, object]:
    """Return the reward of a reply and its terms, or the error."""
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls

    if not 0 <= position < len(tasks) or tasks[position].key != key:
        return {"error": "the taskset has changed: it does not have this task"}
    task = tasks[position]
    messages = [*messages_of(task), vf.AssistantMessage(content=text)]
    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        state=state_cls(type(task))(),
        nodes=[
            vf.MessageNode(parent=k - 1 if k else None, message=message, sampled=k == len(messages) - 1)
            for k, message in enumerate(messages)
        ],
        ok=True,
    )
    trace.stop("agent_completed")
    try:
        await asyncio.wait_for(task.score(trace), limit)
    except TimeoutError:
        return {"error": f"no reward within {limit:g} s"}
    except Exception as error:
        return {"error": described(error)}
    terms = {name: None if term is None else term.value for name, term in trace.rewards.items()}
    return {"reward": trace.reward, "terms": terms}


JOBS: dict[str, Callable[..., object]] = {"warm": warm, "load": load, "score": score}


def answer(line: str) -> dict[str, object]:
    """Run one job and return its reply."""
    try:
        request = json.loads(line)
        more = {"limit": 0.9 * request["limit"]} if request["job"] == "score" else {}
        return {"value": JOBS[request["job"]](**request["args"], **more)}
    except (Exception, SystemExit) as error:  # a taskset may raise anything
        return {"error": described(error)}


def described(error: BaseException) -> str:
    """Return type and message of an error."""
    return f"{type(error).__name__}: {error}"[:2000]


def read_requests(pipe: int, lines: queue.Queue[str]) -> None:
    """Queue the lines of the pipe; at its end, kill the process group of this worker."""
    with os.fdopen(pipe, encoding="utf-8") as requests:
        for line in requests:
            lines.put(line)
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def main() -> None:
    """Answer requests until the pipe closes."""
    requests, replies = os.dup(0), os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    sys.path[:0] = filter(None, os.environ.get("RL2F_VERIFIERS_PATH", "").split(os.pathsep))
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=read_requests, args=(requests, lines), daemon=True).start()
    while True:
        replies.write(json.dumps(answer(lines.get())) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
