"""Action enumeration: one prompt lists the labeled valid actions, and the student chooses a label.

    π(a | s) = exp(z_a / T) / Σ_b exp(z_b / T), over the labels b of the actions that are valid in this state

z is the logit of the label's token, so one forward pass gives the whole distribution, and sampler and learner normalize
over the same labels (single-prompt action enumeration of Reflect-RL, arXiv 2402.12621, whose released code also keeps
the labels that are invalid in the state). The actions of a state are in random order.

Labels are letters that are one token of the tokenizer. If a state has more actions, the labels are numbers of equal
length. log π(a | s) is then the sum over the tokens of the label, each normalized over those that continue a label.

With `rollout.reflector`, the reflector first reads the state without the list of actions. Its text is part of the
policy's prompt. Evaluation can replace it (`RolloutRequest.reflections`, `corrupt_reflections`).
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Sequence
from typing import cast

from rl2f_core.config.rollout import RolloutConfig
from rl2f_core.dialogue.rollout.prompting import PromptBuilder
from rl2f_core.dialogue.rollout.request import RolloutRequest, turn_seed
from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.stateful import OracleEnvironment, StatefulEnvironment
from rl2f_core.errors import DataError
from rl2f_core.models.backends.base import allowed_next
from rl2f_core.models.renderer import ChatRenderer
from rl2f_core.models.tokenizer import ChatTokenizer
from rl2f_core.types import ActionChoice, Task, Turn, Verdict

LETTERS = string.ascii_uppercase + string.ascii_lowercase
QUESTION = "Answer with the label of one action."
REFLECT = "Describe in one or two sentences what matters for the next action."


def system_message(environment: Environment, config: RolloutConfig) -> str:
    """Return the student's system message."""
    if config.prompting == "enumerate":
        return cast(StatefulEnvironment[object], environment).rules()
    return environment.system_prompt()


def action_labels(tokenizer: ChatTokenizer, count: int) -> tuple[str, ...]:
    """Return different labels, none a prefix of another: letters of one token, or else numbers of equal length."""
    letters = [letter for letter in LETTERS if len(tokenizer.encode(letter)) == 1]
    if count <= len(letters):
        return tuple(letters[:count])
    return tuple(f"{i:0{len(str(count - 1))}}" for i in range(count))


def shuffled_actions(
    prompts: PromptBuilder, task: Task, verdicts: Sequence[Verdict], seed: int
) -> tuple[ActionChoice, ...]:
    """Label the valid actions of the state after `verdicts` in random order.

    Raises `DataError` if there are none.
    """
    environment = cast(StatefulEnvironment[object], prompts.environment)
    actions = list(environment.valid_actions(task, environment.restore(task, verdicts)))
    if not actions:
        raise DataError("The state has no valid action, and the episode has not ended.", value=task.id)
    random.Random(f"labels/{seed}").shuffle(actions)
    labels = action_labels(prompts.renderer.tokenizer, len(actions))
    return tuple(ActionChoice(label=label, action=a) for label, a in zip(labels, actions, strict=True))


def label_tokens(renderer: ChatRenderer, actions: Sequence[ActionChoice]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each label."""
    return tuple(tuple(renderer.tokenizer.encode(choice.label)) for choice in actions)


def allowed_tokens(choices: Sequence[Sequence[int]], label: Sequence[int], start: int) -> dict[int, list[int]]:
    """Return `TrainingSample.allowed_tokens` of a label whose first token is at position `start`."""
    return {start + i: allowed_next(choices, label[:i]) for i in range(len(label))}


def state_text(environment: Environment, task: Task, turns: Sequence[Turn]) -> str:
    """Describe the state after `turns`, and the last hint, if any."""
    hint = turns[-1].hint if turns else None
    state = cast(StatefulEnvironment[object], environment).describe_state(task, [turn.verdict for turn in turns])
    return "\n\n".join(filter(None, (state, hint.text if hint is not None else "")))


def action_text(state: str, actions: Sequence[ActionChoice], reflection: str | None = None) -> str:
    """Return the user message of the policy's prompt: state, reflection, labeled actions.

    The label follows its action (`north: B`), unlike the published list. A small causal model then learns in few
    steps to answer with the label: attention finds the action and copies the next token.
    """
    listed = "\n".join(f"{choice.action}: {choice.label}" for choice in actions)
    return "\n\n".join(filter(None, (state, reflection, f"{listed}\n{QUESTION}")))


def written_label(turn: Turn) -> str:
    """Return what the student wrote: the label of its action, or the attempt if no actions were listed."""
    labels = {wrap_answer(choice.action): choice.label for choice in turn.actions}
    return labels.get(turn.attempt, turn.attempt)


def reflection_prompt(prompts: PromptBuilder, task: Task, turns: Sequence[Turn]) -> tuple[int, ...]:
    """Return the tokens of the reflector's prompt: the state without the list of actions."""
    return prompts.renderer.initial_prompt(f"{state_text(prompts.environment, task, turns)}\n\n{REFLECT}")


def replaced_reflection(prompts: PromptBuilder, request: RolloutRequest, verdicts: Sequence[Verdict]) -> str | None:
    """Return the reflection that a request prescribes for the state after `verdicts`; None for the reflector's."""
    if request.reflections is not None:
        return request.reflections[min(len(verdicts), len(request.reflections) - 1)]
    if not request.corrupt_reflections:
        return None
    environment = cast(OracleEnvironment[object], prompts.environment)
    state = environment.restore(request.task, verdicts)
    best = environment.oracle_action(request.task, state)
    others = [action for action in environment.valid_actions(request.task, state) if action != best]
    rng = random.Random(f"corrupt/{turn_seed(request.seed, len(verdicts))}")
    return environment.reflection(request.task, state, rng.choice(others or [best]))


def with_probabilities(actions: Sequence[ActionChoice], logprobs: Sequence[float]) -> tuple[ActionChoice, ...]:
    """Add the probabilities of the actions, if their logprobs are known."""
    if not logprobs:
        return tuple(actions)
    return tuple(
        choice.model_copy(update={"probability": round(math.exp(logprob), 5)})
        for choice, logprob in zip(actions, logprobs, strict=True)
    )
