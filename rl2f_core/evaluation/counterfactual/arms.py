"""Arms of a fork: alternative hints after the attempt at the fork point.

| arm | hint |
|---|---|
| original | the stored hint |
| edited | a text of the user |
| empty | an empty message |
| contentless | "That is not correct. Try again." |
| shuffled | a recorded hint of the source run on another problem of the same level, after the same turn |
| misleading | a hint that points away from the answer |
| teacher | the message of another teacher |
| redacted | the stored hint with its flagged span masked, as by the leak action `redact` |

`empty` keeps the earlier tokens, turn and seed, so differences come from the hint's text alone. The next turn still
implies that the attempt was incorrect. For attempts without dialogue, use the condition `resample` of an evaluation.

A teacher generates one message per fork point, with the dialogue's seed, so all samples of an arm share it.

With an arm `redacted`, every arm has one more sample, with the dialogue's own seed: under the dialogue's checkpoint,
arm `original` then repeats the stored attempts, and `redacted` shows whether a success survives without the leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from rl2f_core.config.components import TeacherConfig
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.loading import validate_config
from rl2f_core.dialogue.rollout.build import build_control, build_teacher
from rl2f_core.dialogue.rollout.engine import RolloutEngine
from rl2f_core.dialogue.rollout.leak_guard import LeakGuard
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.errors import ConfigError, DataError, FieldValueError
from rl2f_core.evaluation.counterfactual.fork_points import ForkPoint
from rl2f_core.types import Hint, LeakReport

ArmHint = Literal["original", "edited", "empty", "contentless", "shuffled", "misleading", "teacher", "redacted"]
HINTS: tuple[ArmHint, ...] = get_args(ArmHint)
ORIGINAL_ARM, BASELINE = "original", "contentless"
"""Arms whose difference is the hint value."""
CONTROLS = ("contentless", "shuffled", "misleading")
"""Arms that are teachers with the same name."""


ArmName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9 ._-]{0,63})?$")]


class Arm(BaseConfig):
    """One alternative hint."""

    hint: ArmHint
    """Source of the hint."""
    text: str = Field("", max_length=4000)
    """Message of an `edited` arm."""
    teacher: TeacherConfig | None = None
    """Teacher of a `teacher` arm."""
    span: tuple[int, int] | None = None
    """Characters [start, end) that a `redacted` arm masks; None masks what the run's detectors flagged."""
    name: ArmName = ""
    """Name in tables and events; by default the kind of hint (and the teacher's name)."""

    @model_validator(mode="after")
    def _check_fields(self) -> Arm:
        for field, owner in (("text", "edited"), ("teacher", "teacher")):
            if bool(getattr(self, field)) != (self.hint == owner):
                raise FieldValueError(f"`{field}` is required for arms with hint: {owner}, and for no others", field)
        if self.span is not None and self.hint != "redacted":
            raise FieldValueError("`span` is allowed for arms with hint: redacted, and for no others", "span")
        return self

    @property
    def label(self) -> str:
        """Name in tables."""
        if self.name or self.teacher is None:
            return self.name or self.hint
        return f"teacher {self.teacher.type}"


def parse_arm(text: str) -> Arm:
    """Parse an arm of the command line: `contentless`, `edited:TEXT`, `teacher:NAME`."""
    hint, _, rest = text.partition(":")
    known = ["edited:TEXT" if h == "edited" else "teacher:NAME" if h == "teacher" else h for h in HINTS]
    if hint not in HINTS or bool(rest) != (hint in ("edited", "teacher")):
        raise ConfigError("Unknown arm.", value=text, known=known)
    values = {"text" if hint == "edited" else "teacher": rest} if rest else {}
    return validate_config(Arm, {"hint": hint, **values}, "`rl2f fork --help` lists the arms.")


def label_arms(arms: Sequence[Arm]) -> dict[str, Arm]:
    """Return the arms by label; repeated labels get a number."""
    result: dict[str, Arm] = {}
    for arm in arms:
        label, number = arm.label, 2
        while label in result:
            label, number = f"{arm.label} {number}", number + 1
        result[label] = arm
    return result


