"""The learner: a LoRA adapter on a frozen base, AdamW, the loss of `training.losses`, exact save and load.

PEFT holds the adapter and Hugging Face Accelerate wraps model and optimiser; a stage with a critic adds a value head.
There is no dropout, so training draws no random numbers: what a step does is fixed by weights, optimiser and rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl2f_core.backends._torch import load_base
from rl2f_core.config import LoraConfig, StageAt, StageConfig
from rl2f_core.errors import AdapterError, ConfigError, RunError
from rl2f_core.methods.batch_credit import credited
from rl2f_core.training.batch import MicroBatch, micro_batches, minibatches, norms_of, weighted_positions
from rl2f_core.training.behaviour import Mismatch, settled, unsettled
from rl2f_core.training.critic import ValueHead, value_loss
from rl2f_core.training.losses import LossConfig, Norms, loss
from rl2f_core.training.policy import PolicyModel, Wants
from rl2f_core.training.reference import Read, read_rows, with_reference
from rl2f_core.types import Sample


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
    out |= {key: value / norms.rl for key, value in sums.items() if key.startswith("value/")}
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


HEAD = "value_head.safetensors"
"""File of the value head in a commit."""


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
        self.reader = PolicyModel(self.model, torch.tensor(list(banned), dtype=torch.long, device=device))
        self.policy = self.accelerator.prepare(self.reader)
        self.device, self.pad = device, pad
        self.reference: dict[str, torch.Tensor] | None = None
        self.new_optimiser(0.0)

    # -- weights -----------------------------------------------------------------------------------------------
    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The adapter's parameters by name."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    @property
    def head_parameters(self) -> dict[str, nn.Parameter]:
        """The value head's parameters by name; none where the stage has no critic."""
        head = self.reader.head
        return {} if head is None else {f"value_head.{n}": p for n, p in head.named_parameters()}

    def begin(self, options: LossConfig, stage: StageConfig) -> None:
        """Start a stage from the present weights: a new optimiser, and a value head and a reference where needed."""
        critic = options.credit is not None and options.credit.critic is not None
        self.new_head(critic)
        self.new_optimiser(stage.weight_decay)
        moving = options.kl_coef > 0 and options.pull.weights == "ema"
        held = moving or (options.penalised and stage.reference == "stage_start")
        self.reference = self.snapshot() if held else None

    def new_head(self, wanted: bool) -> None:
        """A fresh value head, or none. The optimiser does not know it yet: call `new_optimiser` afterwards."""
        model: Any = self.model
        width = model.get_base_model().get_output_embeddings().weight.shape[1]
        self.reader.head = ValueHead(width, self.device) if wanted else None

    def new_optimiser(self, weight_decay: float) -> None:
        """Forget the optimiser's state."""
        groups = [list(held.values()) for held in (self.parameters, self.head_parameters) if held]
        optimiser = torch.optim.AdamW(
            [{"params": group} for group in groups], lr=0.0, weight_decay=weight_decay, foreach=False
        )
        self.optimiser = self.accelerator.prepare(optimiser)

    def snapshot(self) -> dict[str, torch.Tensor]:
        """A copy of the adapter's parameters."""
        return {n: p.detach().clone() for n, p in self.parameters.items()}

    @torch.no_grad()
    def restore(self, weights: dict[str, torch.Tensor]) -> None:
        """Set the adapter's parameters."""
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
        """Everything an exact resume needs: adapter, optimiser, and reference and value head where there are."""
        from safetensors.torch import save_file

        self.save_adapter(folder)
        tensors = {}
        for name, parameter in (self.parameters | self.head_parameters).items():
            for key, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"{key}|{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
        save_file(tensors, folder / "optimiser.safetensors")
        if self.reference is not None:
            save_file({n: t.cpu() for n, t in self.reference.items()}, folder / "reference.safetensors")
        if self.reader.head is not None:
            save_file({n: p.detach().cpu() for n, p in self.head_parameters.items()}, folder / HEAD)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        from safetensors.torch import load_file

        self.load_adapter(folder)
        head = folder / HEAD
        self.new_head(head.exists())
        self.new_optimiser(0.0)
        if head.exists():
            values = load_file(head)
            with torch.no_grad():
                for name, parameter in self.head_parameters.items():
                    parameter.copy_(values[name])
        held = load_file(folder / "optimiser.safetensors")
        for name, parameter in (self.parameters | self.head_parameters).items():
            state = {k.split("|")[0]: v for k, v in held.items() if k.endswith(f"|{name}")}
            if state:
                self.optimiser.state[parameter] = {
                    k: v if k == "step" else v.to(parameter.device) for k, v in state.items()
                }
        reference = folder / "reference.safetensors"
        found = load_file(reference, device=str(self.device)) if reference.exists() else None
        self.reference = found

    # -- training ----------------------------------------------------------------------------------------------
    def credit(
        self, samples: Sequence[Sample], options: LossConfig, stage: StageConfig, temperature: float
    ) -> tuple[list[Sample], dict[str, float]]:
        """The rows with the advantages that only the whole step can tell (`methods.batch_credit`), and metrics.

        Values are those of the present value head, and the reference is read here, so all passes share both.
        """
        wanted = options.credit
        if wanted is None:
            return list(samples), {}
        values = reference = None
        if wanted.critic is not None:
            values = self._of_actions(samples, stage, lambda batch: self._values(batch, temperature))
        if wanted.kl_coef:
            with self._weights(stage.reference):
                reference = self._of_actions(samples, stage, lambda batch: self._logprobs(batch, temperature))
        return credited(samples, wanted, values, reference)

    def update(
        self, samples: Sequence[Sample], options: LossConfig, stage: StageConfig, step: int, temperature: float
    ) -> dict[str, float]:
        """One step of training on rows, in `stage.passes` times `stage.minibatches` optimiser updates.

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
        for part in parts * stage.passes:
            for key, value in self._update(part, options, stage.at(step), rate, temperature).items():
                found.setdefault(key, []).append(value)
        metrics = {key: sum(values) / len(values) for key, values in found.items()}
        return {**metrics, **dropped, "learning_rate": rate, "updates": float(len(parts) * stage.passes)}

    def seconds_of_update(self, samples: Sequence[Sample], stage: StageConfig, rows: int = 8) -> float:
        """An estimate of the seconds that one update on `samples` takes, from a few of them; changes nothing."""
        few = [s for s in samples[:rows] if s.weighted]
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
        self, samples: Sequence[Sample], options: LossConfig, now: StageAt, rate: float, temperature: float
    ) -> dict[str, float]:
        norms = norms_of(samples)
        critic = options.credit.critic if options.credit is not None else None
        distributions = options.pull.form in ("full", "top_k") and bool(norms.kl)
        wants = Wants(critic is not None, critic is None or critic.shared, pull=options.pull if distributions else None)
        sums: dict[str, float] = {}
        entropy = count = total = 0.0
        self.optimiser.zero_grad()
        for batch in micro_batches(samples, now.micro_batch_tokens, self.pad, self.device):
            batch = self._reference(batch, temperature, options, now)
            logp_N, entropy_N, more = self.policy(batch, temperature, wants)
            tokens = dataclasses.replace(batch.tokens, divergence_N=more.divergence_N)
            part, found = loss(logp_N, tokens, norms, options)
            if critic is not None and tokens.values_N is not None and tokens.returns_N is not None:
                told, of_values = value_loss(
                    more.values_N, tokens.values_N, tokens.returns_N, tokens.rl_N, norms.rl, critic
                )
                part, found = part + told, found | of_values
            self.accelerator.backward(part)
            total += float(part.detach())
            entropy, count = entropy + float(entropy_N.sum()), count + len(entropy_N)
            for key, value in found.items():
                sums[key] = sums.get(key, 0.0) + value
        norm = float(self.accelerator.clip_grad_norm_(list(self.parameters.values()), now.max_grad_norm))
        head = list(self.head_parameters.values())
        of_head = {"value/grad_norm": float(self.accelerator.clip_grad_norm_(head, now.max_grad_norm))} if head else {}
        if not all(map(math.isfinite, (total, norm, *of_head.values()))):
            self.optimiser.zero_grad()
            raise RunError("The loss or its gradient is not a finite number.", value={"loss": total, "norm": norm},
                           fix="Lower learning_rate, or resume from an earlier checkpoint.")  # fmt: skip
        own = critic.learning_rate if critic is not None else None
        for number, group in enumerate(self.optimiser.param_groups):
            scale = own / now.learning_rate if own is not None and number == 1 else 1.0
            group["lr"], group["weight_decay"] = rate * scale, now.weight_decay
        self.optimiser.step()
        if options.kl_coef > 0 and options.pull.weights == "ema":
            self._average(options.pull.rate)
        return {"loss": total, "entropy": entropy / max(count, 1), "grad_norm": norm, **of_head, **_means(sums, norms)}

    def _behaviour(
        self, samples: Sequence[Sample], stage: StageConfig, temperature: float
    ) -> tuple[list[Sample], dict[str, float]]:
        """The rows as they stand before the update: see `training.behaviour.settled`; and what was found of them."""
        cap = stage.importance_cap
        asked = [sample for sample in samples if unsettled(sample, cap)]
        found: dict[int, Sample] = {}
        mismatch = None if cap is None else Mismatch(cap)
        with torch.no_grad():
            for batch in micro_batches(asked, stage.micro_batch_tokens, self.pad, self.device):
                logp_N, _ = self.policy(batch, temperature)
                lengths = [len(weighted_positions(sample)) for sample in batch.samples]
                for sample, logps in zip(batch.samples, logp_N.split(lengths), strict=True):
                    found[id(sample)] = settled(sample, logps.tolist(), cap)
                    if mismatch is not None:
                        mismatch.add(sample, logps.tolist())
        special = [sample for sample in asked if unsettled(sample)]
        before = sum(sum(map(bool, sample.rl)) for sample in special)
        after = sum(sum(map(bool, found[id(sample)].rl)) for sample in special if id(sample) in found)
        metrics = {"off_context/masked_frac": 1 - after / before} if before else {}
        metrics |= {} if mismatch is None else mismatch.metrics()
        return [found.get(id(sample), sample) for sample in samples], metrics

    @torch.no_grad()
    def _average(self, rate: float) -> None:
        """Let the reference follow the policy: reference ← (1 − rate)·reference + rate·policy."""
        if self.reference is not None:
            for name, parameter in self.parameters.items():
                self.reference[name].lerp_(parameter, rate)

    # -- reading -----------------------------------------------------------------------------------------------
    def _reference(self, batch: MicroBatch, temperature: float, options: LossConfig, stage: StageConfig) -> MicroBatch:
        """The batch with what its kl weights need of the reference, where the rows do not carry it."""
        pull = options.pull
        distributions = pull.form in ("full", "top_k")
        kind = {"stage": stage.reference, "live": "live", "ema": "stage_start"}[pull.weights]

        def read(rows: MicroBatch) -> torch.Tensor:
            with self._weights(kind):
                return (self._hidden if distributions else self._logprobs)(rows, temperature)

        return with_reference(
            batch, read, limit=stage.micro_batch_tokens, pad=self.pad, device=self.device, distributions=distributions
        )

    @contextlib.contextmanager
    def _weights(self, kind: str) -> Iterator[None]:
        """The model with the weights of a reference: `base`, `stage_start` (as held), or its own for `live`."""
        if kind == "live":
            yield
        elif kind == "base":
            with self.model.disable_adapter():
                yield
        elif self.reference is None:
            raise RunError("The stage has no reference weights.", fix="Set reference: base.")
        else:
            mine = self.snapshot()
            try:
                self.restore(self.reference)
                yield
            finally:
                self.restore(mine)

    @torch.no_grad()
    def _logprobs(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        return self.policy(batch, temperature)[0]

    @torch.no_grad()
    def _hidden(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        return self.policy(batch, temperature, Wants(hidden=True))[2].hidden_NH

    @torch.no_grad()
    def _values(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        return self.policy(batch, temperature, Wants(values=True))[2].values_N

    def _of_actions(self, samples: Sequence[Sample], stage: StageConfig, read: Read) -> list[list[float]]:
        """What `read` finds at each token with rl weight, a list a row, 0 elsewhere."""
        bare = [dataclasses.replace(s, kl=[0.0] * len(s.kl), ce=[0.0] * len(s.ce)) for s in samples]
        parts = read_rows(bare, read, limit=stage.micro_batch_tokens, pad=self.pad, device=self.device)
        out = []
        for sample, part in zip(bare, parts, strict=True):
            numbers = iter(part.tolist() if part is not None else [])
            out.append([next(numbers) if weight else 0.0 for weight in sample.rl])
        return out
