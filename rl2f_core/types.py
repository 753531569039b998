"""Data types of the core: frozen, comparable, without tensors.

Stored values are pydantic models; values with tokens are dataclasses. A *turn* is an attempt of the student, its
verdict and the hint after it. A *dialogue* has up to T turns on one task. A *group* is G dialogues on one task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_serializer, field_validator
from typing_extensions import TypedDict

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
JsonObject = dict[str, Any]
TaskData = JsonObject  # public or privileged data of a task
PolicyLoss = Literal["ppo", "importance_sampling", "cispo", "awr"]
POLICY_LOSSES: tuple[PolicyLoss, ...] = ("ppo", "importance_sampling", "cispo", "awr")


class Message(TypedDict):
    """One chat message in OpenAI's form."""

    role: str
    content: str


class FrozenModel(BaseModel):
    """Base of all stored values: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Task(FrozenModel):
    """One problem with public data and privileged data."""

    id: str
    """Stable name, e.g. `secret_code/test/17`."""
    environment: str
    """Registered name of the environment."""
    split: Split
    level: str
    """Difficulty as the environment names it, e.g. `2+2 digits`."""
    public: TaskData
    """Data of the student's prompt."""
    privileged: TaskData
    """Answer, solution, tests: for teacher and verifier only, never in a student prompt."""


@dataclass(frozen=True, slots=True)
class ConstantBaseline:
    """Best constant answer: what a policy can solve without looking at the task."""

    answer: str
    score: float
    """Expected fraction of tasks solved by one attempt, and so by any number of repeated attempts."""


class Verdict(FrozenModel):
    """Result of the verifier for one attempt; a verifier fails if a number is NaN or infinite."""

    model_config = ConfigDict(allow_inf_nan=False)

    correct: bool | None
    """None if nothing verified the attempt (imported rollouts): neither correct nor incorrect nor unparsable."""
    score: float | None
    """Partial credit in [0, 1]; 1 only if correct. None if nothing verified the attempt."""
    parsed: str | None = None
    """The normalized answer; None if the attempt cannot be parsed."""
    detail: str = ""
    """Explanation for people and teachers. It may contain the answer, so the student never reads it."""
    well_formed: bool = False
    """The attempt follows the answer format, whether or not it is correct."""
    distance: float | None = None
    """Distance to the gold answer in [0, 1], 0 if correct; None if unparsable or undefined."""
    parts: dict[str, str] = Field(default_factory=dict)
    """Answer parts by name, e.g. `{"1": "B"}`; empty if the environment defines none."""
    correct_parts: tuple[str, ...] = ()
    """Names in `parts` with a correct value."""
    observation: str | None = None
    """Reply of a stateful environment to an action, which the student reads before the hint; None without a state."""
    reward: float | None = None
    """Reward of the step in a stateful environment, or of a rubric of `verifiers`; None otherwise."""
    done: bool = False
    """The step ended the episode of a stateful environment."""

    @property
    def outcome(self) -> Literal["1", "0", "?", "-"]:
        """`1` correct, `0` incorrect, `?` unparsable, `-` no verdict."""
        if self.correct is None:
            return "-"
        return "1" if self.correct else "?" if self.parsed is None else "0"


class RewardTerm(FrozenModel):
    """One named term of a turn's reward."""

    name: str
    score: float
    weight: float = 1.0

    @property
    def value(self) -> float:
        """`score × weight`."""
        return self.score * self.weight


class LeakType(StrEnum):
    """How a hint reveals the answer."""

    EXACT = "exact"
    """It contains the answer verbatim."""
    EQUIVALENT = "equivalent"
    """It states the answer in another form, or by one operation on what the dialogue shows."""
    DERIVATION = "derivation"
    """Several statements together leave only the answer, or one solving step does."""
    PARTIAL = "partial"
    """It reveals a part of the answer."""


class LeakReport(FrozenModel):
    """Whether a hint reveals more of the answer than the dialogue already shows."""

    model_config = ConfigDict(allow_inf_nan=False)

    leaked: bool
    detector: str | None = None
    """The registered name of the detector that flagged it."""
    leak_type: LeakType | None = None
    """How the hint reveals the answer; None if there is no leak, or if the detector cannot say."""
    span: tuple[int, int] | None = None
    """Character span [start, end) in the hint's `feedback`."""
    evidence: str = ""
    """The quoted text or the reason."""
    answer_fraction: float = 0.0
    """Fraction of the answer that the hint reveals."""
    logprob_gain: float | None = None
    """log p(answer | question, hint) − log p(answer | question); None if `likelihood` did not score the hint."""
    leak_probability: float | None = None
    """Probability of a leak; None if `mentions` did not score the hint."""
    leak_threshold: float | None = None
    """`leak_probability` from which the hint is flagged."""
    error: str | None = None
    """Why a detector failed, e.g. its endpoint is down; that detector did not check the hint."""
    action: str | None = None
    """Action taken: flag, redact, resample or drop."""

    @property
    def is_complete(self) -> bool:
        """Whether the hint leaks or every detector checked it."""
        return self.leaked or self.error is None


