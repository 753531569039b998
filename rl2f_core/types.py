"""The values that flow through the system: frozen, comparable, without tensors.

What is stored or shown is pydantic; what carries tokens is a plain dataclass.  A *turn* is the student's attempt
together with the teacher's message after it (y_k, h_k, r_k in `methods`), a *dialogue* is up to T turns on one task,
a *group* is G dialogues on one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Weighting = Literal["ppo", "is", "cispo", "awr"]
WEIGHTINGS: tuple[Weighting, ...] = ("ppo", "is", "cispo", "awr")


class Message(TypedDict):
    """One chat message in OpenAI's form."""

    role: str
    content: str


class Value(BaseModel):
    """Base of all stored values: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Task(Value):
    """One problem: what the student may see and what only teacher and verifier may see."""

    id: str
    """Stable name, e.g. `secret_code/test/17`."""
    environment: str
    """Registered name of the environment."""
    split: Split
    """Which of the disjoint splits it belongs to."""
    level: str
    """Difficulty in the environment's own words, e.g. `2+2 digits`."""
    public: dict[str, Any]
    """What the student's prompt is made from."""
    privileged: dict[str, Any]
    """Answer, solution, tests. Never reaches a student prompt."""


class Verdict(Value):
    """What the verifier says of one attempt."""

    correct: bool
    """The attempt is right."""
    score: float
    """Partial credit in [0, 1]; 1 exactly when right."""
    parsed: str | None = None
    """The answer in normal form, or None where none could be parsed."""
    detail: str = ""
    """Why, in words. For people and teachers; it may name the answer, so it never reaches the student."""
    well_formed: bool = False
    """The attempt keeps the answer format, whether or not the answer is right."""
    distance: float | None = None
    """Distance to the answer in [0, 1] (0 is right, 1 the farthest); None where unparsable or not defined."""
    parts: dict[str, str] = Field(default_factory=dict)
    """Named parts of the parsed answer, e.g. `{"1": "B"}`; empty where the environment names none."""
    right_parts: tuple[str, ...] = ()
    """The names in `parts` whose value is right."""


class Reward(Value):
    """One named term of a turn's reward."""

    name: str
    score: float
    weight: float = 1.0

    @property
    def value(self) -> float:
        """`score × weight`."""
        return self.score * self.weight


class LeakReport(Value):
    """Whether a hint gives the answer away beyond what the dialogue already shows."""

    leaked: bool
    tier: str | None = None
    """Which tier found it: exact, equivalent, derivation, probe."""
    span: tuple[int, int] | None = None
    """Character span [start, end) in the hint as the teacher wrote it."""
    evidence: str = ""
    """The words or the reason that convict."""
    share: float = 0.0
    """How much of the answer is given away, 0…1."""
    nats: float | None = None
    """log p(answer | question, hint) − log p(answer | question), where the probe read it; else None."""
    error: str | None = None
    """Why a tier could not judge, e.g. its model's endpoint is down; for that tier the hint is then unchecked."""
    action: str | None = None
    """What was done: flag, redact, resample, drop."""


class Usage(Value):
    """What a message of a language model cost."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    """In US dollars, from the configured prices; None where there are none."""
    seconds: float = 0.0
    """From the request to the answer, waiting and retries included."""
    requests: int = 0
    """How often the endpoint was asked for it; 0 where it came from the disk cache or from this machine."""
    cached: bool = False
    """It came from the disk cache."""

    def __add__(self, other: Usage) -> Usage:
        """Of two messages together; `cached` where both came from the cache."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=sum(costs) if costs else None,
            seconds=self.seconds + other.seconds,
            requests=self.requests + other.requests,
            cached=self.cached and other.cached,
        )


