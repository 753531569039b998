"""Configuration of base model, adapter and resources."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rl2f_core.config.fields import BASIC_FIELD, CHECKPOINT_REF, MODEL_REF, BaseConfig
from rl2f_core.errors import FieldValueError


class ModelConfig(BaseConfig):
    """The student's base model."""

    name: str = Field("smollm2-135m", json_schema_extra={**BASIC_FIELD, **MODEL_REF})
    """A built-in name, a local folder with safetensors, or a hub id."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type; auto is bfloat16 if the device supports it natively, otherwise float32."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device; auto is the first available of cuda, mps, cpu."""


class LoraConfig(BaseConfig):
    """The trained weights: an adapter, or all weights of the model."""

    full_finetuning: bool = False
    """Train all weights instead of an adapter, with backend hf. Needs 16 bytes per weight beside the sampler's copies;
    the preflight estimates the memory. The settings of the adapter must be left out."""
    rank: int = Field(16, ge=1, le=1024)
    """Rank r of the update."""
    alpha: int = Field(32, ge=1)
    """Scale: the update is multiplied by alpha / r."""
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Module names, or every linear layer but the output."""
    top_layer_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the layers with an adapter, from the top; less makes the backward pass shorter."""
    init_adapter: str | None = Field(None, json_schema_extra=CHECKPOINT_REF)
    """Folder of an initial adapter of the same shape (or of a full checkpoint), e.g. another run's checkpoint; None
    begins with the base model."""

    @model_validator(mode="after")
    def _check_full(self) -> LoraConfig:
        names = ("rank", "alpha", "target_modules", "top_layer_fraction")
        unused = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
        if self.full_finetuning and unused:
            raise FieldValueError(f"full_finetuning has no adapter; leave out {', '.join(unused)}", "full_finetuning")
        return self

    @property
    def shape(self) -> LoraConfig:
        """The settings that two adapters must share so that one can have the other's weights."""
        return self.model_copy(update={"init_adapter": None})


class ResourcesConfig(BaseConfig):
    """Resources in a Ray cluster. Without a cluster only `rollout_workers` has an effect."""

    num_cpus: float = Field(1, gt=0, le=1024)
    """CPU cores per process."""
    num_gpus: float | None = Field(None, ge=0, le=64)
    """GPUs per process; None is 1 if `model.device` is cuda, or auto in a cluster with GPUs."""
    rollout_workers: int = Field(0, ge=0, le=512)
    """Number of Ray actors with a copy of the model that generate rollouts; 0 generates in the training process."""

    def bundle(self, device: str, *, has_gpus: bool) -> dict[str, float]:
        """Return Ray's resources of one process; `device` is `model.device`, `has_gpus` the cluster's."""
        default = 1.0 if device == "cuda" or (device == "auto" and has_gpus) else 0.0
        gpus = default if self.num_gpus is None else self.num_gpus
        return {"CPU": float(self.num_cpus), **({"GPU": float(gpus)} if gpus else {})}
