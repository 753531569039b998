"""Configuration: one frozen pydantic model per run, the same in browser, YAML and command line.

Unknown keys are errors, every field is documented under itself (the text becomes the form's help), and a component
(environment, teacher, method …) is chosen by its `type`.  Nothing here loads torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from rl2f_core import registry
from rl2f_core.components import component
from rl2f_core.curricula import Curriculum
from rl2f_core.errors import ConfigError, shorten
from rl2f_core.fields import BASIC, KNOWN_CHECKPOINT, KNOWN_MODEL, KNOWN_PROMPT, BaseConfig
from rl2f_core.files import disk_is_full as disk_is_full
from rl2f_core.files import write_atomically as write_atomically
from rl2f_core.matrix import cell, cells, is_matrix
from rl2f_core.overrides import put
from rl2f_core.schedules import GroupSize, Rate, Schedule, Temperature, number_at, whole_at


class ModelConfig(BaseConfig):
    """The student's base model."""

    name: str = Field("smollm2-135m", json_schema_extra={**BASIC, **KNOWN_MODEL})
    """A built-in name, a local folder with safetensors, or a hub id."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights and arithmetic; auto takes bfloat16 where the device computes it faster than float32."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where it runs; auto takes cuda, then mps, then cpu."""


class LoraConfig(BaseConfig):
    """The trained adapter."""

    rank: int = Field(16, ge=1, le=1024)
    """Rank r."""
    alpha: int = Field(32, ge=1)
    """Scale: the update is multiplied by alpha / r."""
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Module names, or every linear layer but the output."""
    layers: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the layers that are adapted, from the top; less makes the backward pass shorter."""
    start: str | None = Field(None, json_schema_extra=KNOWN_CHECKPOINT)
    """Folder of a LoRA adapter of the same shape to start from, e.g. another run's checkpoint; None starts afresh."""


class RolloutConfig(BaseConfig):
    """How dialogues are played."""

    max_turns: int = Field(4, ge=1, le=64, json_schema_extra=BASIC)
    """Student attempts allowed in a dialogue, T."""
    max_new_tokens: int = Field(24, ge=1, json_schema_extra=BASIC)
    """Tokens allowed in one attempt."""
    temperature: float = Field(1.0, gt=0, le=10)
    """Sampling temperature; log-probabilities are those at this temperature."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; anything below 1 makes training off-policy."""
    context_length: int = Field(1024, ge=16)
    """Tokens a dialogue may have; the model's own limit applies too."""
    batch_size: int = Field(128, ge=1)
    """Dialogues that are under way at once; as one ends, the next begins."""
    schedule: Literal["continuous", "lockstep"] = "continuous"
    """The dialogues are the same. continuous: each goes on as soon as its turn is done, and a model that teaches is
    asked while others go on. lockstep: all turns under way end before the next ones begin."""
    history: Literal["dialogue", "fresh"] = "dialogue"
    """How the student is asked again after a hint. dialogue: the conversation goes on. fresh: a new prompt of one
    message with the problem, the last attempt and the hint, as in RLTF."""
    fresh_prompt: str = Field("revise", json_schema_extra=KNOWN_PROMPT)
    """Template of the fresh prompts: a shipped name, or the path of a `.txt` file. It is given `problem`, `attempt`
    and `hint`."""


class ResourcesConfig(BaseConfig):
    """What a run asks of a Ray cluster. On one machine alone only `actors` counts."""

    cpus: float = Field(1, gt=0, le=1024)
    """Cores asked for each of the run's processes."""
    gpus: float | None = Field(None, ge=0, le=64)
    """GPUs asked for each of the run's processes; None asks for one where `model.device` is cuda, or auto and the
    cluster has any."""
    actors: int = Field(0, ge=0, le=512)
    """Further processes (Ray actors), each with the model, that play the dialogues for the one that learns; 0 plays
    them there too."""