class Hint(Value):
    """A teacher's message as the student reads it."""

    text: str
    """What the student reads."""
    teacher: str
    """Registered name of the teacher."""
    leak: LeakReport | None = None
    """The detectors' finding on `original or text`; None where no detector ran."""
    original: str | None = None
    """What the teacher wrote, where a leak action changed it."""
    source_task: str | None = None
    """The task the hint was written for, where that is another one (the shuffled control)."""
    prompt: str | None = None
    """`name@version` of the prompt template that a model teacher was asked with; the version is a hash of the file."""
    usage: Usage | None = None
    """What a model teacher's messages cost, refused ones included; None for teachers without a model."""
    error: str | None = None
    """Why the teacher had no message, where `text` stands in for one or is empty. Never read by the student."""


class TurnStop(StrEnum):
    """Why the student's turn ended."""

    EOS = "eos"
    """The model ended its message."""
    LENGTH = "length"
    """The token limit of a turn cut it off."""


DEMONSTRATION = "demonstration"
"""`Dialogue.policy` where no weights spoke for the student."""


class StopReason(StrEnum):
    """Why a dialogue ended."""

    SOLVED = "solved"
    """The last attempt is right."""
    EXHAUSTED = "exhausted"
    """All turns were used."""
    TRUNCATED = "truncated"
    """The next turn would not have fitted the context."""
    DROPPED = "dropped"
    """A leaking hint ended it (leak action `drop`); kept as data, not trained on."""
    FAILED = "failed"
    """An error ended it; kept as data, never trained on."""


class Turn(Value):
    """Student attempt k, its verdict and rewards, and the hint after it."""

    index: int
    """0-based position in the dialogue."""
    attempt: str
    """The student's text, special tokens left out."""
    token_ids: tuple[int, ...] = ()
    """The student's tokens as sampled, with the end-of-message token where it was sampled."""
    logprobs: tuple[float, ...] = ()
    """Behaviour log-probability of each, in nats, at the sampling temperature."""
    stop: TurnStop = TurnStop.EOS
    verdict: Verdict
    rewards: tuple[Reward, ...] = ()
    hint: Hint | None = None
    """None after the last attempt."""
    advantage: float | None = None
    """Filled in by the method that trained on it."""
    prompt: str | None = None
    """`name@version` of the template of the fresh prompt that asked for this attempt; None where the problem alone or
    the dialogue so far did."""

    @property
    def reward(self) -> float:
        """Sum of the named terms."""
        return sum(term.value for term in self.rewards)


class Dialogue(Value):
    """One student-teacher exchange on one task."""

    id: str
    """Unique within a run."""
    task_id: str
    group: str
    """Shared by the G dialogues that compete on one task."""
    index: int
    """0-based position in the group."""
    turns: tuple[Turn, ...]
    stop: StopReason
    error: str | None = None
    policy: str = "base"
    """Name and version of the weights that spoke for the student, e.g. `rl2f@12`; `DEMONSTRATION` where none did."""
    seed: int = 0

    @property
    def solved(self) -> bool:
        """The student got there."""
        return self.stop is StopReason.SOLVED

    @property
    def solved_at(self) -> int | None:
        """1-based turn of the right answer, or None."""
        return len(self.turns) if self.solved else None

    @property
    def trainable(self) -> bool:
        """Neither failed nor dropped, and at least one attempt was made."""
        return bool(self.turns) and self.stop not in (StopReason.FAILED, StopReason.DROPPED)


@dataclass(frozen=True, slots=True)
class TokenStream:
    """Tokens of one dialogue exactly as the model was given and produced them, each a continuation of those before.

    All four have the same length. `turn` is −1 on the dialogue's first prompt, k on the student's tokens of turn k and
    on what is read between it and the next attempt: the hint, or the fresh prompt that it is part of. `student` is true
    on the student's tokens only, sampled or (in a demonstration) written.
    """

    token_ids: tuple[int, ...]
    student: tuple[bool, ...]
    logprobs: tuple[float, ...]
    turn: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.student), len(self.logprobs), len(self.turn)}
        if len(lengths) != 1:
            raise ValueError(f"TokenStream arrays differ in length: {sorted(lengths)}.")


