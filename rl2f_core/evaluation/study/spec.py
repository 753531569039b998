"""The file of a study: a `matrix` of arms with shared settings, `seeds`, and `hypotheses`.

Each arm and seed is a part: an ordinary training run. Parts of a seed with equal first stages share a warm-up.
`data/configs/studies/tiny.yaml` is an example.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field

from rl2f_core import registry
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.evaluation import Condition
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.loading import find_config, parse_config, parse_yaml, validate_config
from rl2f_core.config.matrix import STUDY_KEYS, cells, is_matrix
from rl2f_core.config.presets import studies
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.dialogue.metrics.dialogues import tally_metrics
from rl2f_core.errors import ConfigError, nearest_names, stored_settings
from rl2f_core.learning.training.start_from import settings_of_first_stages
from rl2f_core.types import JsonObject

TRAINING = "training/"
"""Prefix of quantities of training: the mean of a metric over the newest steps of a stage."""
WARM_UP = "warm-up-"
ALIASES = {"solved": "cum_acc"}


class Hypothesis(BaseConfig):
    """A difference between two arms that is written down before the first run."""

    name: str = Field(min_length=1, max_length=200)
    """Statement, e.g. `The content of hints teaches`."""
    quantity: str
    """`solved` (within all turns), `hint_effect`, any metric of an evaluation, or `training/METRIC`."""
    compare: tuple[str, ...] = Field(min_length=2, max_length=3)
    """Two arms, each `ARM` (its last evaluated checkpoint) or `ARM:CHECKPOINT`; the second is subtracted. Of three, the
    mean of the second and the third is subtracted: is the first nearer to the third than to the second? This is not
    tested unless the third minus the second has the expected direction."""
    condition: Condition = "hints"
    """Condition of the evaluation."""
    direction: Literal["higher", "lower", "different", "same"] = "higher"
    """Expected difference; with `same`, one below the smallest effect in both directions."""
    smallest_effect: float = Field(gt=0)
    """Smallest difference of interest."""

    def difference(self, sides: Sequence[str] = ()) -> str:
        """Return what is subtracted from what, e.g. `rl2f − contentless`; `sides` are other names of the arms."""
        first, *others = sides or self.compare
        return f"{first} − {others[0]}" if len(others) == 1 else f"{first} − ({' + '.join(others)}) / 2"


class StudySettings(BaseConfig):
    """What a study adds to a matrix."""

    seeds: tuple[int, ...] = Field(min_length=1, max_length=100)
    """Seeds of each arm."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """Comparisons of arms; all are one family in Holm's correction."""


def is_arm(name: str) -> bool:
    """Return whether a part or its arm has this name, and not a warm-up."""
    return not name.startswith(WARM_UP)


@dataclass(frozen=True)
class Part:
    """One run of a study."""

    name: str
    """`ARM-seed-N`; of a warm-up `warm-up-K-seed-N`."""
    data: JsonObject
    """Configuration, without `start_from`."""
    warm_up: str | None = None
    """Name of the part whose stages it copies."""

    @property
    def is_arm(self) -> bool:
        """Whether it is no warm-up."""
        return is_arm(self.name)

    def config(self, warm_up: str | None) -> BaseRun:
        """Return the configuration; `warm_up` is the directory of the warm-up beside that of this run."""
        return parse_config({**self.data, "start_from": warm_up} if self.warm_up else self.data)