class Usage(FrozenModel):
    """Cost of a language model's message."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    """US dollars, from the configured prices; None without prices."""
    seconds: float = 0.0
    """Latency, with waiting and retries."""
    requests: int = 0
    """Requests to the endpoint; 0 for the disk cache or a local model."""
    cached: bool = False
    """The message comes from the disk cache."""

    def __add__(self, other: Usage) -> Usage:
        """Sum of two messages; `cached` if both are."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        names = ("prompt_tokens", "completion_tokens", "seconds", "requests")
        sums: JsonObject = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Usage(**sums, cost=sum(costs) if costs else None, cached=self.cached and other.cached)


class Hint(FrozenModel):
    """A teacher's message, and what the student reads of it."""

    text: str
    """What the student reads: the feedback, a leak action's replacement of it, or a fallback after an error."""
    teacher: str
    """Registered name of the teacher."""
    leak: LeakReport | None = None
    """Leak report on `feedback`; None if no detector ran."""
    feedback: str = Field(default_factory=lambda data: data["text"])
    """The teacher's message, before leak screening. In files null if the student reads it; see `is_fallback`."""
    source_task: str | None = None
    """Another task that the hint was written for (control `shuffled`)."""
    prompt_template: str | None = None
    """`name@version` of a model teacher's prompt template; the version is a hash of the file."""
    usage: Usage | None = None
    """Cost of a model teacher's messages, rejected ones included; None without a model."""
    planted: str | None = None
    """Kind of the leak that teacher `leaky` wrote as `feedback`. Never in a prompt or a detector's input."""
    error: str | None = None
    """Why the teacher has no message; `text` is then a fallback or empty. Never in a student prompt."""

    @field_validator("feedback", mode="before")
    @classmethod
    def _read_feedback(cls, value: object, info: ValidationInfo) -> object:
        return info.data.get("text") if value is None else value

    @field_serializer("feedback")
    def _write_feedback(self, value: str) -> str | None:
        return value if self.is_replaced else None

    @property
    def is_replaced(self) -> bool:
        """Whether a leak action replaced the teacher's message."""
        return self.feedback != self.text

    @property
    def is_fallback(self) -> bool:
        """Whether an error left no message of the teacher; `feedback` is then `text`."""
        return self.error is not None and not self.is_replaced

    @property
    def read_leak(self) -> bool:
        """Whether the student read a leak; False if a leak action replaced the teacher's message."""
        return self.leak is not None and self.leak.leaked and not self.is_replaced


class FinishReason(StrEnum):
    """Why generation of an attempt ended."""

    EOS = "eos"
    """The model sampled the end-of-turn token."""
    LENGTH = "length"
    """The attempt reached `max_new_tokens`."""


DEMONSTRATION = "demonstration"
"""`Dialogue.policy` of a dialogue that no model sampled."""
PERSON = "person"
"""`Dialogue.policy` of an interactive task whose attempts a person wrote."""
EDITED = ", edited"
"""End of `Dialogue.policy` if a person changed a sampled attempt."""


def is_sampled(policy: str) -> bool:
    """Return whether a model sampled all attempts of a policy's dialogues."""
    return policy not in (DEMONSTRATION, PERSON) and not policy.endswith(EDITED)


class StopReason(StrEnum):
    """Why a dialogue ended."""

    SOLVED = "solved"
    """The last attempt is correct."""
    EXHAUSTED = "exhausted"
    """All turns were used."""
    ENDED = "ended"
    """A stateful environment ended the episode before the task was solved."""
    CONTEXT_FULL = "context_full"
    """The next turn does not fit the context."""
    DROPPED = "dropped"
    """A leaking hint ended it (leak action `drop`); stored, but not trained on."""
    FAILED = "failed"
    """An error ended it; stored, but not trained on."""


def join_reply(observation: str | None, hint: str) -> str:
    """Return the message after an attempt; an environment without a state has no observation."""
    return "\n\n".join(filter(None, (observation, hint)))


class ActionChoice(FrozenModel):
    """One labeled action of a prompt that lists the valid actions."""

    label: str
    action: str
    probability: float | None = None
    """Of the label, among those of this state, at the sampling temperature; None if it was not computed."""


