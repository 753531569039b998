"""The rollout sides: our engine, and a plain loop over `generate`, on one model with the same weights."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest, derive_seed
from rl2f_core.dialogue.teachers.base import FeedbackRequest
from rl2f_core.environments.puzzles.secret_code.environment import SecretCode
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.types import Rollout, Task, Turn, Verdict

from .worker import Channel, Memory, Settings, Stopwatch

if TYPE_CHECKING:
    from rl2f_core.models.modeling.attention import CausalLM

PLAIN = ("sdpa", "eager")
"""Attention implementations of the plain loop."""


class UnsolvedCode(SecretCode):
    """`secret_code` in which no attempt is right, so that every dialogue has all its turns."""

    def verify(self, task: Task, attempt: str) -> Verdict:
        verdict = super().verify(task, attempt)
        return verdict.model_copy(update={"correct": False, "score": min(verdict.score or 0.0, 0.5)})


def serve(settings: Settings, channel: Channel) -> None:
    """Requests: `side` (engine, sdpa, eager) with `repeat`, where 0 is a short warm-up; `save`; `ceiling`."""
    from rl2f_core.models.device import matmul_ceiling

    engine = build(settings)
    backend = hf_backend(engine)
    adapter = "policy" if settings.adapter else None
    memory = Memory(backend.device)
    channel.send(
        device=str(backend.device), dtype=str(backend.dtype).removeprefix("torch."), **parameters(backend.model)
    )
    rollouts: list[Rollout] = []
    streams: list[tuple[Sequence[int], int, int]]
    while (request := channel.receive()) is not None:
        if "ceiling" in request:
            channel.send(gflops=matmul_ceiling(str(backend.dtype).removeprefix("torch."), backend.device.type))
            continue
        if "save" in request:
            Path(request["save"]).write_text(json.dumps([rows_of(r) for r in rollouts[: settings.rows]]))
            channel.send(saved=len(rollouts[: settings.rows]))
            continue
        sizes = settings if request["repeat"] else dataclasses.replace(settings, dialogues=settings.group, turns=1)
        wanted = requests_of(sizes, engine, request["repeat"])
        watch = Stopwatch(backend.device)
        if request["side"] == "engine":
            rollouts = engine.run(wanted, adapter=adapter, max_turns=sizes.turns)
            timed = watch.read()
            streams = [(r.sequences[0].token_ids, r.student_tokens, len(r.dialogue.turns)) for r in rollouts]
        else:
            with Attention(backend.model, request["side"]):
                streams = plain_loop(engine, wanted, sizes, request["repeat"])
            timed = watch.read()
        if {turns for _, _, turns in streams} != {sizes.turns}:
            raise RuntimeError("A dialogue ended early, so the two sides would not do the same work.")
        channel.send(
            **timed,
            student=sum(student for _, student, _ in streams),
            read=tokens_read(engine, wanted, [len(tokens) for tokens, _, _ in streams]),
            **memory.report(),
        )


def build(settings: Settings) -> RolloutEngine:
    """The engine as a run has it, on tasks that are never solved."""
    from rl2f_core.config.run import BaseRun
    from rl2f_core.dialogue.rollout.build import build_backend, build_engine

    config = BaseRun.model_validate(
        {
            "environment": {"type": "secret_code", "length": 3, "letters": 4},
            "model": {"name": settings.folder, "device": settings.device, "dtype": settings.dtype},
            "rollout": {
                "max_turns": settings.turns,
                "max_new_tokens": settings.max_new_tokens,
                "temperature": settings.temperature,
                "max_concurrent": settings.dialogues,
            },
        }
    )
    backend = build_backend(config)
    if settings.adapter:
        backend.load_adapter("policy", Path(settings.adapter))
    engine = build_engine(config, backend)
    return dataclasses.replace(engine, environment=UnsolvedCode(config.environment))


def hf_backend(engine: RolloutEngine) -> HFBackend:
    """The engine's backend, which shares its model and tokenizer with the plain sides."""
    assert isinstance(engine.backend, HFBackend), (
        f"The benchmarks need the backend hf, not {type(engine.backend).__name__}."
    )
    return engine.backend


