"""Sequence classifier: the first layers of a causal language model, and a linear head on the last token.

Either a LoRA and the head are trained (`fit`), or the head alone on the features of the frozen model (`fit_head`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl2f_core.errors import ModelError
from rl2f_core.file_io import apply_umask

PAD_TOKEN_ID = 0
"""Pads the left side of a batch; the attention mask hides it, so texts may contain the token."""
BATCH_TOKENS = 4096
"""Maximum number of tokens in a batch of `SequenceClassifier.predict`, with padding."""
TYPE_WEIGHT = 0.3
"""Weight of the loss of a positive example's class beside the loss of being positive."""
UNKNOWN = -1
"""Target of a positive example whose class is unknown."""
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_HEAD = "score"
HEAD_FILE = "head.safetensors"
"""Weight and bias of a head that was trained alone."""

TokenIds = tuple[int, ...]
Features = dict[TokenIds, NDArray[np.float32]]
"""Hidden state of the last token by sequence, `[hidden size]`."""
Targets = NDArray[np.int64]
"""Class 0 is negative, the others are positive; `UNKNOWN` is positive of any class."""


@dataclass(frozen=True, slots=True)
class ClassifierShape:
    """Layers and classes of a classifier."""

    classes: int
    """Number of classes."""
    layers: int | None = None
    """Number of layers that are kept, from the input; None for all."""
    trained_layers: int | None = None
    """Number of kept layers with an adapter, from the head; None for all, 0 for a head alone."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Settings of the training loop."""

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    seed: int