class RewardConfig(BaseConfig):
    """The reward of a turn: a sum of named terms, each stored (methods.md §1)."""

    preset: Literal["binary", "format", "logic_rl"] = Field("binary", json_schema_extra=BASIC)
    """binary 1/0; format 1/0/−0.1; logic_rl 3/−0.5/−1/−3."""
    progress: float = Field(0.0, ge=0)
    """Weight of the fall of the distance to the answer since the last attempt, where there is a distance."""
    repeat_penalty: float = Field(0.0, ge=0)
    """Subtracted from an attempt that gives the same wrong answer as the attempt before it."""
    leak_penalty: float = Field(0.0, ge=0)
    """Subtracted from a turn whose preceding hint leaked."""


class LeaksConfig(BaseConfig):
    """Which detectors read a hint before the student does, and what happens to a leak."""

    detectors: tuple[component("leak"), ...] = Field(("exact", "equivalent"))  # type: ignore[valid-type, assignment]
    """Tiers, cheapest first."""
    action: Literal["flag", "redact", "resample", "drop"] = "flag"
    """flag records it; redact blanks the span; resample asks again; drop ends the dialogue."""
    resample_tries: int = Field(3, ge=1)
    """Hints asked for before a contentless one is given."""


class EvaluationConfig(BaseConfig):
    """What is measured at the end of every stage (methods.md §7, §8)."""

    tasks: int = Field(64, ge=1, json_schema_extra=BASIC)
    """Test tasks."""
    samples: int = Field(1, ge=1)
    """Dialogues on each task."""
    max_turns: int | None = Field(None, ge=1)
    """Turns; None means as in training."""
    temperature: float | None = Field(None, gt=0)
    """Sampling temperature; None means as in training."""
    split: Literal["validation", "test"] = "test"
    """Which split the tasks come from."""
    controls: tuple[Literal["hints", "no_oracle", "contentless", "resample", "shuffled", "misleading"], ...] = Field(
        ("hints", "contentless", "resample", "shuffled", "misleading"), min_length=1
    )
    """The run's teacher and the controls that make its curve believable; no_oracle is the teacher where a right answer
    does not end the dialogue and the last one counts, for self_critique."""
    checkpoints: tuple[str, ...] = ("base", "stages")
    """What a training run evaluates when it ends: `base`, `stages` (the last of each), or names like `rl2f@20`."""
    bootstrap: int = Field(2000, ge=100)
    """Resamples of the paired bootstrap."""
    seed: int = 1234
    """Seed of the sampling at evaluation; the same for every checkpoint, so that differences are paired."""


class PreflightConfig(BaseConfig):
    """Whether a run is worth starting."""

    tasks: int = Field(16, ge=1)
    """Tasks drawn with the starting weights."""
    samples: int = Field(8, ge=2)
    """Dialogues on each."""
    min_parsable: float = Field(0.5, ge=0, le=1)
    """Least share of first attempts that can be parsed."""
    min_mixed: float = Field(0.1, ge=0, le=1)
    """Least share of groups with unequal returns."""
    override: bool = False
    """Go on although it failed; recorded in the run."""