class Turn(FrozenModel):
    """Attempt k, its verdict and rewards, and the hint after it."""

    index: int
    """0-based position in the dialogue."""
    attempt: str
    """The student's text without special tokens; with `prompting: enumerate` the action of the label, as an answer."""
    token_ids: tuple[int, ...] = ()
    """The sampled tokens, including a sampled end-of-turn token; with `prompting: enumerate` those of the label."""
    logprobs: tuple[float, ...] = ()
    """Sampling logprob of each token, in nats, at the sampling temperature."""
    finish_reason: FinishReason = FinishReason.EOS
    verdict: Verdict
    rewards: tuple[RewardTerm, ...] = ()
    """The terms of the reward."""
    hint: Hint | None = None
    """None after the last attempt."""
    advantage: float | None = None
    """Set by the method that trains on the turn."""
    hint_bits: float | None = None
    """Information in the hint, see `rollout.hint_information`; None without a hint, or if it cannot be counted."""
    hint_true: bool | None = None
    """Whether all statements of the hint hold for the gold answer; None if it has none that can be read."""
    bits_left: float | None = None
    """log2 of the candidates after the hint; None if `hint_bits` is."""
    chance_bits: float | None = None
    """Expected `bits_used` of a next attempt that ignores the hint: a random candidate of those before it."""
    determines_answer: bool = False
    """The hint leaves the gold answer as the only candidate, which it need not state."""
    bits_used: float | None = None
    """Bits of the hint before this attempt that the attempt respects; None if that hint has no `hint_bits`."""
    prompt_template: str | None = None
    """`name@version` of the template of this attempt's reprompt; None without a reprompt."""
    misled: bool | None = None
    """Whether the attempt moves toward the misleading hint before it, read or not (`is_misled`); None: undefined."""
    actions: tuple[ActionChoice, ...] = ()
    """The labeled actions of this attempt's prompt; empty unless `prompting: enumerate`."""
    reflection: str | None = None
    """The reflector's text in this attempt's prompt; None without a reflector."""

    @property
    def reward(self) -> float:
        """Sum of the reward terms; 0 without terms."""
        return sum(term.value for term in self.rewards)

    @property
    def known_reward(self) -> float | None:
        """The reward; None if it is unknown, because no reward term counts."""
        return self.reward if any(term.weight for term in self.rewards) else None

    @property
    def reply(self) -> str:
        """The message that the student reads after the attempt: the observation, if any, and the hint, if any."""
        return join_reply(self.verdict.observation, self.hint.text if self.hint is not None else "")


class Dialogue(FrozenModel):
    """One conversation of student and teacher on one task."""

    id: str
    """Unique within a run."""
    task_id: str
    group: str = Field(max_length=1000)
    """Shared by the G dialogues of one group."""
    index: int
    """0-based position in the group."""
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    error: str | None = None
    policy: str = "base"
    """Checkpoint that sampled the attempts, e.g. `rl2f@12`; otherwise see `is_sampled`."""
    seed: int = 0

    @property
    def solved(self) -> bool | None:
        """Whether the last attempt is correct; None without a verdict on it."""
        unverified = self.turns and self.turns[-1].verdict.correct is None
        return None if unverified else self.stop_reason is StopReason.SOLVED

    @property
    def reward(self) -> float | None:
        """Sum of all reward terms; None if it is unknown for every turn."""
        known = [turn.known_reward for turn in self.turns if turn.known_reward is not None]
        return sum(known) if known else None

    @property
    def solved_at(self) -> int | None:
        """1-based turn of the correct attempt, or None."""
        return len(self.turns) if self.solved else None

    @property
    def trainable(self) -> bool:
        """Whether it has an attempt and neither failed nor was dropped."""
        return bool(self.turns) and self.stop_reason not in (StopReason.FAILED, StopReason.DROPPED)


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Tokens of a dialogue, exactly as prefilled and sampled. The first four fields have the same length.

    `turn_ids` is −1 on the initial prompt, and k on attempt k and on the hint suffix or reprompt after it.
    `student_mask` is true on the student's tokens, sampled or (in a demonstration) written.
    """

    token_ids: tuple[int, ...]
    student_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    turn_ids: tuple[int, ...]
    allowed_tokens: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By position, the only tokens that could be sampled there; at other positions all could."""

    def __post_init__(self) -> None:
        if len(lengths := {len(self.token_ids), len(self.student_mask), len(self.logprobs), len(self.turn_ids)}) != 1:
            raise ValueError(f"TokenSequence fields differ in length: {sorted(lengths)}.")