def arm_teacher(arm: Arm, engine: RolloutEngine) -> Teacher | None:
    """Return the teacher of an arm; None for arms with a fixed text."""
    if arm.teacher is not None:
        return build_teacher(arm.teacher, engine)
    return build_control(arm.hint, engine) if arm.hint in CONTROLS else None


def arm_hints(
    arm: Arm, origins: Sequence[ForkPoint], engine: RolloutEngine, *, adapter: str | None = None,
    apply_leak_action: bool = False,
) -> list[Hint]:  # fmt: skip
    """Return the arm's hint at each fork point.

    Args:
        arm: The alternative.
        origins: Fork points.
        engine: Provides environment, leak guard, models and template.
        adapter: Adapter of the student, for teachers that use its weights.
        apply_leak_action: Apply the guard's action to leaking messages; otherwise only report them.

    `Hint.error` is set if a teacher has no message. Raises `DataError` if there is no original hint.
    """
    if arm.hint == "original":
        return [_original(origin, arm) for origin in origins]
    if arm.hint == "empty":
        return [Hint(text="", teacher="empty") for _ in origins]
    guard = engine.guard
    if not apply_leak_action:
        guard = LeakGuard(guard.detectors, "flag", guard.max_resamples, guard.environment)
    requests = [
        FeedbackRequest(
            o.task,
            o.prefix(None),
            o.dialogue.seed,
            adapter=adapter,
            reveals_verdict=o.oracle,
            recorded=o.recorded_hints[o.turn] if o.turn < len(o.recorded_hints) else (),
        )
        for o in origins
    ]
    if arm.hint == "redacted":
        return [_redacted(origin, arm, request, engine) for origin, request in zip(origins, requests, strict=True)]
    teacher = arm_teacher(arm, engine)
    if teacher is None:
        feedback = [Feedback(engine.renderer.escape(arm.text)) for _ in origins]
        screened = guard.screen(requests, feedback, "edited", lambda again: feedback[: len(again)])
    else:
        request = replace(engine, teacher=teacher).request_feedback
        screened = guard.screen(requests, request(requests), teacher.name, request)
    return [result.hint for result in screened]


def check_fork(arms: Sequence[Arm], later_hints: str, origin: ForkPoint) -> None:
    """Raise `DataError` if a fork cannot be sampled, as far as this is known without its models."""
    if not origin.oracle and later_hints == "arm":
        raise DataError("later_hints: arm does not support dialogues that continue after correct answers.",
                        value=later_hints, known=["run", "contentless"])  # fmt: skip
    stored = [(arm, _original(origin, arm)) for arm in arms if arm.hint in ("original", "redacted")]
    errors = [_redaction_error(hint, arm) for arm, hint in stored if arm.hint == "redacted"]
    if len(errors) == len(arms) and (error := next(iter(errors))) and all(errors):
        raise DataError(error, value=origin.event, fix="Add another arm.")


def _original(origin: ForkPoint, arm: Arm) -> Hint:
    hint = origin.dialogue.turns[origin.turn].hint
    if hint is None:
        raise DataError("This attempt has no original hint.", value=origin.event, fix=f"Remove the arm {arm.label}.")
    if hint.leak is not None and hint.leak.leaked and hint.leak.action == "drop":
        fix = f"Remove the arm {arm.label}, or pass the text as an edited arm."
        raise DataError("The hint after this attempt was dropped because of a leak.", value=origin.event, fix=fix)
    return hint


def _redaction_error(hint: Hint, arm: Arm) -> str | None:
    """Return why a stored hint cannot be redacted; None if it can."""
    if arm.span is None and (hint.leak is None or not hint.leak.leaked):
        return "No detector of the run flagged this hint."
    return "A leak action replaced the flagged message, so nobody read it." if hint.is_replaced else None


def _redacted(origin: ForkPoint, arm: Arm, request: FeedbackRequest, engine: RolloutEngine) -> Hint:
    """Return the stored hint without the flagged span, and without what the run's detectors flag in the rest."""
    hint = _original(origin, arm)
    error = _redaction_error(hint, arm)
    report = hint.leak if arm.span is None else LeakReport(leaked=True, span=arm.span)
    if error is not None or report is None:
        return hint.model_copy(update={"error": error})
    text = engine.guard.redact(request, hint.text, report)
    report = report.model_copy(update={"action": "redact"})
    return hint.model_copy(update={"text": text, "leak": report})