@dataclass(frozen=True, slots=True)
class Rollout:
    """A dialogue with its tokens."""

    dialogue: Dialogue
    streams: tuple[TokenStream, ...]
    """One where the dialogue only grew; where turns had fresh prompts, one a turn, in order. A turn's tokens stand in
    one stream. The last one may have no attempt, where the context had no room for it."""

    @property
    def student_tokens(self) -> int:
        """How many tokens the student said, sampled or written."""
        return sum(sum(stream.student) for stream in self.streams)


@dataclass(frozen=True, slots=True)
class Group:
    """G rollouts on one task."""

    task: Task
    rollouts: tuple[Rollout, ...]

    @property
    def trainable(self) -> tuple[Rollout, ...]:
        """The rollouts a method may train on."""
        return tuple(r for r in self.rollouts if r.dialogue.trainable)


@dataclass(frozen=True, slots=True)
class Sample:
    """One training row: a token sequence with aligned per-token arrays (methods.md §3).

    The three weights say how much each token counts in each stream of the loss; the trainer knows no method.
    Position i describes token i; its prediction is made at position i − 1, so position 0 must carry no weight.
    """

    token_ids: Sequence[int]
    sampled: Sequence[bool]
    """Was it produced by the trained policy?"""
    logprobs: Sequence[float]
    """Behaviour log-probability, 0 where not sampled."""
    advantages: Sequence[float]
    rl: Sequence[float]
    ce: Sequence[float]
    kl: Sequence[float]
    ref_logprobs: Sequence[float] | None = None
    """log π_ref; None lets the learner score the reference itself where `kl` has weight."""
    context: Sequence[int] | None = None
    """Tokens that the reference reads in place of all that stands before the first token with `kl` weight; None lets
    it read what the policy reads."""
    rewards: Sequence[float] | None = None
    """Reward of each token with `rl` weight. Such a row gets its advantages from the whole batch
    (`methods.batch_credit`); what `advantages` holds until then is added to its returns, e.g. minus a baseline."""
    discounts: Sequence[float] | None = None
    """γ from each token with `rl` weight to the next; belongs to `rewards`."""
    values: Sequence[float] | None = None
    """The value head's estimate before each token, when the batch was credited."""
    returns: Sequence[float] | None = None
    """What the value head is to say there."""
    dialogue: str = ""
    """Where it came from. Rows of one dialogue are trained on in the same update."""
    weighting: Weighting = "ppo"
    """What ρ = π / π_behaviour does in the rl stream (`training.losses.objective`): `ppo` min(ρA, clip(ρ)A); `is` ρA;
    `cispo` sg(clip ρ)·A·log π; `awr` as `is`, with the behaviour read anew under this very row before the update, so
    that ρ starts at 1 whatever the tokens were sampled under."""
    floor: float | None = None
    """A token whose log-probability under this very row lies below it before the update drops out of the rl stream."""
    foreign: bool = False
    """The tokens were sampled under another context than this row's, so ρ does not say how far the policy moved."""
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        optional = ("ref_logprobs", "rewards", "discounts", "values", "returns")
        for name in ("sampled", "logprobs", "advantages", "rl", "ce", "kl", *optional):
            held = getattr(self, name)
            if held is not None and len(held) != n:
                raise ValueError(f"Sample.{name} has {len(held)} entries for {n} tokens.")
        if n and (self.rl[0] or self.ce[0] or self.kl[0]):
            raise ValueError("Sample: the first token cannot carry weight, nothing predicts it.")
        if any(w and not s for w, s in zip(self.rl, self.sampled, strict=True)):
            raise ValueError("Sample: a token that the policy did not sample carries rl weight.")
        if self.weighting not in WEIGHTINGS:
            raise ValueError(f"Sample.weighting is {self.weighting!r}; known: {', '.join(WEIGHTINGS)}.")
        if (self.rewards is None) != (self.discounts is None):
            raise ValueError("Sample: rewards of tokens need discounts, and discounts need rewards.")
        if self.context is not None and not self.context:
            raise ValueError("Sample.context is empty: the reference has nothing to read before the row's tokens.")

    @property
    def weighted(self) -> int:
        """How many tokens carry any weight."""
        return sum(bool(a or b or c) for a, b, c in zip(self.rl, self.ce, self.kl, strict=True))
