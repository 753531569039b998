"""Results of verifiers and prime-rl.

`results.jsonl` was read against `save_utils.state_to_output` of verifiers 0.1 (`prompt`, `completion`, `answer`,
`info`, `reward`, `metrics`, `error`, `is_truncated`), `traces.jsonl` against `Episode` and `Trace` (trace version 1) of
verifiers 0.4. A line of `rollouts/step_N/train_rollouts.jsonl` of prime-rl is one trace. A trace is a graph of
messages: each path to a leaf that ends with a sampled message is one rollout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobs.imports.records import (
    ImportedRollout,
    Phase,
    RolloutFormat,
    RowError,
    answers,
    as_messages,
    as_number,
    as_step,
    split_prompt,
)
from rl2f_core.types import JsonObject, Message

MAX_MESSAGES = 100_000
"""Messages of all branches of a trace; a few nodes can have very many long branches."""


class VerifiersResults(RolloutFormat):
    """Verifiers' results."""

    name = "verifiers"
    title = "verifiers results (JSONL): prompt, completion, reward, answer, info"

    def recognizes(self, keys: frozenset[str]) -> bool:
        """Return whether prompt, completion and reward exist."""
        return keys >= {"prompt", "completion", "reward"}

    def rollouts(self, row: JsonObject) -> list[ImportedRollout]:
        """Return the rollout of a row; the reward is one term, since the weights of the metrics are not stored."""
        error = row.get("error")
        completion = row.get("completion") if row.get("completion") is not None or not error else []
        return [
            ImportedRollout(
                prompt=as_messages(row.get("prompt"), "prompt", "user"),
                completion=as_messages(completion, "completion", "assistant"),
                rewards={"reward": as_number(row.get("reward"), "reward")},
                **answers(row.get("answer"), _object(row.get("info")).get("answer")),
                phase="evaluation",
                level=row["task"] if isinstance(row.get("task"), str) else "",
                truncated=row.get("is_truncated") is True,
                error=_error_text(error),
            )
        ]


class VerifiersTraces(RolloutFormat):
    """Traces of verifiers and prime-rl."""

    name = "verifiers_traces"
    is_training = True
    title = "verifiers and prime-rl traces (JSONL): episodes with traces, or traces with nodes"
    default_phase = "evaluation"

    def recognizes(self, keys: frozenset[str]) -> bool:
        """Return whether the row is an episode or a trace."""
        return "traces" in keys or keys >= {"nodes", "task"}

    def rollouts(self, row: JsonObject) -> list[ImportedRollout]:
        """Return the rollouts of all traces of a row."""
        traces = row.get("traces", [row])
        if not isinstance(traces, list) or not all(isinstance(trace, dict) for trace in traces):
            raise RowError("traces: no list of objects")
        run = _object(row.get("run"))
        work = _object(run.get("work"))
        phase: Phase | None = {"train": "train", "eval": "evaluation"}.get(str(work.get("type") or run.get("type")))  # type: ignore[assignment]
        found = []
        for trace in traces or [{**row, "nodes": []}]:  # without traces, the episode failed before the first call
            calls = _calls(trace)
            for prompt, completion in list(_branches(trace)) or [(_unanswered(trace), [])]:
                rewards, weights = _rewards(trace)
                data = _object(_object(trace.get("task")).get("data"))
                found.append(
                    ImportedRollout(
                        prompt=as_messages(prompt, "nodes", "user"),
                        completion=as_messages(completion, "nodes", "assistant"),
                        rewards=rewards,
                        weights=weights,
                        **answers(data.get("answer")),
                        phase=phase,
                        step=as_step(work.get("step"), "run.work.step"),
                        model=str(calls[0].get("model") or "") if calls else "",
                        level=str(_object(row.get("env")).get("id") or _object(trace.get("task")).get("type") or ""),
                        truncated=bool(calls) and calls[-1].get("finish_reason") == "length",
                        error=_last_error(trace),
                    )
                )
        return found


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _unanswered(trace: JsonObject) -> list[Any]:
    """Return the prompt of a trace in which nothing was sampled: that of the task, unless it was recorded."""
    data = _object(_object(trace.get("task")).get("data"))
    system, prompt = data.get("system_prompt"), data.get("prompt")
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    task = [{"role": "system", "content": system}, *messages] if system else messages
    return [node["message"] for node in trace["nodes"]] or task


def _branches(trace: JsonObject) -> Iterator[tuple[list[Message], list[Message]]]:
    """Yield the messages before and from the first sampled one, of each path to a leaf with a sampled message."""
    nodes = trace.get("nodes")
    if not isinstance(nodes, list) or not all(
        isinstance(n, dict) and isinstance(n.get("message"), dict) for n in nodes
    ):
        raise RowError("nodes: no list of messages")
    parents = [node.get("parent") for node in nodes]
    for number, parent in enumerate(parents):
        if parent is not None and not (isinstance(parent, int) and 0 <= parent < number):
            raise RowError(f"nodes.{number}.parent: {parent!r:.60} is not an earlier node")
    total = 0
    for leaf in sorted(set(range(len(nodes))) - {parent for parent in parents if parent is not None}):
        path: list[JsonObject] = []
        at: int | None = leaf
        while at is not None:
            path.append(nodes[at])
            at = parents[at]
        path.reverse()
        total += len(path)
        if total > MAX_MESSAGES:
            raise RowError(f"nodes: the branches have more than {MAX_MESSAGES:,} messages")
        first = next((k for k, node in enumerate(path) if node.get("sampled")), None)
        if first is not None:
            yield split_prompt([node["message"] for node in path], first)


def _rewards(trace: JsonObject) -> tuple[dict[str, float | None], dict[str, float]]:
    rewards, weights = {}, {}
    for name, reward in _object(trace.get("rewards")).items():
        rewards[name] = as_number(_object(reward).get("score"), f"rewards.{name}.score")
        weight = as_number(_object(reward).get("weight"), f"rewards.{name}.weight")
        weights[name] = 1.0 if weight is None else weight
    return rewards, weights


def _calls(trace: JsonObject) -> list[JsonObject]:
    """Return the model calls of a trace, oldest first."""
    calls = trace.get("calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _last_error(trace: JsonObject) -> str | None:
    """Return the last error of a trace that did not complete."""
    errors = trace.get("errors")
    return _error_text(errors[-1]) if isinstance(errors, list) and errors and not trace.get("ok") else None


def _error_text(error: object) -> str | None:
    """Return an error of verifiers, a text or an object, as text."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("error_chain_str") or error.get("error") or "unknown error"
    return str(error) if error else None