class StageConfig(BaseConfig):
    """One stage of training; the adapter goes on from stage to stage, the optimiser starts anew."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", json_schema_extra=BASIC)
    """Unique in the run; checkpoints are called `name@step`."""
    method: component("method") = Field(json_schema_extra=BASIC)  # type: ignore[valid-type]
    """What is trained on, and how."""
    trainer: Literal["own", "trl"] = "own"
    """Whose loss and optimiser train it. own: ours. trl: TRL's GRPOTrainer, for stages whose rows its loss has a place
    for (rlvr, rl2f, rltf_grpo, reinforce_pp); the dialogues and their credit are the same."""
    start_from: str | None = None
    """Weights to start from: None for the stage before (the base for the first), `base`, or an earlier stage's name."""
    steps: int = Field(ge=1, json_schema_extra=BASIC)
    """Optimiser steps (times `minibatches`)."""
    tasks_per_step: int = Field(8, ge=1, json_schema_extra=BASIC)
    """Tasks drawn at each step."""
    group_size: GroupSize | Schedule[GroupSize] = Field(8, json_schema_extra=BASIC)
    """Dialogues on each task, G; a number, or points over the steps."""
    minibatches: int = Field(1, ge=1)
    """Optimiser updates that one step's samples are split into; above 1 the later ones are off-policy (clipped)."""
    passes: int = Field(1, ge=1)
    """How often a step goes through its samples; above 1 the later passes are off-policy (clipped)."""
    learning_rate: Rate | Schedule[Rate] = Field(2e-4, json_schema_extra=BASIC)
    """Peak rate of AdamW; a number, or points over the steps."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the rate over the stage; a rate with points of its own keeps to them (constant)."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Clip the gradient's global norm."""
    micro_batch_tokens: int = Field(4096, ge=16)
    """Tokens (padding included) in one forward and backward pass."""
    recompute: Literal["auto", "always", "never"] = "auto"
    """Compute activations again in the backward pass in place of keeping them (gradient checkpointing): slower, and
    far less memory. auto: where a pass would not fit into what is free."""
    compile: Literal["auto", "always", "never"] = "auto"
    """Let torch compile the model's blocks (torch.compile): updates take about a fifth less time, after half a minute
    of compiling. auto: on a CPU in bfloat16, where a stage is so long that this is sure to be made up for."""
    max_resamples: int = Field(0, ge=0)
    """Dynamic sampling: how many groups of equal returns may be re-drawn in a step."""
    importance_cap: float | None = Field(None, gt=0)
    """Truncated importance sampling: weigh each sampled token by learner / sampler probability before the update, at
    most this (2 to 10 are usual). None does not correct; of use where the sampler's numbers differ, as vLLM's do."""
    reference: Literal["base", "stage_start"] = "stage_start"
    """π_ref of the KL stream: the base model, or the weights this stage started from."""
    temperature: Temperature | Schedule[Temperature] | None = None
    """Sampling temperature of this stage; a number, or points over the steps; None means `rollout.temperature`."""
    curriculum: Curriculum | None = None
    """Levels of the environment that training goes through; None trains on the environment as it is."""
    save_every: int = Field(10, ge=1)
    """Steps between named checkpoints; the last step is always saved."""
    commit_every: int = Field(1, ge=1)
    """Steps between commits: what a resume goes back to, and when events become visible."""

    @model_validator(mode="after")
    def _one_decay(self) -> StageConfig:
        if isinstance(self.learning_rate, Schedule) and self.schedule != "constant":
            raise ValueError(
                f"learning_rate has points of its own, which schedule {self.schedule!r} would bend; "
                "take schedule constant, or a plain learning_rate"
            )
        return self

    def at(self, step: int) -> StageAt:
        """The stage as it is at a 0-based step: every schedule replaced by its value."""
        values = dict(self.__dict__)
        values["group_size"] = whole_at(self.group_size, step)
        values["learning_rate"] = number_at(self.learning_rate, step)
        values["temperature"] = None if self.temperature is None else number_at(self.temperature, step)
        return StageAt.model_construct(**values)

    def breakpoints(self) -> list[int]:
        """The steps at which a schedule has a point, 0 among them; what holds at these holds between them too."""
        held = (self.group_size, self.learning_rate, self.temperature)
        return sorted({0, *(p.step for each in held if isinstance(each, Schedule) for p in each.points)})

    @property
    def trains(self) -> bool:
        """Whether it changes weights and so saves checkpoints, or makes a data set."""
        return bool(getattr(registry.get("method", self.method.type), "trains", True))  # type: ignore[attr-defined]


class StageAt(StageConfig):
    """A stage as it is at one step."""

    group_size: int
    learning_rate: float
    temperature: float | None


