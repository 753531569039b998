"""Configuration of a run: settings of all run kinds, and of training.

Unknown keys are errors. The docstring of a field is its help text in forms. A component (environment, teacher, method,
…) is selected by its `type`.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from rl2f_core import registry
from rl2f_core.config.alerts import AlertsConfig
from rl2f_core.config.components import (
    BackendConfig,
    EnvironmentConfig,
    TeacherConfig,
    TrackerConfig,
    by_name,
    wrapped_teacher,
)
from rl2f_core.config.evaluation import EvaluationConfig, PreflightConfig
from rl2f_core.config.fields import BASIC_FIELD, RUN_REF, BaseConfig, ComponentConfig
from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.config.model import LoraConfig, ModelConfig, ResourcesConfig
from rl2f_core.config.rollout import RewardConfig, RolloutConfig
from rl2f_core.config.schedules import GREEDY_LIMIT
from rl2f_core.config.stage import StageConfig, saves_checkpoint
from rl2f_core.errors import FieldValueError, located_below, refuse_ineffective

SEED_STRIDE = 1_000_003
"""Distance of the task positions of two run seeds in the train split."""


class BaseRun(BaseConfig):
    """Base of the configuration of all run kinds."""

    if TYPE_CHECKING:
        kind: str
        """Registered name of the run kind, a literal in each subclass."""
    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$", json_schema_extra=BASIC_FIELD)
    """Display name."""
    seed: int = Field(0, ge=0, lt=2**31, json_schema_extra=BASIC_FIELD)
    """Seed of tasks, sampling and initial adapter weights."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The student's base model."""
    backend: BackendConfig = Field(by_name("auto"))
    """Generation backend."""
    environment: EnvironmentConfig = Field(json_schema_extra=BASIC_FIELD)
    """Tasks and verifier."""
    teacher: TeacherConfig = Field(by_name("scripted"), json_schema_extra=BASIC_FIELD)
    """Source of hints."""
    leak_detection: LeaksConfig = Field(default_factory=LeaksConfig)
    """Leak detection."""
    reward: RewardConfig = Field(default_factory=RewardConfig)
    """Reward terms."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Dialogues."""
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig)
    """Resources in a Ray cluster."""
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    """Evaluation."""
    lora: LoraConfig = Field(default_factory=LoraConfig)
    """Adapter."""
    tracking: TrackerConfig | None = None
    """Experiment tracker that mirrors metrics, evaluation tables and sampled dialogues."""
    alerts: AlertsConfig = Field(default_factory=AlertsConfig)
    """Alerts by webhook or command."""

    @property
    def evaluation_temperature(self) -> float:
        """Sampling temperature of evaluations."""
        given = self.evaluation.temperature
        return self.rollout.temperature if given is None else given

    @model_validator(mode="after")
    def _check_context_length(self) -> BaseRun:
        if self.rollout.max_seq_len <= self.rollout.max_new_tokens:
            raise FieldValueError(
                f"rollout.max_seq_len {self.rollout.max_seq_len} leaves no room for a prompt beside "
                f"max_new_tokens {self.rollout.max_new_tokens}; raise max_seq_len or lower max_new_tokens",
                *("rollout", "max_seq_len"),
            )
        return self

    @model_validator(mode="after")
    def _check_environment(self) -> BaseRun:
        _check_run(self.environment, self)
        _check_teacher(self.teacher, self)
        kinds = [kind for kind, _ in registry.get("environment", self.environment.type).members(self.environment)]
        if self.rollout.prompting == "enumerate" and not registry.get("environment", self.environment.type).stateful:
            raise FieldValueError(
                f"rollout.prompting enumerate lists the valid actions of a stateful environment, which "
                f"{self.environment.type!r} is not; set append or reprompt",
                *("rollout", "prompting"),
            )
        if self.rollout.reflector is not None and (
            self.rollout.prompting != "enumerate" or self.resources.rollout_workers
        ):
            raise FieldValueError(
                "rollout.reflector needs rollout.prompting: enumerate and resources.rollout_workers: 0",
                *("rollout", "reflector"),
            )
        if self.reward.preset == "environment" and not all(kind.has_rewards for kind in kinds):
            raise FieldValueError(
                f"reward.preset environment needs a stateful environment or verifiers, which {self.environment.type!r} "
                "is not; choose another preset",
                *("reward", "preset"),
            )
        return self

    @model_validator(mode="after")
    def _check_no_oracle(self) -> BaseRun:
        name = wrapped_teacher(self.teacher).type
        if "no_oracle" in self.evaluation.conditions and not registry.get("teacher", name).handles_correct_attempts:
            known = [n for n in registry.names("teacher") if registry.get("teacher", n).handles_correct_attempts]
            raise FieldValueError(
                f"evaluation.conditions has no_oracle, which needs hints on correct attempts, but teacher {name!r} "
                f"supports only incorrect ones; possible teachers: {', '.join(known)}",
                *("evaluation", "conditions"),
            )
        return self