def requests_of(settings: Settings, engine: RolloutEngine, repeat: int) -> list[RolloutRequest]:
    """The dialogues of one repeat; the tasks are always the same, the chance is not."""
    requests = []
    for i in range(settings.dialogues):
        task = engine.environment.task("train", i // settings.group)
        seed = derive_seed("bench", repeat, i)
        requests.append(RolloutRequest(task, f"{repeat}/{i}", str(i // settings.group), i % settings.group, seed))
    return requests


def tokens_read(engine: RolloutEngine, requests: Sequence[RolloutRequest], lengths: Sequence[int]) -> int:
    """Tokens of all dialogues, each opening once, from the tokens of each dialogue."""
    openings = [engine.renderer.initial_prompt(engine.environment.prompt(r.task.public)) for r in requests]
    return sum(lengths) - sum(map(len, openings)) + sum(map(len, set(openings)))


class Attention:
    """The model with another attention implementation inside the block."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name = model, name

    def __enter__(self) -> None:
        self.before = self.model.config._attn_implementation
        self.model.set_attn_implementation(self.name)

    def __exit__(self, *error: object) -> None:
        self.model.set_attn_implementation(self.before)


def plain_loop(
    engine: RolloutEngine, requests: Sequence[RolloutRequest], settings: Settings, seed: int
) -> list[tuple[Sequence[int], int, int]]:
    """The dialogues by `generate` on the whole batch, read anew at each turn; tokens, student tokens and turns of each.

    It samples from the same distribution as the engine (temperature, banned tokens), with the same limit and the same
    end token, and takes hints from the same teacher. Unlike the engine it keeps no log-probabilities and checks no
    leaks.
    """
    import torch
    from transformers import GenerationConfig

    backend = hf_backend(engine)
    tokenizer, environment = backend.tokenizer, engine.environment
    torch.manual_seed(seed)
    sampling = GenerationConfig(
        do_sample=True,
        temperature=settings.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=settings.max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        suppress_tokens=list(tokenizer.banned_token_ids),
    )
    dialogues = [list(engine.renderer.initial_prompt(environment.prompt(r.task.public))) for r in requests]
    turns: list[list[Turn]] = [[] for _ in requests]
    student = [0] * len(requests)
    for turn in range(settings.turns):
        width = max(map(len, dialogues))
        input_BT = torch.full((len(dialogues), width), tokenizer.eos_token_id, dtype=torch.long)
        mask_BT = torch.zeros_like(input_BT)
        for i, tokens in enumerate(dialogues):
            input_BT[i, width - len(tokens) :] = torch.tensor(tokens)
            mask_BT[i, width - len(tokens) :] = 1
        with torch.inference_mode():
            out_BT = backend.model.generate(
                input_BT.to(backend.device), attention_mask=mask_BT.to(backend.device), generation_config=sampling
            )
        for i, new in enumerate(out_BT[:, width:].tolist()):
            end = new.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in new else len(new)
            text = tokenizer.decode(new[:end])
            turns[i].append(Turn(index=turn, attempt=text, verdict=environment.verify(requests[i].task, text)))
            dialogues[i] += new[:end]
            student[i] += end
        if turn + 1 < settings.turns:
            asked = [FeedbackRequest(r.task, tuple(t), r.seed) for r, t in zip(requests, turns, strict=True)]
            for tokens, hint in zip(dialogues, engine.teacher.feedback(asked), strict=True):
                tokens += engine.renderer.hint_suffix(hint.text, ended=tokens[-1] == tokenizer.eos_token_id)
    return [(d, s, len(t)) for d, s, t in zip(dialogues, student, turns, strict=True)]


def rows_of(rollout: Rollout) -> dict[str, Any]:
    """The training row of a dialogue, as `methods.rows.policy_rows` makes it, with drawn advantages.

    No dialogue is solved, so its own advantages would all be 0 and there would be nothing to train on.
    """
    from rl2f_core.learning.methods.samples import policy_samples

    rng = random.Random(rollout.dialogue.id)
    (row,) = policy_samples(rollout, [rng.gauss(0.5, 1.0) for _ in rollout.dialogue.turns], kl=False)
    return {f.name: getattr(row, f.name) for f in dataclasses.fields(row) if f.init}


def parameters(model: CausalLM) -> dict[str, int]:
    """Weights that every token is multiplied with (`body`), and those of the output layer (`head`)."""
    head = model.get_output_embeddings().weight
    inputs = model.get_input_embeddings().weight
    total = sum(p.numel() for p in model.parameters())
    apart = head.numel() if head is not inputs and head.data_ptr() != inputs.data_ptr() else 0
    return {"body": total - inputs.numel() - apart, "head": head.numel()}