class BaseRun(BaseConfig):
    """What every kind of run needs."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$", json_schema_extra=BASIC)
    """For people."""
    seed: int = Field(0, ge=0, lt=2**31, json_schema_extra=BASIC)
    """Fixes tasks, sampling and initial adapter weights."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The student's base."""
    backend: component("backend") = Field("auto")  # type: ignore[valid-type, assignment]
    """What generates."""
    environment: component("environment") = Field(json_schema_extra=BASIC)  # type: ignore[valid-type]
    """Tasks and verifier."""
    teacher: component("teacher") = Field("scripted", json_schema_extra=BASIC)  # type: ignore[valid-type, assignment]
    """Who hints."""
    leaks: LeaksConfig = Field(default_factory=LeaksConfig)
    """Leak detection."""
    reward: RewardConfig = Field(default_factory=RewardConfig)
    """Reward terms."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Dialogues."""
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig)
    """On a cluster."""
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    """Measurement."""
    lora: LoraConfig = Field(default_factory=LoraConfig)
    """Adapter."""

    @model_validator(mode="after")
    def _context_holds_a_turn(self) -> BaseRun:
        if self.rollout.context_length <= self.rollout.max_new_tokens:
            raise ValueError(
                f"rollout.context_length {self.rollout.context_length} leaves no room for a prompt beside "
                f"max_new_tokens {self.rollout.max_new_tokens}; raise context_length or lower max_new_tokens"
            )
        return self

    @model_validator(mode="after")
    def _environment_fits(self) -> BaseRun:
        _check_run(self.environment, self)
        return self

    @model_validator(mode="after")
    def _teacher_can_go_on(self) -> BaseRun:
        name: Any = self.teacher.type  # type: ignore[attr-defined]
        teacher: Any = registry.get("teacher", name)
        if "no_oracle" in self.evaluation.controls and not getattr(teacher, "after_right", False):
            fitting = [
                n for n in registry.names("teacher") if getattr(registry.get("teacher", n), "after_right", False)
            ]
            raise ValueError(
                f"evaluation.controls has no_oracle, where right answers are hinted on too, but teacher {name!r} "
                f"speaks of wrong attempts alone; fitting teachers: {', '.join(fitting)}"
            )
        return self


class RunConfig(BaseRun):
    """A training run: a list of stages, e.g. sft → rl2f."""

    kind: Literal["train"] = "train"
    """Kind of run."""
    stages: tuple[StageConfig, ...] = Field(min_length=1)
    """In order."""
    preflight: PreflightConfig = Field(default_factory=PreflightConfig)
    """The check before the first stage that learns from its own dialogues."""

    @model_validator(mode="after")
    def _stages_fit(self) -> RunConfig:
        from rl2f_core.methods.fitting import check_trainer

        seen: list[str] = []
        for stage in self.stages:
            if stage.name in seen or stage.name in ("base", "stages"):
                raise ValueError(f"stage name {stage.name!r} is taken; stages need unique names other than `base`")
            trained = [s.name for s in self.stages if s.name in seen and s.trains]
            if stage.start_from not in (None, "base", *trained):
                raise ValueError(
                    f"stage {stage.name!r} starts from {stage.start_from!r}, which is no earlier stage; "
                    f"known: {', '.join(['base', *trained])}"
                )
            method: Any = registry.get("method", stage.method.type)  # type: ignore[attr-defined]
            if self.rollout.history not in method.histories:
                raise ValueError(
                    f"stage {stage.name!r}: {stage.method.type} cannot learn where rollout.history is "  # type: ignore[attr-defined]
                    f"{self.rollout.history!r}; set rollout.history: {method.histories[0]}"
                )
            check_trainer(stage, method)
            check = getattr(stage.method, "check_stage", None)
            if check is not None:
                for step in stage.breakpoints():
                    check(stage.at(step), self)
            if stage.curriculum is not None:
                stage.curriculum.check(stage.name, self.environment, on_policy=method.on_policy)
                for level in stage.curriculum.environments(self.environment):
                    _check_run(level, self)
            seen.append(stage.name)
        for name in self.evaluation.checkpoints:
            if name not in ("base", "stages") and not any(_saves(stage, name) for stage in self.stages):
                raise ValueError(
                    f"evaluation.checkpoints names {name!r}, which no stage saves; "
                    "known: base, stages, "
                    f"{', '.join(f'{stage.name}@{stage.steps}' for stage in self.stages if stage.trains)}"
                )
        return self