class SequenceClassifier:
    """Classifies token sequences.

    Args:
        model: A sequence classification model of transformers, with or without a LoRA of peft.
        dtype: Data type of its frozen weights.
        device: Its device.
    """

    def __init__(self, model: Any, dtype: torch.dtype, device: torch.device) -> None:
        self.model, self.dtype, self.device = model.to(device), dtype, device
        self.known: Features | None = None
        """Features that `features` does not compute again, and which receives the others; only of a frozen model."""

    @classmethod
    def create(
        cls, base: Path, shape: ClassifierShape, rank: int, dtype: torch.dtype, device: torch.device
    ) -> SequenceClassifier:
        """Build an untrained classifier; torch's seed determines its weights.

        Args:
            base: Folder of the base model.
            shape: Layers and classes.
            rank: Rank of the LoRA; its scale alpha is twice the rank.
            dtype: Data type of the frozen weights; adapter and head have float32.
            device: Device.

        Raises `ModelError` if the model cannot be loaded.
        """
        from peft import LoraConfig, get_peft_model

        model = _load_base(base, shape, dtype)
        if shape.trained_layers == 0:
            return cls(model.requires_grad_(False), dtype, device)
        depth = int(model.config.num_hidden_layers)
        first = depth - min(shape.trained_layers or depth, depth)
        config = LoraConfig(
            task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, target_modules=MODULES, modules_to_save=[_HEAD],
            layers_to_transform=list(range(first, depth)),
        )  # fmt: skip
        adapted = get_peft_model(model, config)
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        return cls(adapted, dtype, device)

    @classmethod
    def load(
        cls, base: Path, adapter: Path, shape: ClassifierShape, dtype: torch.dtype, device: torch.device
    ) -> SequenceClassifier:
        """Load a trained classifier, with the adapter merged into the weights.

        Raises `ModelError` if it does not fit.
        """
        from peft import PeftModel
        from safetensors.torch import load_file

        try:
            model = _load_base(base, shape, dtype)
            if (adapter / HEAD_FILE).is_file():
                head = load_file(adapter / HEAD_FILE)
                setattr(model, _HEAD, _linear(head["weight"], head["bias"]))
            else:
                model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()  # type: ignore[operator]
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ModelError(f"The classifier cannot be loaded: {error}.", value=str(adapter)) from error
        return cls(model.eval(), dtype, device)

    def save(self, folder: Path) -> None:
        """Write adapter and head in peft's format, or `HEAD_FILE` after `fit_head`."""
        from safetensors.torch import save_file

        if hasattr(self.model, "peft_config"):
            self.model.save_pretrained(str(folder))
        else:
            head = getattr(self.model, _HEAD)
            save_file({"weight": head.weight.detach().cpu(), "bias": head.bias.detach().cpu()}, folder / HEAD_FILE)
        apply_umask(folder)

    def predict(self, sequences: Sequence[TokenIds]) -> NDArray[np.float64]:
        """Return class probabilities `[N, classes]`."""
        head = getattr(self._plain_model(), _HEAD)
        with torch.no_grad():
            logits = head(torch.from_numpy(self.features(sequences)).to(self.device, head.weight.dtype))
            return logits.float().softmax(-1).double().cpu().numpy()

    def features(self, sequences: Sequence[TokenIds]) -> NDArray[np.float32]:
        """Return the hidden state of each last token, `[N, hidden size]`; batches hold sequences of similar length."""
        self.model.eval()
        known = {} if self.known is None else self.known
        missing = [sequence for sequence in dict.fromkeys(sequences) if sequence not in known]
        for batch in _batches(missing):
            with torch.no_grad():
                rows = self._last_hidden([missing[i] for i in batch]).float().cpu().numpy()
            known.update(zip((missing[i] for i in batch), rows, strict=True))
        size = int(self.model.config.hidden_size)
        return np.stack([known[sequence] for sequence in sequences]) if sequences else np.zeros((0, size), np.float32)

    def attribute(self, sequence: TokenIds) -> NDArray[np.float64]:
        """Return gradient × input of log P(positive) for each token's embedding (Shrikumar et al. 2016,
        arXiv 1605.01713)."""
        self.model.eval()
        ids = torch.tensor([sequence], device=self.device)
        embedded = self.model.get_input_embeddings()(ids).detach().float().requires_grad_(True)
        log_p = self._logits(self._hidden(inputs_embeds=embedded)).log_softmax(-1)[0, 1:].logsumexp(0)
        (gradient,) = torch.autograd.grad(log_p, embedded)
        return (gradient * embedded).sum(-1)[0].double().detach().cpu().numpy()

    def fit(self, sequences: Sequence[TokenIds], targets: Targets, settings: FitSettings) -> Iterator[float]:
        """Train adapter and head with AdamW and a linear decay to 0; yield the loss of each minibatch.

        The loss is −log P(positive or negative) + `TYPE_WEIGHT` · (−log P(class | positive)), without the second term
        for negative examples and unknown classes.
        """
        generator = np.random.default_rng(settings.seed)
        plan = [
            batch
            for _ in range(settings.epochs)
            for batch in _shuffled_batches(sequences, settings.batch_size, generator)
        ]
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, settings.learning_rate, weight_decay=settings.weight_decay)
        warmup = max(1, len(plan) // 20)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda i: min((i + 1) / warmup, (len(plan) - i) / max(1, len(plan) - warmup))
        )
        for batch in plan:
            self.model.train()
            logits = self._logits(self._last_hidden([sequences[i] for i in batch]))
            loss = _loss(logits, torch.as_tensor(targets[batch]).to(self.device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            yield float(loss.detach())

    def fit_head(self, features: NDArray[np.float32], targets: Targets, penalty: float) -> None:
        """Set the head to a logistic regression on standardized features, `[N, hidden size]`, by L-BFGS.

        It minimizes the loss of `fit` plus penalty / 2 · ‖weight‖² of the standardized features.
        """
        x, y = torch.from_numpy(features).to(self.device), torch.as_tensor(targets).to(self.device)
        mean, scale = x.mean(0), x.std(0, correction=0).clamp_min(1e-6)
        x = (x - mean) / scale
        classes = int(self.model.config.num_labels)
        head = _linear(torch.zeros(classes, x.shape[1]), torch.zeros(classes)).to(self.device)
        optimizer = torch.optim.LBFGS(head.parameters(), max_iter=300, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = _loss(head(x), y) + penalty / 2 * head.weight.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        weight = head.weight.detach() / scale
        setattr(self.model, _HEAD, _linear(weight, head.bias.detach() - weight @ mean))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the float32 logits of hidden states `[B, hidden size]`, `[B, classes]`."""
        with self._autocast():
            logits: torch.Tensor = getattr(self._plain_model(), _HEAD)(hidden)
        return logits.float()

    def _last_hidden(self, batch: Sequence[TokenIds]) -> torch.Tensor:
        """Return the hidden state of the last token of each sequence, `[B, hidden size]`."""
        length = max(map(len, batch))
        ids = torch.full((len(batch), length), PAD_TOKEN_ID)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(batch):  # padding is on the left, so that the last position is the last token
            ids[row, length - len(sequence) :] = torch.tensor(sequence)
            mask[row, length - len(sequence) :] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        return self._hidden(input_ids=ids, attention_mask=mask, position_ids=positions)

    def _hidden(self, **inputs: torch.Tensor) -> torch.Tensor:
        with self._autocast():
            hidden: torch.Tensor = self._plain_model().base_model(**inputs, use_cache=False).last_hidden_state[:, -1]
        return hidden

    def _plain_model(self) -> Any:
        """Return the model without its wrapper of peft."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> torch.nn.Linear:
    """Return a linear layer with these float32 weights."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = torch.nn.Parameter(weight.float()), torch.nn.Parameter(bias.float())
    return layer


def _load_base(base: Path, shape: ClassifierShape, dtype: torch.dtype) -> Any:
    """Load the first layers of a causal language model with a new head."""
    from transformers import AutoConfig, AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # the unused layers and the new head are intended
    try:
        config = AutoConfig.from_pretrained(base, trust_remote_code=False)
        config.num_hidden_layers = min(shape.layers or config.num_hidden_layers, config.num_hidden_layers)
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: config.num_hidden_layers]
        config.num_labels, config.pad_token_id = shape.classes, PAD_TOKEN_ID
        return AutoModelForSequenceClassification.from_pretrained(
            base, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False, attn_implementation="sdpa"
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"The model cannot be loaded: {error}.", value=str(base)) from error
    finally:
        logging.set_verbosity(verbosity)


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    log_p = logits.log_softmax(-1)
    log_positive = log_p[:, 1:].logsumexp(-1)
    loss = -torch.where(targets == 0, log_p[:, 0], log_positive)
    typed = targets > 0
    of_class = log_p.gather(1, targets.clamp_min(0)[:, None])[:, 0]
    return (loss + TYPE_WEIGHT * typed * (log_positive - of_class)).mean()


def _batches(sequences: Sequence[TokenIds]) -> Iterator[list[int]]:
    """Yield indices by length; a padded batch has at most `BATCH_TOKENS` tokens, or one sequence."""
    batch: list[int] = []
    for i in sorted(range(len(sequences)), key=lambda i: len(sequences[i])):
        if batch and (len(batch) + 1) * len(sequences[i]) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _shuffled_batches(sequences: Sequence[TokenIds], size: int, generator: np.random.Generator) -> list[list[int]]:
    """Return one epoch of minibatches in random order, each with sequences of similar length."""
    order = generator.permutation(len(sequences))
    pools = [order[i : i + 16 * size] for i in range(0, len(order), 16 * size)]
    batches = []
    for pool in pools:
        by_length = sorted(map(int, pool), key=lambda i: len(sequences[i]))
        batches += [by_length[i : i + size] for i in range(0, len(by_length), size)]
    generator.shuffle(batches)
    return batches
