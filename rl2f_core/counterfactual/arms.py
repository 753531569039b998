"""The arms of a fork: what the student reads after the attempt where the dialogue is taken up again.

| arm | the student reads |
|---|---|
| as_was | what it read then |
| edited | a text of the experimenter's |
| none | an empty message: the dialogue goes on without a word |
| contentless | "That is not correct. Try again." |
| shuffled | the hint of another task's dialogue |
| misleading | a hint that points away |
| teacher | the message of another teacher |

`none` is an empty message because everything else then stays the same: tokens before it, turn and seed, so that
differences are those of the words alone.  That a turn follows still says that the attempt was wrong.  What the student
does without any exchange is the control `resample` of an evaluation.

A teacher is asked once for a turn, with the dialogue's own seed, so that all samples of an arm answer one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from rl2f_core.components import component
from rl2f_core.config import BaseConfig
from rl2f_core.counterfactual.source import Origin
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.leaks.guard import LeakGuard
from rl2f_core.rollout.build import build_control, build_teacher
from rl2f_core.rollout.engine import RolloutEngine
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.types import Hint

ArmHint = Literal["as_was", "edited", "none", "contentless", "shuffled", "misleading", "teacher"]
HINTS: tuple[ArmHint, ...] = ("as_was", "edited", "none", "contentless", "shuffled", "misleading", "teacher")
TRUE, BASELINE = "as_was", "contentless"
"""What a hint's worth is the difference of."""
CONTROLS = ("contentless", "shuffled", "misleading")
"""Arms that are teachers by their own name."""


class Arm(BaseConfig):
    """One alternative."""

    hint: ArmHint
    """What the student reads."""
    text: str = Field("", max_length=4000)
    """The message of an `edited` arm."""
    teacher: component("teacher") | None = None  # type: ignore[valid-type]
    """Who speaks in a `teacher` arm."""
    name: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9 ._-]{0,63})?$")
    """In tables and as the dialogues' control; left out, it is the kind of hint (and the teacher's name)."""

    @model_validator(mode="after")
    def _holds_what_it_needs(self) -> Arm:
        for field, owner in (("text", "edited"), ("teacher", "teacher")):
            there = bool(getattr(self, field))
            if there != (self.hint == owner):
                raise ValueError(f"`{field}` belongs to arms with hint: {owner}, and to them alone")
        return self

    @property
    def label(self) -> str:
        """The name in tables."""
        if self.name or self.teacher is None:
            return self.name or self.hint
        return f"teacher {self.teacher.type}"


def parse_arm(text: str) -> Arm:
    """An arm as a command line names it: `contentless`, `edited:TEXT`, `teacher:NAME`. Raises `ConfigError`."""
    hint, _, rest = text.partition(":")
    known = ["edited:TEXT" if h == "edited" else "teacher:NAME" if h == "teacher" else h for h in HINTS]
    if hint not in HINTS or bool(rest) != (hint in ("edited", "teacher")):
        raise ConfigError("There is no such arm.", value=text, known=known)
    try:
        return Arm.model_validate({"hint": hint, **({"text" if hint == "edited" else "teacher": rest} if rest else {})})
    except ValueError as error:
        raise ConfigError(f"The arm cannot be used: {error}.", value=text, known=known) from error


def named(arms: Sequence[Arm]) -> dict[str, Arm]:
    """Arms by label; a label that stands twice gets a number."""
    found: dict[str, Arm] = {}
    for arm in arms:
        label, number = arm.label, 2
        while label in found:
            label, number = f"{arm.label} {number}", number + 1
        found[label] = arm
    return found


def arm_teacher(arm: Arm, engine: RolloutEngine) -> Teacher | None:
    """The teacher that speaks in an arm; None for arms that are a text of their own."""
    if arm.hint == "teacher":
        return build_teacher(arm.teacher, engine)
    return build_control(arm.hint, engine) if arm.hint in CONTROLS else None


def arm_hints(
    arm: Arm, origins: Sequence[Origin], engine: RolloutEngine, *, adapter: str | None = None,
    apply_leak_action: bool = False,
) -> list[Hint]:  # fmt: skip
    """What the student reads in an arm after each origin's attempt.

    Args:
        arm: Which alternative.
        origins: Where dialogues are taken up again.
        engine: Whose environment, leak guard, models and template are used.
        adapter: The weights that go on from there, by the backend's name for them, for teachers that speak with them.
        apply_leak_action: Do with a leaking message what the guard is configured to do; else it is only reported.

    `Hint.error` says where a teacher had no message. Raises `DataError` where there is no hint that could be as it was.
    """
    if arm.hint == "as_was":
        return [_as_was(origin) for origin in origins]
    if arm.hint == "none":
        return [Hint(text="", teacher="none") for _ in origins]
    guard = engine.guard
    if not apply_leak_action:
        guard = LeakGuard(guard.detectors, "flag", guard.tries, guard.environment)
    asked = [
        FeedbackRequest(o.task, o.prefix(None), o.dialogue.seed, adapter=adapter, oracle=o.oracle) for o in origins
    ]
    teacher = arm_teacher(arm, engine)
    if teacher is None:
        told = [Feedback(engine.renderer.clean(arm.text)) for _ in origins]
        return [answer.hint for answer in guard.read(asked, told, "edited", lambda again: told[: len(again)])]
    speaking = replace(engine, teacher=teacher)
    return [answer.hint for answer in guard.read(asked, speaking.ask(asked), teacher.name, speaking.ask)]


def _as_was(origin: Origin) -> Hint:
    hint = origin.dialogue.turns[origin.turn].hint
    if hint is None:
        raise DataError("No hint stands after this attempt, so none can be as it was.",
                        value=f"{origin.event}, turn {origin.turn + 1}", fix="Leave the arm as_was out.")  # fmt: skip
    if hint.leak is not None and hint.leak.leaked and hint.leak.action == "drop":
        raise DataError("The hint after this attempt was dropped for a leak and never read.",
                        value=f"{origin.event}, turn {origin.turn + 1}",
                        fix="Leave the arm as_was out, or write the text as an edited arm.")  # fmt: skip
    return hint