@dataclass(frozen=True, slots=True)
class Rollout:
    """A dialogue with its tokens."""

    dialogue: Dialogue
    sequences: tuple[TokenSequence, ...]
    """One with `prompting: append`, otherwise one per turn. The last has no attempt if the context was full."""

    @property
    def student_tokens(self) -> int:
        """Number of the student's tokens."""
        return sum(sum(sequence.student_mask) for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class Group:
    """G rollouts on one task."""

    task: Task
    rollouts: tuple[Rollout, ...]

    @property
    def trainable(self) -> tuple[Rollout, ...]:
        """The rollouts that can be trained on."""
        return tuple(r for r in self.rollouts if r.dialogue.trainable)


class TokenRewards(NamedTuple):
    """Rewards of the tokens with `rl_weights`, and the discount from each of these tokens to the next."""

    rewards: Sequence[float]
    discounts: Sequence[float]


class ValueTargets(NamedTuple):
    """Estimates of the value head before each token, at the time of the batch advantages, and their targets."""

    estimates: Sequence[float]
    targets: Sequence[float]


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A token sequence with per-token loss weights.

    Entry i belongs to token i, which position i − 1 predicts, so entry 0 must have no weight. Terms rl and kl use
    logprobs at the sampling temperature, ce at temperature 1, so a token has either ce weight or rl and kl weights.
    """

    token_ids: Sequence[int]
    policy_mask: Sequence[bool]
    """Whether the trained policy sampled the token."""
    logprobs: Sequence[float]
    """Sampling logprobs; 0 for tokens that were not sampled."""
    advantages: Sequence[float]
    rl_weights: Sequence[float]
    ce_weights: Sequence[float]
    kl_weights: Sequence[float]
    reference_prompt_ids: Sequence[int] | None = None
    """Prompt of the reference model instead of the tokens before the first `kl_weights`; None is the same prompt."""
    token_rewards: TokenRewards | None = None
    """If set, advantages come from the whole batch (`methods.advantages`)."""
    value_targets: ValueTargets | None = None
    """None without a value head."""
    dialogue: str = ""
    """Id of its dialogue. All samples of a dialogue are in the same update."""
    policy_loss: PolicyLoss = "ppo"
    """How the rl loss term uses ρ = π / π_old; see `policy_objective` in `learner.losses`."""
    min_logprob: float | None = None
    """Drop tokens from the rl loss term whose logprob in this sample was lower before the update."""
    off_context: bool = False
    """The tokens were sampled under another prompt, so ρ does not measure how far the policy moved."""
    allowed_tokens: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By position, the only tokens over which its probability is normalized; at other positions all are."""
    weighted_positions: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Positions of the tokens with any weight."""

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        names = ("policy_mask", "logprobs", "advantages", "rl_weights", "ce_weights", "kl_weights")
        columns = {name: getattr(self, name) for name in names}
        columns |= {} if self.token_rewards is None else self.token_rewards._asdict()
        columns |= {} if self.value_targets is None else self.value_targets._asdict()
        for name, values in columns.items():
            if len(values) != n:
                raise ValueError(f"TrainingSample.{name} has {len(values)} entries for {n} tokens.")
        if n and (self.rl_weights[0] or self.ce_weights[0] or self.kl_weights[0]):
            raise ValueError("TrainingSample: the first token cannot have weight, because no position predicts it.")
        if any(compress(map(any, zip(self.rl_weights, self.kl_weights, strict=True)), self.ce_weights)):
            raise ValueError("TrainingSample: a token has ce_weights and rl_weights or kl_weights: two temperatures.")
        if not all(compress(self.policy_mask, self.rl_weights)):
            raise ValueError("TrainingSample: a token that the policy did not sample has rl_weights.")
        if self.policy_loss not in POLICY_LOSSES:
            raise ValueError(f"TrainingSample.policy_loss is {self.policy_loss!r}; known: {', '.join(POLICY_LOSSES)}.")
        if self.reference_prompt_ids is not None and not self.reference_prompt_ids:
            raise ValueError("TrainingSample.reference_prompt_ids is empty; None is the sample's own prompt.")
        weights = zip(self.rl_weights, self.ce_weights, self.kl_weights, strict=True)
        object.__setattr__(self, "weighted_positions", tuple(compress(range(n), map(any, weights))))

    @property
    def has_gradient(self) -> bool:
        """Whether any token has ce or kl weight, a nonzero advantage (once the batch has set it), or a value target."""
        has_other = self.value_targets is not None or any(self.ce_weights) or any(self.kl_weights)
        return has_other or any(w and a for w, a in zip(self.rl_weights, self.advantages, strict=True))
