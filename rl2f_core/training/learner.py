"""The learner: a LoRA adapter on a frozen base, AdamW, the loss of `training.losses`, exact save and load.

PEFT holds the adapter and Hugging Face Accelerate wraps model and optimiser; a stage with a critic adds a value head.
There is no dropout, so training draws no random numbers: what a step does is fixed by weights, optimiser and rows.

Where several processes train together, each is given all rows, reads its share of them (`training.sharing`), and ends
with the same weights and the same numbers as the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl2f_core.backends._torch import load_base
from rl2f_core.config import LoraConfig, StageAt, StageConfig
from rl2f_core.errors import AdapterError, RunError
from rl2f_core.methods.batch_credit import credited
from rl2f_core.ranks import here
from rl2f_core.training import compiled
from rl2f_core.training.batch import MicroBatch, micro_batch, minibatches, norms_of, passes, weighted_positions
from rl2f_core.training.behaviour import Mismatch, settled, unsettled
from rl2f_core.training.critic import ValueHead, value_loss
from rl2f_core.training.losses import LossConfig, Norms, loss
from rl2f_core.training.metrics import loss_means
from rl2f_core.training.policy import PolicyModel, Wants
from rl2f_core.training.rates import learning_rate
from rl2f_core.training.recompute import Activations, Choice
from rl2f_core.training.reference import Read, with_reference
from rl2f_core.training.sharded import like, ready, sharding, whole
from rl2f_core.training.sharing import own_passes
from rl2f_core.training.targets import target_modules
from rl2f_core.types import Sample


@dataclasses.dataclass(frozen=True)
class Pass:
    """What a micro-batch is passed over for."""

    norms: Norms
    """Of all rows of the update, whichever process reads them."""
    options: LossConfig
    temperature: float
    scale: float
    """What the loss is multiplied by for the backward pass; 0 for a pass that is only made along with others."""
    count: int
    """Passes of this process in the update."""
    recompute: Choice = "auto"
    """`StageConfig.recompute`."""


HEAD = "value_head.safetensors"
"""File of the value head in a commit."""


class Learner:
    """Trains one adapter on one base model."""

    policy: Any
    """The model as it is trained: wrapped by Accelerate where there are several processes."""
    optimiser: Any

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

        base = load_base(str(folder), dtype, device)
        torch.manual_seed(seed)
        self.model = peft.get_peft_model(
            base,
            peft.LoraConfig(
                r=lora.rank, lora_alpha=lora.alpha, target_modules=target_modules(base, lora), task_type="CAUSAL_LM"
            ),
        )
        self.device, self.dtype, self.pad = device, dtype, pad
        self.reader = PolicyModel(self.model, torch.tensor(list(banned), dtype=torch.long, device=device))
        self.reference: dict[str, torch.Tensor] | None = None
        self.accelerator: Any = self.engage(folder)
        self.sharding = sharding(self.accelerator)
        self.activations = Activations(self.reader, device, shared_out=self.sharding == "fsdp")
        self.new_optimiser(0.0)

    def engage(self, folder: Path) -> Any:
        """What wraps the model and makes the backward pass: an `Accelerator`.

        Args:
            folder: Of the base model.
        """
        from accelerate import Accelerator

        return Accelerator(cpu=self.device.type == "cpu")

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
        ready(self.accelerator, self.sharding, options, stage)
        compiled.check(stage, self.device, here().count)
        self.new_head(critic)
        self.new_optimiser(stage.weight_decay)
        moving = options.kl_coef > 0 and options.pull.weights == "ema"
        held = moving or (options.penalised and stage.reference == "stage_start")
        self.reference = self.snapshot() if held else None

    def compile(self, stage: StageConfig) -> bool:
        """Have the passes of a stage compiled at its first update, where it asks for that or it pays; whether so."""
        weights = sum(p.numel() for p in self.model.parameters() if not p.requires_grad)
        on = compiled.wanted(stage, weights, self.device, self.dtype, here().count)
        compiled.compile_blocks(self.model, on=on)
        return on

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
        self.wrap(self.reader, optimiser)

    def wrap(self, model: Any, optimiser: torch.optim.Optimizer) -> None:
        """Make `policy` and `optimiser` of a model and an optimiser, together, as sharded weights need it."""
        if here().count > 1:
            self.policy = self.optimiser = None  # the wrapper before this one would see the gradients too
            self.accelerator.free_memory()
        self.policy, self.optimiser = self.accelerator.prepare(model, optimiser)

    def snapshot(self) -> dict[str, torch.Tensor]:
        """A copy of the adapter's parameters."""
        return {n: p.detach().clone() for n, p in self.parameters.items()}

    @torch.no_grad()
    def restore(self, weights: dict[str, torch.Tensor]) -> None:
        """Set the adapter's parameters."""
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format. All processes must call it; the main one writes."""
        weights = {name: whole(parameter).detach() for name, parameter in self.parameters.items()}
        if here().main:
            self.model.save_pretrained(str(folder), safe_serialization=True, state_dict=weights)
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
        self.restore({name: like(mine[name], tensor) for name, tensor in weights.items()})

    def save(self, folder: Path) -> None:
        """Everything an exact resume needs: adapter, optimiser, and reference and value head where there are.

        All processes must call it; the main one writes. DeepSpeed keeps the optimiser's state in pieces that have no
        names: it is not saved, and a resume under DeepSpeed begins with a fresh optimiser.
        """
        from safetensors.torch import save_file

        self.save_adapter(folder)
        tensors = {}
        for name, parameter in (self.parameters | self.head_parameters).items():
            for key, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"{key}|{name}"] = whole(torch.as_tensor(value)).detach().cpu().contiguous()
        reference = {n: whole(t).cpu() for n, t in (self.reference or {}).items()}
        if not here().main:
            return
        save_file(tensors, folder / "optimiser.safetensors")
        if reference:
            save_file(reference, folder / "reference.safetensors")
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
                    k: v if k == "step" else like(parameter, v) for k, v in state.items()
                }
        reference = folder / "reference.safetensors"
        found = load_file(reference) if reference.exists() else None
        mine = self.parameters
        self.reference = found and {n: like(mine[n], t) for n, t in found.items()}

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
        if again := self.activations.read():
            dropped["recomputed"] = again
        return {**metrics, **dropped, "learning_rate": rate, "updates": float(len(parts) * stage.passes)}

    def seconds_of_update(self, samples: Sequence[Sample], stage: StageConfig, rows: int = 8) -> float:
        """An estimate of the seconds that one update on `samples` takes, from a few of them; changes nothing."""
        few = [s for s in samples[:rows] if s.weighted]
        if not few:
            return 0.0
        batch = micro_batch(passes(few, stage.micro_batch_tokens)[0], self.pad, self.device)
        start = time.perf_counter()
        logp_N, _ = self.reading(batch, 1.0)
        logp_N.sum().backward()
        seconds = time.perf_counter() - start
        self.optimiser.zero_grad()
        tokens = sum(len(s.token_ids) for s in samples)
        return seconds * tokens / sum(len(s.token_ids) for s in batch.samples)

    def _update(
        self, samples: Sequence[Sample], options: LossConfig, now: StageAt, rate: float, temperature: float
    ) -> dict[str, float]:
        ranks, norms = here(), norms_of(samples)
        own, idle = own_passes(samples, now.micro_batch_tokens, ranks.rank, ranks.count)
        self.set_rates(rate, now, options)
        self.optimiser.zero_grad()
        sums = {"loss": 0.0, "entropy": 0.0, "tokens": 0.0}
        for number, rows in enumerate([*own, *idle]):
            batch = self._reference(micro_batch(rows, self.pad, self.device), temperature, options, now)
            with self._gathering(number + 1 == len(own) + len(idle)):
                # the processes' gradients are averaged, and their parts are to add up
                scale = float(ranks.count) if number < len(own) else 0.0
                found = self.pass_over(
                    batch, Pass(norms, options, temperature, scale, len(own) + len(idle), now.recompute)
                )
            for key, value in found.items() if scale else ():
                sums[key] = sums.get(key, 0.0) + value
        sums = ranks.total(sums)
        total, entropy = sums.pop("loss"), sums.pop("entropy") / max(sums.pop("tokens"), 1.0)
        trained = {"grad_norm": self.parameters, "value/grad_norm": self.head_parameters}
        clipped = {name: self._clip(held, now) for name, held in trained.items() if held}
        if not all(map(math.isfinite, (total, *clipped.values()))):
            self.optimiser.zero_grad()
            raise RunError("The loss or its gradient is not a finite number.",
                           value={"loss": total, "norm": clipped["grad_norm"]},
                           fix="Lower learning_rate, or resume from an earlier checkpoint.")  # fmt: skip
        self.optimiser.step()
        if options.kl_coef > 0 and options.pull.weights == "ema":
            self._average(options.pull.rate)
        return {"loss": total, "entropy": entropy, **clipped, **loss_means(sums, norms)}

    def pass_over(self, batch: MicroBatch, of: Pass) -> dict[str, float]:
        """The forward and backward pass of one micro-batch; sums for the metrics, its part of the loss among them."""
        options = of.options
        critic = options.credit.critic if options.credit is not None else None
        distributions = options.pull.form in ("full", "top_k") and bool(of.norms.kl)
        wants = Wants(critic is not None, critic is None or critic.shared, pull=options.pull if distributions else None)
        with self.activations.kept(batch.input_BT.numel(), of.recompute):
            logp_N, entropy_N, more = self.policy(batch, of.temperature, wants)
        tokens = dataclasses.replace(batch.tokens, divergence_N=more.divergence_N)
        part, found = loss(logp_N, tokens, of.norms, options)
        if critic is not None and tokens.values_N is not None and tokens.returns_N is not None:
            told, of_values = value_loss(
                more.values_N, tokens.values_N, tokens.returns_N, tokens.rl_N, of.norms.rl, critic
            )
            part, found = part + told, found | of_values
        self.accelerator.backward(part * of.scale if of.scale != 1 else part)
        return {"loss": float(part.detach()), "entropy": float(entropy_N.sum()), "tokens": len(entropy_N), **found}

    def set_rates(self, rate: float, now: StageAt, options: LossConfig) -> None:
        """Give the optimiser this step's learning rate and decay; DeepSpeed makes its step within the backward pass."""
        critic = options.credit.critic if options.credit is not None else None
        own = critic.learning_rate if critic is not None else None
        for number, group in enumerate(self.optimiser.param_groups):
            scale = own / now.learning_rate if own is not None and number == 1 else 1.0
            group["lr"], group["weight_decay"] = rate * scale, now.weight_decay

    @contextlib.contextmanager
    def _gathering(self, last: bool) -> Iterator[None]:
        """A pass whose gradients are kept to this process, or, for the last of an update, gathered from all."""
        self.accelerator.sync_gradients = last
        with contextlib.nullcontext() if last else self.accelerator.no_sync(self.policy):
            yield

    def _clip(self, parameters: dict[str, nn.Parameter], now: StageAt) -> float:
        """Clip the norm of the parameters' gradient, and say what it was."""
        norm = self.accelerator.clip_grad_norm_(list(parameters.values()), now.max_grad_norm)
        return float(whole(norm)) if norm is not None else 0.0

    def _behaviour(
        self, samples: Sequence[Sample], stage: StageConfig, temperature: float
    ) -> tuple[list[Sample], dict[str, float]]:
        """The rows as they stand before the update: see `training.behaviour.settled`; and what was found of them."""
        cap = stage.importance_cap
        asked = [sample for sample in samples if unsettled(sample, cap)]
        mismatch = None if cap is None else Mismatch(cap)
        read = self._read(asked, stage, lambda batch: self._logprobs(batch, temperature))
        found: dict[int, Sample] = {}
        for sample, logps in zip(asked, read, strict=True):
            if logps:
                found[id(sample)] = settled(sample, logps, cap)
                if mismatch is not None:
                    mismatch.add(sample, logps)
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
        return self.reading(batch, temperature)[0]

    @torch.no_grad()
    def _hidden(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        return self.reading(batch, temperature, Wants(hidden=True))[2].hidden_NH

    @torch.no_grad()
    def _values(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        return self.reading(batch, temperature, Wants(values=True))[2].values_N

    def _of_actions(self, samples: Sequence[Sample], stage: StageConfig, read: Read) -> list[list[float]]:
        """What `read` finds at each token with rl weight, a list a row, 0 elsewhere."""
        bare = [dataclasses.replace(s, kl=[0.0] * len(s.kl), ce=[0.0] * len(s.ce)) for s in samples]
        out = []
        for sample, part in zip(bare, self._read(bare, stage, read), strict=True):
            numbers = iter(part or [])
            out.append([next(numbers) if weight else 0.0 for weight in sample.rl])
        return out

    def _read(self, rows: Sequence[Sample], stage: StageConfig, read: Read) -> list[list[float] | None]:
        """What `read` finds for each weighted token of each row, in the rows' order; None for a row without weight.

        Every process reads its share, and all get all.
        """
        ranks, found = here(), dict[int, list[float]]()
        places = {id(row): place for place, row in enumerate(rows)}
        own, idle = own_passes(rows, stage.micro_batch_tokens, ranks.rank, ranks.count)
        for number, part in enumerate([*own, *idle]):
            with torch.no_grad():
                values_N = read(micro_batch(part, self.pad, self.device))
            if number < len(own):
                lengths = [len(weighted_positions(row)) for row in part]
                for row, values in zip(part, values_N.split(lengths), strict=True):
                    found[places[id(row)]] = values.tolist()
        all_found = {place: values for held in ranks.gather(found) for place, values in held.items()}
        return [all_found.get(place) for place in range(len(rows))]

    @property
    def reading(self) -> Any:
        """The model for passes that only this process may make; under FSDP all must make it together."""
        return self.policy if self.sharding == "fsdp" else self.reader
