"""The learner: a LoRA adapter on a frozen base, AdamW, the three-stream loss, exact save and load.

PEFT holds the adapter and Hugging Face Accelerate wraps model and optimiser.  There is no dropout, so training draws
no random numbers: what a step does is fixed by weights, optimiser and rows.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl2f_core.backends._shared import WORTH, saving, shares
from rl2f_core.backends._torch import load_base, selected_logprobs
from rl2f_core.config import LoraConfig, StageConfig
from rl2f_core.errors import AdapterError, ConfigError, RunError
from rl2f_core.training.batch import MicroBatch, micro_batches, minibatches, norms_of, weighted_positions
from rl2f_core.training.behaviour import settled, unsettled
from rl2f_core.training.losses import LossConfig, Norms, loss
from rl2f_core.types import Sample


class PolicyModel(nn.Module):
    """The model as one call from tokens to wanted log-probabilities, so that wrappers see the whole pass."""

    def __init__(self, model: Any, banned: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self.banned = banned

    def forward(self, batch: MicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """log p and entropy, each [N], at the wanted positions."""
        causal_lm = self.model.get_base_model()
        sequences = [tuple(row.token_ids[:n]) for row, n in zip(batch.samples, batch.lengths, strict=True)]
        worth = shares(causal_lm) and saving(sequences, list(batch.prefixes)) >= WORTH
        return selected_logprobs(
            causal_lm,
            batch.input_BT,
            batch.valid_BT,
            batch.wanted_BT,
            temperature=temperature,
            banned=self.banned,
            prefixes=batch.prefixes if worth else None,
        )


def learning_rate(stage: StageConfig, step: int) -> float:
    """The rate at a 0-based step: linear warm-up, then constant, linear or cosine decay to 0 at the stage's end.

    A rate with points of its own has the shape of these; the warm-up is the same.
    """
    peak = stage.at(step).learning_rate
    if step < stage.warmup_steps:
        return peak * (step + 1) / stage.warmup_steps
    if stage.schedule == "constant":
        return peak
    done = (step - stage.warmup_steps) / max(1, stage.steps - stage.warmup_steps)
    shape = 1 - done if stage.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return peak * shape


def _means(sums: dict[str, float], norms: Norms) -> dict[str, float]:
    """Metric names and means from the sums of `losses.loss`."""
    out = {}
    if norms.rl:
        out["loss/rl"] = sums["rl"] / norms.rl
        for key, name in (("ratio", "ratio"), ("clipped", "clip_frac"), ("mismatch", "mismatch_kl")):
            for prefix, group in (("", ""), ("off_", "off_context/")):
                if sums[f"{prefix}weight"]:
                    out[f"{group}{name}"] = sums[f"{prefix}{key}"] / sums[f"{prefix}weight"]
    if norms.ce:
        out["loss/ce"] = sums["ce"] / norms.ce
    if norms.kl:
        out["kl"] = sums["kl"] / norms.kl
    return out


def target_modules(base: Any, lora: LoraConfig) -> list[str]:
    """Full names of the linear layers to adapt; raises `ConfigError` where the model has none of that name."""
    total = base.config.num_hidden_layers
    first = total - max(1, round(total * lora.layers))
    output = base.get_output_embeddings()
    names = []
    for name, module in base.named_modules():
        number = re.search(r"\.(\d+)\.", name)
        if not isinstance(module, nn.Linear) or module is output or number is None or int(number[1]) < first:
            continue
        if lora.targets == "all-linear" or name.rsplit(".", 1)[-1] in lora.targets:
            names.append(name)
    if not names:
        known = {n.rsplit(".", 1)[-1] for n, m in base.named_modules() if isinstance(m, nn.Linear)}
        raise ConfigError("lora.targets names no layer of this model.", value=lora.targets, known=sorted(known))
    return names


class Learner:
    """Trains one adapter on one base model."""

    def __init__(
        self,
        folder: Path,
        lora: LoraConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        banned: Sequence[int],
        pad: int,
        seed: int,
    ) -> None:
        import peft
        from accelerate import Accelerator

        base = load_base(str(folder), dtype, device)
        torch.manual_seed(seed)
        self.model = peft.get_peft_model(
            base,
            peft.LoraConfig(
                r=lora.rank, lora_alpha=lora.alpha, target_modules=target_modules(base, lora), task_type="CAUSAL_LM"
            ),
        )
        self.accelerator = Accelerator(cpu=device.type == "cpu")
        self.policy = self.accelerator.prepare(
            PolicyModel(self.model, torch.tensor(list(banned), dtype=torch.long, device=device))
        )
        self.device, self.pad = device, pad
        self.reference: dict[str, torch.Tensor] | None = None
        self.new_optimiser(0.0)

    # -- weights -----------------------------------------------------------------------------------------------
    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def new_optimiser(self, weight_decay: float) -> None:
        """Forget the optimiser's state."""
        optimiser = torch.optim.AdamW(list(self.parameters.values()), lr=0.0, weight_decay=weight_decay, foreach=False)
        self.optimiser = self.accelerator.prepare(optimiser)

    def snapshot(self) -> dict[str, torch.Tensor]:
        """A copy of the trained parameters."""
        return {n: p.detach().clone() for n, p in self.parameters.items()}

    @torch.no_grad()
    def restore(self, weights: dict[str, torch.Tensor]) -> None:
        """Set the trained parameters."""
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format."""
        self.model.save_pretrained(str(folder), safe_serialization=True)
        (folder / "README.md").unlink(missing_ok=True)

    def load_adapter(self, folder: Path) -> None:
        """Read an adapter written by `save_adapter`; raises `AdapterError` where it is torn or its shape is another."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            held = load_file(folder / "adapter_model.safetensors")
        except (OSError, SafetensorError) as error:
            raise AdapterError(f"The adapter cannot be read: {error}.", value=str(folder)) from error
        weights = {name.replace(".weight", ".default.weight"): tensor for name, tensor in held.items()}
        mine = self.parameters
        if {n: tuple(t.shape) for n, t in weights.items()} != {n: tuple(p.shape) for n, p in mine.items()}:
            raise AdapterError(
                "The adapter has another shape than this run's.",
                value=str(folder),
                fix="Give `lora` the rank, targets and layers that the adapter was trained with.",
            )
        self.restore(weights)

    def save(self, folder: Path) -> None:
        """Everything an exact resume needs: adapter, optimiser, reference."""
        from safetensors.torch import save_file

        self.save_adapter(folder)
        tensors = {}
        for name, parameter in self.parameters.items():
            for key, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"{key}|{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
        save_file(tensors, folder / "optimiser.safetensors")
        if self.reference is not None:
            save_file({n: t.cpu() for n, t in self.reference.items()}, folder / "reference.safetensors")

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        from safetensors.torch import load_file

        self.load_adapter(folder)
        held = load_file(folder / "optimiser.safetensors")
        for name, parameter in self.parameters.items():
            state = {k.split("|")[0]: v for k, v in held.items() if k.endswith(f"|{name}")}
            if state:
                self.optimiser.state[parameter] = {
                    k: v if k == "step" else v.to(parameter.device) for k, v in state.items()
                }
        reference = folder / "reference.safetensors"
        self.reference = load_file(reference) if reference.exists() else None

    # -- training ----------------------------------------------------------------------------------------------
    def update(
        self, samples: Sequence[Sample], options: LossConfig, stage: StageConfig, step: int, temperature: float
    ) -> dict[str, float]:
        """One step of training on rows, in `stage.minibatches` optimiser updates.

        Args:
            samples: The rows; none gives no update.
            options: Coefficients of the loss.
            stage: Rate, clipping, limits.
            step: 0-based step of the stage.
            temperature: At which the rows were sampled.

        Returns:
            Metrics: loss, its streams, ratio, clipped share, mismatch and reference KL, entropy, gradient norm.

        Raises:
            RunError: The loss or the gradient is not finite; the weights are as before this update.
        """
        samples, dropped = self._behaviour(samples, stage, temperature)
        parts = minibatches(samples, stage.minibatches)
        rate = learning_rate(stage, step)
        found: dict[str, list[float]] = {}
        for part in parts:
            for key, value in self._update(part, options, stage, rate, temperature).items():
                found.setdefault(key, []).append(value)
        metrics = {key: sum(values) / len(values) for key, values in found.items()}
        return {**metrics, **dropped, "learning_rate": rate, "updates": float(len(parts))}

    def seconds_of_update(self, samples: Sequence[Sample], stage: StageConfig, rows: int = 8) -> float:
        """An estimate of the seconds that one update on `samples` takes, from a few of them; changes nothing."""
        few = list(samples[:rows])
        if not few:
            return 0.0
        batch = micro_batches(few, stage.micro_batch_tokens, self.pad, self.device)[0]
        start = time.perf_counter()
        logp_N, _ = self.policy(batch, 1.0)
        self.accelerator.backward(logp_N.sum())
        seconds = time.perf_counter() - start
        self.optimiser.zero_grad()
        tokens = sum(len(s.token_ids) for s in samples)
        return seconds * tokens / sum(len(s.token_ids) for s in batch.samples)

    def _update(
        self, samples: Sequence[Sample], options: LossConfig, stage: StageConfig, rate: float, temperature: float
    ) -> dict[str, float]:
        norms = norms_of(samples)
        sums: dict[str, float] = {}
        entropy = count = total = 0.0
        self.optimiser.zero_grad()
        for batch in micro_batches(samples, stage.micro_batch_tokens, self.pad, self.device):
            batch = self._reference(batch, temperature, stage.reference)
            logp_N, entropy_N = self.policy(batch, temperature)
            part, found = loss(logp_N, batch.tokens, norms, options)
            self.accelerator.backward(part)
            total += float(part.detach())
            entropy, count = entropy + float(entropy_N.sum()), count + len(entropy_N)
            for key, value in found.items():
                sums[key] = sums.get(key, 0.0) + value
        norm = float(self.accelerator.clip_grad_norm_(list(self.parameters.values()), stage.max_grad_norm))
        if not (math.isfinite(total) and math.isfinite(norm)):
            self.optimiser.zero_grad()
            raise RunError("The loss or its gradient is not a finite number.", value={"loss": total, "norm": norm},
                           fix="Lower learning_rate, or resume from an earlier checkpoint.")  # fmt: skip
        for group in self.optimiser.param_groups:
            group["lr"], group["weight_decay"] = rate, stage.weight_decay
        self.optimiser.step()
        return {"loss": total, "entropy": entropy / max(count, 1), "grad_norm": norm, **_means(sums, norms)}

    def _behaviour(
        self, samples: Sequence[Sample], stage: StageConfig, temperature: float
    ) -> tuple[list[Sample], dict[str, float]]:
        """The rows as they stand before the update: see `training.behaviour.settled`; and what was dropped of them."""
        asked = [sample for sample in samples if unsettled(sample)]
        found: dict[int, Sample] = {}
        with torch.no_grad():
            for batch in micro_batches(asked, stage.micro_batch_tokens, self.pad, self.device):
                logp_N, _ = self.policy(batch, temperature)
                lengths = [len(weighted_positions(sample)) for sample in batch.samples]
                for sample, logps in zip(batch.samples, logp_N.split(lengths), strict=True):
                    found[id(sample)] = settled(sample, logps.tolist())
        before = sum(sum(map(bool, sample.rl)) for sample in asked)
        after = sum(sum(map(bool, found[id(sample)].rl)) for sample in asked if id(sample) in found)
        metrics = {"off_context/masked_frac": 1 - after / before} if before else {}
        return [found.get(id(sample), sample) for sample in samples], metrics

    def _reference(self, batch: MicroBatch, temperature: float, kind: str) -> MicroBatch:
        """The batch with log π_ref filled in, where a kl weight needs it and the row does not carry it."""
        held_N = batch.tokens.reference_N
        needed_N = batch.tokens.kl_N != 0 if held_N is None else (batch.tokens.kl_N != 0) & held_N.isnan()
        if not bool(needed_N.any()):
            return batch
        with torch.no_grad():
            if kind == "base":
                with self.model.disable_adapter():
                    logp_N, _ = self.policy(batch, temperature)
            else:
                if self.reference is None:
                    raise RunError("The stage has no reference weights.", fix="Set reference: base.")
                mine = self.snapshot()
                try:
                    self.restore(self.reference)
                    logp_N, _ = self.policy(batch, temperature)
                finally:
                    self.restore(mine)
        if held_N is not None:
            logp_N = torch.where(held_N.isnan(), logp_N, held_N)
        return dataclasses.replace(batch, tokens=dataclasses.replace(batch.tokens, reference_N=logp_N))