def _check_run(environment: Any, run: BaseRun) -> None:
    """Let an environment's configuration refuse the rest of the run. Raises `ValueError`."""
    check = getattr(environment, "check_run", None)
    if check is not None:
        check(run)


def _saves(stage: StageConfig, checkpoint: str) -> bool:
    """Whether the stage saves a checkpoint of this name."""
    name, _, text = checkpoint.rpartition("@")
    if name != stage.name or not stage.trains or not (text.isascii() and text.isdigit()) or text != str(int(text)):
        return False
    step = int(text)
    return step == stage.steps or (0 < step < stage.steps and step % stage.save_every == 0)


def parse_config(data: Any) -> BaseRun:
    """Validate a mapping as the config of its `kind` (default: train). Raises `ConfigError` naming each bad field."""
    if not isinstance(data, dict):
        raise ConfigError("A configuration is a mapping of keys to values.", value=data)
    kind = data.get("kind", "train")
    if not isinstance(kind, str) or kind not in registry.names("kind"):
        raise ConfigError("Unknown kind of run.", value=kind, known=registry.names("kind"))
    config_type = registry.get("kind", kind).config_type  # type: ignore[attr-defined]
    try:
        return config_type.model_validate(data)
    except ValidationError as error:
        raise ConfigError(describe(error, config_type), fix="`rl2f config schema` lists every field.") from error


def describe(error: ValidationError, config_type: type[BaseModel]) -> str:
    """A validation error in one line a field: where, what, and the value."""
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "(the whole configuration)"
        what = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            what = f"unknown key{_nearest(str(item['loc'][-1]), item['loc'][:-1], config_type)}"
        elif item["type"] != "value_error" and not isinstance(item.get("input"), dict):
            what += f" (got {shorten(repr(item.get('input')), 60)})"
        lines.append(f"{where}: {what}")
    return f"The configuration has {len(lines)} error(s): " + "; ".join(lines) + "."


def _nearest(key: str, loc: tuple[Any, ...], config_type: type[BaseModel]) -> str:
    import difflib

    if loc:
        return ""
    near = difflib.get_close_matches(key, list(config_type.model_fields), 1)
    return f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(config_type.model_fields)}"


def load_config(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> BaseRun:
    """Read a YAML file, apply `a.b=c` overrides, validate. `FILE:CELL` is one cell of a file with a matrix."""
    path, chosen = Path(path), ""
    if not path.exists() and ":" in path.name:
        file, _, chosen = str(path).rpartition(":")
        path = Path(file)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError("The configuration file does not exist.", value=str(path)) from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"The configuration file cannot be read: {error}.", value=str(path)) from error
    if not isinstance(data, dict):
        raise ConfigError("The configuration file holds no mapping.", value=str(path))
    if is_matrix(data):
        if not chosen:
            raise ConfigError("The file holds a matrix of configurations.", value=str(path), known=list(cells(data)),
                              fix=f"Choose one: {path}:{next(iter(cells(data)))}")  # fmt: skip
        data = cell(data, chosen)
    elif chosen:
        raise ConfigError("The file holds no matrix, so it has no cells.", value=str(path))
    for override in overrides:
        data = apply_override(data, override)
    return parse_config(data)


def apply_override(data: dict[str, Any], override: str) -> dict[str, Any]:
    """A copy of `data` with `a.b.0.c=value` applied; the value is read as YAML, list positions are numbers."""
    dotted, sign, text = override.partition("=")
    if not sign or not dotted:
        raise ConfigError("An override has the form a.b=value.", value=override)
    try:
        value = yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError("The override's value is not YAML.", value=override) from error
    return put(data, dotted, value, override)


def dump_yaml(config: BaseModel) -> str:
    """The config as YAML with every default written out; `load_config` of it gives the same config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110)
