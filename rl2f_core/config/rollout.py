"""Configuration of rollouts and rewards."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rl2f_core.config.fields import BASIC_FIELD, CHECKPOINT_REF, PROMPT_REF, BaseConfig
from rl2f_core.errors import FieldValueError


class ReflectorConfig(BaseConfig):
    """Adapter on the student's base that describes each state before the policy acts (Reflect-RL).

    It reads the state without the list of actions. Without stage and checkpoint, the base model reflects.
    """

    stage: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", json_schema_extra=BASIC_FIELD)
    """Earlier stage that trains the reflector; its last checkpoint is used in all later stages and evaluations."""
    checkpoint: str | None = Field(None, json_schema_extra=CHECKPOINT_REF)
    """Folder of a trained reflector."""
    max_new_tokens: int = Field(100, ge=1)
    """Maximum tokens of a reflection."""

    @model_validator(mode="after")
    def _check_source(self) -> ReflectorConfig:
        if self.stage is not None and self.checkpoint is not None:
            raise FieldValueError("the reflector has a stage and a checkpoint; leave one out", "checkpoint")
        return self


class RolloutConfig(BaseConfig):
    """How dialogues are generated."""

    max_turns: int = Field(4, ge=1, le=64, json_schema_extra=BASIC_FIELD)
    """Maximum number of attempts per dialogue, T."""
    max_new_tokens: int = Field(24, ge=1, json_schema_extra=BASIC_FIELD)
    """Maximum tokens of one attempt."""
    temperature: float = Field(1.0, ge=0, le=10)
    """Sampling temperature; logprobs are taken at this temperature. 0 is greedy, and not allowed in training."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; below 1, training is off-policy."""
    max_seq_len: int = Field(1024, ge=16)
    """Maximum tokens of a sequence; the model's limit applies too."""
    max_concurrent: int = Field(128, ge=1)
    """Maximum number of concurrent dialogues."""
    batching: Literal["continuous", "static"] = "continuous"
    """continuous: a dialogue continues as soon as its attempt is generated, and hints are requested while others
    continue. static: all attempts are generated before the next ones begin. The dialogues are the same."""
    prompting: Literal["append", "reprompt", "enumerate"] = "append"
    """Prompt of an attempt. append: the conversation continues. reprompt: after a hint, a new one-message prompt with
    the problem, the last attempt and the hint, as in RLTF. enumerate: in a stateful environment, a new prompt with the
    state and its labeled valid actions, and the attempt is one label (Reflect-RL)."""
    reprompt_template: str = Field("revise", json_schema_extra=PROMPT_REF)
    """Template of reprompts with `problem`, `attempt` and `hint`: a shipped name, or the path of a `.txt` file."""
    reflector: ReflectorConfig | None = None
    """With prompting enumerate: the adapter that writes a reflection into each prompt; None for prompts without."""


class RewardConfig(BaseConfig):
    """Reward of a turn: a sum of named terms, each stored."""

    preset: Literal["binary", "format", "logic_rl", "environment"] = Field("binary", json_schema_extra=BASIC_FIELD)
    """binary 1/0; format 1/0/−0.1; logic_rl 3/−0.5/−1/−3; environment: the reward of the step in a stateful
    environment and of an episode without an end, or of a rubric of `verifiers`, times `environment_weight`."""
    environment_weight: float = Field(1.0, gt=0)
    """Weight of the environment's reward under preset `environment`, e.g. 0.05 for Taxi (Reflect-RL)."""
    progress_weight: float = Field(0.0, ge=0)
    """Weight of the decrease of the distance to the answer since the last attempt."""
    repeat_answer_penalty: float = Field(0.0, ge=0)
    """Penalty for repeating the incorrect answer of the previous attempt."""
    leak_penalty: float = Field(0.0, ge=0)
    """Penalty for a turn after a leak that the student read; none if a leak action replaced the hint."""