@dataclass(frozen=True)
class Study:
    """A valid study."""

    name: str
    text: str
    """Content of the file."""
    arms: dict[str, RunConfig]
    settings: StudySettings

    @property
    def sha256(self) -> str:
        """Hash of the file."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def side(self, compared: str) -> tuple[str, str]:
        """Return arm and checkpoint of an entry of `compare`."""
        arm, _, checkpoint = compared.partition(":")
        return arm, checkpoint or (self.arms[arm].evaluated_checkpoints() or [""])[-1]

    def parts(self) -> list[Part]:
        """Return all runs, each warm-up before the parts that share it."""
        parts: dict[str, Part] = {}
        for seed in self.settings.seeds:
            arms = {arm: config.model_copy(update={"seed": seed}) for arm, config in self.arms.items()}
            keys = {arm: _first_stages(config) for arm, config in arms.items()}
            shared = [key for key, count in Counter(keys.values()).items() if key and count > 1]
            for arm, config in arms.items():
                data, warm_up = config.model_dump(mode="json"), None
                if (key := keys[arm]) in shared:
                    warm_up = f"{WARM_UP}{shared.index(key) + 1}-seed-{seed}"
                    first = {**data, "stages": json.loads(key)["stages"]}
                    names = {"base", *(stage["name"] for stage in first["stages"])}
                    evaluated = [c for c in config.evaluated_checkpoints() if c.partition("@")[0] in names]
                    first["evaluation"] = {**data["evaluation"], "checkpoints": evaluated}
                    parts.setdefault(warm_up, self._part(warm_up, first))
                name = f"{arm}-seed-{seed}"
                parts[name] = self._part(name, data, warm_up)
        return [*parts.values()]

    def needed(self, begun: Collection[str]) -> list[Part]:
        """Return all arms, and the warm-ups that arms still copy; those in `begun` have their first stages."""
        parts = self.parts()
        copied = {part.warm_up for part in parts if part.name not in begun}
        return [part for part in parts if part.is_arm or part.name in copied]

    def _part(self, name: str, data: JsonObject, warm_up: str | None = None) -> Part:
        return Part(name, {**data, "name": f"{self.name}-{name}"}, warm_up)


def check_unchanged(part: Part, stored: str) -> None:
    """Raise `ConfigError` if a part exists with another configuration; `stored` is its YAML.

    A warm-up may have been started with other evaluated checkpoints: parts evaluate themselves what it lacks. An arm
    may have been started from an earlier copy of its warm-up.
    """
    with stored_settings():
        earlier = parse_yaml(stored)
    config = part.config((isinstance(earlier, RunConfig) and earlier.start_from) or part.warm_up)
    if not part.is_arm:
        checkpoints = {"checkpoints": config.evaluation.checkpoints}
        earlier = earlier.model_copy(update={"evaluation": earlier.evaluation.model_copy(update=checkpoints)})
    if earlier != config:
        raise ConfigError("The settings of a part changed after its start.", value=part.name,
                          fix="Restore them, or give the changed study another name.")  # fmt: skip


def load_study(path: str | Path) -> Study:
    """Read the file of a study, or a shipped one by its name. Raises `ConfigError` naming what is wrong."""
    file = find_config(Path(path))
    try:
        return parse_study(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The file of the study cannot be read: {error.strerror or error}.",
            value=str(path),
            known=[preset.name for preset in studies()],
            fix="Name a file or a shipped study.",
        ) from error


@lru_cache(maxsize=32)  # pages check and report the same text several times
def parse_study(text: str) -> Study:
    """Parse and validate the YAML of a study. Raises `ConfigError`."""
    try:
        data = load_yaml(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"The study is not valid YAML: {error}.") from error
    if not isinstance(data, dict) or not is_matrix(data):
        raise ConfigError("A study needs a matrix of arms.", fix="Write matrix: {arm: {NAME: {KEY: VALUE}}}.")
    given = {key: data[key] for key in STUDY_KEYS if key in data}
    settings = validate_config(StudySettings, given, "See data/configs/studies/tiny.yaml.")
    arms: dict[str, RunConfig] = {}
    for arm, cell in cells(data).items():
        config = parse_config(cell)
        if not isinstance(config, RunConfig) or not is_arm(arm):
            raise ConfigError("An arm of a study is a training run, not named warm-up-…", value=arm)
        arms[arm] = config
    study = Study(str(data.get("name", "study")), text, arms, settings)
    names = [hypothesis.name for hypothesis in settings.hypotheses]
    for field, values in (("seeds", settings.seeds), ("names of hypotheses", names)):
        if len({*values}) < len(values):
            raise ConfigError(f"The {field} of the study repeat.", value=values)
    for hypothesis in settings.hypotheses:
        _check(study, hypothesis)
    ends = settings.model_copy(update={"seeds": (min(settings.seeds), max(settings.seeds))})
    for part in replace(study, settings=ends).parts():  # other seeds differ in nothing that is checked
        part.config(part.warm_up)
    return study


def _check(study: Study, hypothesis: Hypothesis) -> None:
    where = f"Hypothesis {hypothesis.name!r}"
    if (hypothesis.quantity, hypothesis.condition) == ("hint_effect", "contentless"):
        raise ConfigError(f"{where}: hint_effect under contentless hints is 0, because it is their difference to them.",
                          value="contentless", fix="Name another condition, or quantity: solved.")  # fmt: skip
    for compared in hypothesis.compare:
        arm = compared.partition(":")[0]
        if arm not in study.arms:
            raise ConfigError(f"{where} compares an unknown arm.", value=arm, known=study.arms)
        config, checkpoint = study.arms[arm], study.side(compared)[1]
        known = config.evaluated_checkpoints()
        if checkpoint not in known:
            raise ConfigError(f"{where} compares a checkpoint that arm {arm} does not evaluate.", value=checkpoint,
                              known=known, fix="Add it to evaluation.checkpoints.")  # fmt: skip
        methods = {stage.name: registry.get("method", stage.method.type) for stage in config.stages}
        method = methods.get(checkpoint.rpartition("@")[0])
        if hypothesis.quantity.startswith(TRAINING) and not (method and method.on_policy):
            raise ConfigError(f"{where} needs a metric of rollouts, which this checkpoint's stage does not sample.",
                              value=checkpoint, fix="Name a checkpoint of a stage that samples.")  # fmt: skip
        needed = [hypothesis.condition, *(["contentless"] if hypothesis.quantity == "hint_effect" else [])]
        if missing := [name for name in needed if name not in config.evaluation.conditions]:
            raise ConfigError(f"{where} needs a condition that arm {arm} does not evaluate.", value=missing,
                              known=config.evaluation.conditions)  # fmt: skip
        metrics = tally_metrics((), config.evaluation.max_turns or config.rollout.max_turns).values
        quantities = [*ALIASES, "cum_acc", "hint_effect", *metrics, *(f"{TRAINING}{name}" for name in metrics)]
        if hypothesis.quantity not in quantities:
            nearest = nearest_names(hypothesis.quantity, quantities)
            raise ConfigError(f"{where} has an unknown quantity.", value=hypothesis.quantity, fix=f"Nearest: {nearest}")
    arms = [study.arms[study.side(compared)[0]] for compared in hypothesis.compare]
    kept = ("environment", "evaluation", "rollout", "teacher")
    if other := [name for name in kept if any(getattr(arm, name) != getattr(arms[0], name) for arm in arms)]:
        raise ConfigError(
            f"{where} compares arms that are tested differently, as they have another {' and '.join(other)}.",
            value=hypothesis.compare,
            fix="Give all arms the same; stages.N.teacher is the teacher of a stage.",
        )


def _first_stages(config: RunConfig) -> str:
    """Return a key of the stages before the first rollouts and all settings that they depend on.

    It is empty if there are none, or nothing else.
    """
    on_policy = [registry.get("method", stage.method.type).on_policy for stage in config.stages]
    count = on_policy.index(True) if True in on_policy and not config.retain_states else 0
    return json.dumps(settings_of_first_stages(config, count)) if count else ""
