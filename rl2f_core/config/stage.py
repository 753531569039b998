"""Configuration of one training stage."""

from __future__ import annotations

import math
import re
from typing import Literal

from pydantic import Field, model_validator

from rl2f_core import registry
from rl2f_core.config.components import MethodConfig, StageTeacherConfig
from rl2f_core.config.curriculum import Curriculum
from rl2f_core.config.fields import BASIC_FIELD, BaseConfig
from rl2f_core.config.model import LoraConfig
from rl2f_core.config.schedules import GroupSize, Rate, Schedule, Temperature, peak, resolve_float, resolve_int
from rl2f_core.errors import FieldValueError


class StageConfig(BaseConfig):
    """One training stage. The adapter continues from stage to stage; the optimizer starts new."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", json_schema_extra=BASIC_FIELD)
    """Unique in the run; checkpoints are named `name@step`."""
    method: MethodConfig = Field(json_schema_extra=BASIC_FIELD)
    """The training method."""
    trainer: Literal["native", "trl"] = "native"
    """Loss and optimizer. native: this project's. trl: TRL's GRPOTrainer, for the methods that its loss supports (rlvr,
    rl2f, rltf_grpo, reinforce_pp); dialogues and advantages are the same."""
    init_from: str | None = None
    """Initial weights: None for the previous stage's (the base for the first), `base`, or an earlier stage's name."""
    lora: LoraConfig | None = None
    """Adapter of this stage, with its own rank, or all weights; None is the run's. A stage whose adapter has another
    shape than the previous stage's needs `init_from: base`, or `init_adapter` here."""
    tasks_from: str | None = None
    """Name of an earlier stage whose tasks this stage repeats, to compare methods on the same tasks. None: tasks of its
    own, at positions of the train split that no other stage uses."""
    teacher: StageTeacherConfig | None = None
    """Source of hints in this stage; None is the run's teacher. Evaluations use the run's. Training controls:
    `contentless`, `shuffled`, `misleading`, `neutral_text`."""
    rewards: Literal["earned", "random"] = "earned"
    """random is a training control: at each turn, the dialogues of a step exchange their returns (the rewards from this
    turn on, discounted as in the method) at random: they keep their mean and say nothing about the attempts. Refused if
    the method reads more than these returns: token discounts (`gamma` of reinforce_pp and ppo, `gae_lambda`) below 1,
    rltf_sd with more than 2 turns and `gamma` above 0, sft_correct, sdpo without `rl_coef`."""
    steps: int = Field(ge=1, json_schema_extra=BASIC_FIELD)
    """Number of steps, each with `minibatches` optimizer updates per iteration."""
    tasks_per_step: int = Field(8, ge=1, json_schema_extra=BASIC_FIELD)
    """Tasks per step."""
    group_size: GroupSize | Schedule[GroupSize] = Field(8, json_schema_extra=BASIC_FIELD)
    """Dialogues per task, G; a number or a schedule."""
    minibatches: int = Field(1, ge=1)
    """Optimizer updates per iteration over a step's samples; above 1 the later ones are off-policy (clipped)."""
    num_iterations: int = Field(1, ge=1)
    """Iterations over each step's samples (μ); above 1 the later ones are off-policy (clipped)."""
    learning_rate: Rate | Schedule[Rate] = Field(2e-4, json_schema_extra=BASIC_FIELD)
    """Peak learning rate of AdamW; a number or a schedule."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate over the stage; `constant` if `learning_rate` is a schedule."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of AdamW."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """β₁ of AdamW: decay of the mean of the gradient."""
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    """β₂ of AdamW: decay of the mean of the squared gradient."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Maximum global norm of the gradient, of the value head separately; None does not clip it."""
    micro_batch_tokens: int | None = Field(None, ge=16)
    """Tokens of one forward and backward, padding included. None: 1024, on a GPU as many as a quarter of its memory
    holds, 4096 to 65536."""
    gradient_checkpointing: Literal["auto", "always", "never"] = "auto"
    """Recompute activations in the backward pass: slower, but far less memory. auto: if a micro-batch does not fit the
    free memory."""
    torch_compile: Literal["auto", "always", "never"] = "auto"
    """Compile the model's blocks with torch.compile: updates are about 20 % faster, after half a minute of compilation.
    auto: on a CPU in bfloat16, if the stage is long enough to gain time."""
    max_group_resamples: int = Field(0, ge=0)
    """Dynamic sampling: maximum number of groups with equal returns that a step samples again."""
    importance_sampling_clip_max: float | None = Field(None, gt=0)
    """Truncated importance sampling: weight each sampled token by its learner / sampler probability before the update,
    at most this (usually 2 to 10). None disables it. Useful if the sampler's logprobs differ, as with vLLM."""
    ref_model: Literal["base", "stage_start"] = "stage_start"
    """Reference model of the KL term: the base, or the weights at the start of this stage."""
    temperature: Temperature | Schedule[Temperature] | None = None
    """Sampling temperature of this stage; a number or a schedule; None is `rollout.temperature`."""
    curriculum: Curriculum | None = None
    """Levels of the environment; None trains on the environment as configured."""
    save_steps: int = Field(10, ge=1)
    """Steps between named checkpoints; the last step is always saved."""
    commit_steps: int = Field(1, ge=1)
    """Steps between commits, from which a run resumes and after which its events are visible."""

    @model_validator(mode="after")
    def _check_single_decay(self) -> StageConfig:
        if isinstance(self.learning_rate, Schedule) and self.lr_scheduler_type != "constant":
            raise FieldValueError(
                f"a learning_rate with points conflicts with lr_scheduler_type {self.lr_scheduler_type!r}; "
                "set lr_scheduler_type: constant, or a plain learning_rate",
                "learning_rate",
            )
        return self

    def resolve(self, step: int, temperature: float) -> ResolvedStage:
        """Return the settings of a 0-based step; `temperature` is that of a stage without its own."""
        changed = {
            "step": step,
            "group_size": resolve_int(self.group_size, step),
            "learning_rate": self._learning_rate(step),
            "peak_learning_rate": peak(self.learning_rate),
            "temperature": resolve_float(temperature if self.temperature is None else self.temperature, step),
        }
        return ResolvedStage.model_construct(**self.__dict__ | changed)

    def _learning_rate(self, step: int) -> float:
        """Return the rate at a step: linear warm-up, then constant, or linear or cosine decay to 0.

        If `learning_rate` is itself a schedule, only the warm-up applies to it.
        """
        rate = resolve_float(self.learning_rate, step)
        if step < self.warmup_steps:
            return rate * (step + 1) / self.warmup_steps
        if self.lr_scheduler_type == "constant":
            return rate
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return rate * (1 - done if self.lr_scheduler_type == "linear" else 0.5 * (1 + math.cos(math.pi * done)))

    def breakpoints(self) -> list[int]:
        """Return the steps of all schedule points, and 0, or all steps if the group size is interpolated.

        A stage valid at these is valid at all steps.
        """
        size, values = self.group_size, (self.group_size, self.learning_rate, self.temperature)
        steps = {0, *(p.step for value in values if isinstance(value, Schedule) for p in value.points)}
        interpolated = isinstance(size, Schedule) and size.interpolation == "linear"
        return sorted(steps.union(range(self.steps) if interpolated else ()))

    @property
    def num_tasks(self) -> int:
        """Number of tasks of all steps, with those of resampled groups."""
        return self.steps * (self.tasks_per_step + self.max_group_resamples)

    @property
    def updates_weights(self) -> bool:
        """Whether it trains and saves checkpoints; otherwise it generates a dataset."""
        return registry.get("method", self.method.type).updates_weights


class ResolvedStage(StageConfig):
    """A stage with the values of one step."""

    step: int
    """0-based."""
    group_size: int
    learning_rate: float
    """After warm-up and decay."""
    temperature: float
    peak_learning_rate: float
    """Highest learning rate of the stage's schedule."""


def saves_checkpoint(stage: StageConfig, checkpoint: str) -> bool:
    """Whether the stage saves a checkpoint of this name."""
    name, _, text = checkpoint.rpartition("@")
    if name != stage.name or not stage.updates_weights or not re.fullmatch("[1-9][0-9]*", text):
        return False
    step = int(text)
    return step == stage.steps or (step < stage.steps and step % stage.save_steps == 0)