class RunConfig(BaseRun):
    """A training run: a list of stages, e.g. sft → rl2f."""

    kind: Literal["train"] = "train"
    """Run kind."""
    stages: tuple[StageConfig, ...] = Field(min_length=1)
    """Stages in order."""
    preflight: PreflightConfig = Field(default_factory=PreflightConfig)
    """Check before each on-policy stage."""
    start_from: str | None = Field(None, max_length=4096, json_schema_extra=RUN_REF)
    """Finished training run whose stages are the first ones of this run, with the same settings: they are copied, not
    trained. Its directory, or the name of a directory beside that of this run."""
    retain_states: float = Field(0.0, ge=0, le=1)
    """Fraction of training steps, chosen by the run's seed, whose training state is kept for `rl2f reproduce`. Each
    state takes about 12 bytes of disk per trained weight, and 4 more with a KL reference."""

    def retained_steps(self) -> list[tuple[str, int]]:
        """Return stage and 1-based step of all steps whose training state is kept, in order."""
        steps = [(s.name, step + 1) for s in self.stages if s.updates_weights for step in range(s.steps)]
        count = min(len(steps), math.ceil(self.retain_states * len(steps)))
        chosen = random.Random(f"{self.seed}/retain_states").sample(range(len(steps)), count)
        return [steps[i] for i in sorted(chosen)]

    def for_stage(self, stage: StageConfig) -> RunConfig:
        """Return the run with the stage's teacher as its own."""
        return self if stage.teacher is None else self.model_copy(update={"teacher": stage.teacher})

    def lora_of(self, stage: StageConfig) -> LoraConfig:
        """Return the stage's adapter: its own, or the run's, whose `init_adapter` is that of the first stage alone."""
        if stage.lora is not None:
            return stage.lora
        return self.lora if stage.name == self.stages[0].name else self.lora.shape

    def evaluated_checkpoints(self) -> list[str]:
        """Return the checkpoint names of `evaluation.checkpoints`, in order; a reflector is not a policy."""
        names: list[str] = []
        reflector = self.rollout.reflector
        policies = [s for s in self.stages if s.updates_weights and not (reflector and s.name == reflector.stage)]
        for entry in self.evaluation.checkpoints:
            names += [f"{s.name}@{s.steps}" for s in policies] if entry == "stages" else [entry]
        return list(dict.fromkeys(names))

    def loc_of(self, stage: StageConfig, *field: str) -> tuple[str | int, ...]:
        """Return the location of a field of the stage with this name."""
        return "stages", [s.name for s in self.stages].index(stage.name), *field

    def first_task(self, stage: StageConfig) -> int:
        """Return the position in the train split of a stage's first task.

        Stages take consecutive positions: the tasks of the steps, of resampled groups, and of the preflight. A stage
        with `tasks_from` begins where that stage begins.
        """
        sizes: dict[str, int] = {}
        for other in self.stages:
            stream = other.tasks_from or other.name
            sizes[stream] = max(sizes.get(stream, 0), other.num_tasks + self.preflight.num_tasks)
        names = list(sizes)
        before = names[: names.index(stage.tasks_from or stage.name)]
        return self.seed * SEED_STRIDE + sum(sizes[name] for name in before)

    @model_validator(mode="after")
    def _check_temperature(self) -> RunConfig:
        if self.rollout.temperature <= GREEDY_LIMIT:
            raise FieldValueError(
                f"rollout.temperature: {self.rollout.temperature:g} is greedy, and training needs sampled attempts; "
                f"set a value greater than {GREEDY_LIMIT}, and for a greedy evaluation evaluation.temperature: 0",
                *("rollout", "temperature"),
            )
        return self

    @model_validator(mode="after")
    def _check_reflector(self) -> RunConfig:
        name = None if self.rollout.reflector is None else self.rollout.reflector.stage
        on_policy = [registry.get("method", stage.method.type).on_policy for stage in self.stages]
        before = self.stages[: on_policy.index(True)] if True in on_policy else self.stages
        if name is not None and name not in [stage.name for stage in before if stage.updates_weights]:
            raise FieldValueError(
                f"rollout.reflector.stage {name!r} is not a stage that trains before all on-policy stages; "
                f"known: {', '.join(stage.name for stage in before) or 'none'}",
                *("rollout", "reflector", "stage"),
            )
        for previous, stage in itertools.pairwise(self.stages):
            if (stage.init_from or previous.name) == name and self.lora_of(stage).init_adapter is None:
                refuse_ineffective(
                    f"stage {stage.name!r} would start from the weights of the reflector {name!r}; set init_from: base",
                    *self.loc_of(stage, "init_from"),
                )
        return self

    @model_validator(mode="after")
    def _check_stages(self) -> RunConfig:
        seen: list[str] = []
        for i, stage in enumerate(self.stages):
            if stage.name in seen or stage.name in ("base", "stages"):
                raise FieldValueError(
                    f"stage name {stage.name!r} is taken; stages need unique names other than `base`",
                    *("stages", i, "name"),
                )
            trained = [s.name for s in self.stages if s.name in seen and s.updates_weights]
            if stage.init_from not in (None, "base", *trained):
                raise FieldValueError(
                    f"stage {stage.name!r} starts from {stage.init_from!r}, which is not an earlier stage; "
                    f"known: {', '.join(['base', *trained])}",
                    *("stages", i, "init_from"),
                )
            self._check_adapter(i, stage)
            sources = [s.name for s in self.stages if s.name in seen and s.tasks_from is None]
            if stage.tasks_from not in (None, *sources):
                raise FieldValueError(
                    f"stage {stage.name!r} takes its tasks from {stage.tasks_from!r}, which is not an earlier stage "
                    f"with tasks of its own; known: {', '.join(sources) or 'none'}",
                    *("stages", i, "tasks_from"),
                )
            method = registry.get("method", stage.method.type)
            if self.rollout.prompting not in method.prompt_modes:
                raise FieldValueError(
                    f"stage {stage.name!r}: {stage.method.type} does not support rollout.prompting "
                    f"{self.rollout.prompting!r}; set rollout.prompting: {method.prompt_modes[0]}",
                    *("rollout", "prompting"),
                )
            self._check_support(i, stage)
            with located_below("stages", i):
                method.check_trainer(stage)
            run = self.for_stage(stage)
            if stage.teacher is not None:
                _check_run(run.environment, run)
                with located_below("stages", i):
                    _check_teacher(stage.teacher, run)
            if hasattr(stage.method, "check_stage"):  # raises `FieldValueError` if the method cannot train the stage
                for step in stage.breakpoints():
                    stage.method.check_stage(stage.resolve(step, self.rollout.temperature), run)
            if stage.curriculum is not None:
                with located_below("stages", i):
                    stage.curriculum.check(stage.name, self.environment, on_policy=method.on_policy)
                for level in stage.curriculum.environments(self.environment):
                    _check_run(level, run)
            seen.append(stage.name)
        for name in self.evaluation.checkpoints:
            if name not in ("base", "stages") and not any(saves_checkpoint(stage, name) for stage in self.stages):
                raise FieldValueError(
                    f"evaluation.checkpoints names {name!r}, which no stage saves; "
                    "known: base, stages, "
                    f"{', '.join(f'{stage.name}@{stage.steps}' for stage in self.stages if stage.updates_weights)}",
                    *("evaluation", "checkpoints"),
                )
        return self

    def _check_support(self, i: int, stage: StageConfig) -> None:
        """Refuse a trainer that does not support the prompts, and settings that the method does not read."""
        if stage.trainer == "trl" and self.rollout.prompting == "enumerate":
            raise FieldValueError(
                f"stage {stage.name!r}: TRL's loss does not normalize over the labels of a state; set trainer: native",
                *("stages", i, "trainer"),
            )
        start = getattr(stage.method, "start_step", 0)
        if start >= stage.steps:
            refuse_ineffective(
                f"stage {stage.name!r}: start_step {start} is after the last of {stage.steps} steps, so the auxiliary "
                "term would never have weight; lower start_step",
                *self.loc_of(stage, "method", "start_step"),
            )
        if registry.get("method", stage.method.type).on_policy:
            return
        is_set = {
            "rewards": stage.rewards == "random",
            "teacher": stage.teacher is not None and stage.teacher.type == "shuffled",
            "max_group_resamples": stage.max_group_resamples > 0,
            "importance_sampling_clip_max": stage.importance_sampling_clip_max is not None,
            "temperature": stage.temperature is not None and stage.updates_weights,
        }
        for field in filter(is_set.get, is_set):
            refuse_ineffective(
                f"stage {stage.name!r}: {stage.method.type} has no rollouts, which {field} changes; leave it out",
                *("stages", i, field),
            )

    def _check_adapter(self, i: int, stage: StageConfig) -> None:
        """Refuse initial weights of another shape than the stage's adapter."""
        lora, where = self.lora_of(stage), ("stages", i, "lora")
        if lora.full_finetuning and (stage.trainer == "trl" or self.backend.type == "vllm"):
            reason = "trainer trl" if stage.trainer == "trl" else "backend vllm"
            raise FieldValueError(f"stage {stage.name!r}: {reason} trains adapters alone, not all weights", *where)
        if lora.init_adapter is not None and stage.init_from is not None:
            text = f"stage {stage.name!r}: init_adapter conflicts with init_from; leave one out"
            if stage.lora is not None:
                raise FieldValueError(text, *where)
            refuse_ineffective(text, "stages", i, "init_from")
        if stage.init_from == "base" or lora.init_adapter is not None or i == 0:
            return
        source = next((s for s in self.stages[:i] if s.name == stage.init_from), self.stages[i - 1])
        if self.lora_of(source).shape != lora.shape:
            raise FieldValueError(
                f"stage {stage.name!r} starts from the weights of {source.name!r}, whose adapter has another shape; "
                "set init_from: base, or the same lora in both",
                *where,
            )


def _check_run(component: BaseConfig, run: BaseRun) -> None:
    """Call `check_run` of an environment or teacher with requirements on the run; it raises `FieldValueError`."""
    if hasattr(component, "check_run"):
        component.check_run(run)


def _check_teacher(teacher: ComponentConfig, run: BaseRun) -> None:
    """Raise `ValueError` if a teacher, or the one that it wraps, does not fit the run and its environment."""
    wrapped = wrapped_teacher(teacher)
    _check_run(teacher, run)
    if wrapped is not teacher:
        _check_run(wrapped, run)
    registry.get("teacher", wrapped.type).check_environment(run.environment)
