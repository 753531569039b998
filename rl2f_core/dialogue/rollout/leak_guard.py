"""Screen hints between teacher and student, and apply the configured action to leaks.

| action | the student reads | the dialogue |
|---|---|---|
| flag | the teacher's message | continues |
| redact | the message with each flagged span replaced by […] | continues |
| resample | the first clean message of up to n more, otherwise the contentless hint | continues |
| drop | nothing | ends |

After a teacher error the student reads the contentless hint, or the dialogue ends if the teacher's configuration
requires it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest
from rl2f_core.environments.base import Environment
from rl2f_core.leaks.base import LeakDetector, LeakQuery, can_check_hints, make_detectors, run_cascade
from rl2f_core.types import Hint, LeakReport, StopReason, Usage

if TYPE_CHECKING:
    from rl2f_core.models.backends.model_pool import ModelPool

Action = Literal["flag", "redact", "resample", "drop"]
ResampleFn = Callable[[Sequence[FeedbackRequest]], list[Feedback]]
"""Requests another batch of messages, such as `Teacher.feedback`."""
REDACTED = "[…]"
MAX_REDACTIONS = 100
"""Redactions of one message before the contentless hint replaces it."""


@dataclass(frozen=True, slots=True)
class ScreenedHint:
    """A screened hint, and whether the dialogue ends."""

    hint: Hint
    """The hint for the student, with the report on the teacher's message. Its text is empty if the dialogue ends."""
    drop: bool = False
    """A leak ends the dialogue."""
    fail: bool = False
    """A missing hint ends the dialogue."""
    error: str | None = None
    """The teacher's error, if the hint replaces its message."""

    @property
    def stop(self) -> StopReason | None:
        """Why the dialogue ends here; None if it continues."""
        return StopReason.DROPPED if self.drop else StopReason.FAILED if self.fail else None


class LeakGuard:
    """Screens every hint and applies the configured action to leaks.

    Args:
        detectors: Detectors, cheapest first; without any, hints pass without a report.
        action: What happens to a leak.
        max_resamples: Further messages that `resample` requests.
        environment: Environment of all requests.
    """

    def __init__(
        self, detectors: Sequence[LeakDetector], action: Action, max_resamples: int, environment: Environment
    ) -> None:
        self.detectors = tuple(detectors)
        self.action = action
        self.max_resamples = max_resamples
        self.environment = environment

    @classmethod
    def from_config(cls, config: LeaksConfig, environment: Environment, models: ModelPool | None = None) -> LeakGuard:
        """Build the guard of a leak configuration."""
        return cls(
            make_detectors(config.detectors, environment, models), config.action, config.max_resamples, environment
        )

    def flagging(self) -> LeakGuard:
        """Return a guard with the same detectors that replaces no leak."""
        return LeakGuard(self.detectors, "flag", 0, self.environment)

    def screen(
        self, requests: Sequence[FeedbackRequest], feedbacks: Sequence[Feedback], teacher: str, resample: ResampleFn
    ) -> list[ScreenedHint]:
        """Return one screened hint per request, in order.

        Args:
            requests: Requests to the teacher.
            feedbacks: The teacher's messages, one per request.
            teacher: The teacher's registered name, for `Hint.teacher`.
            resample: Requests another batch from the teacher, with a higher `retry`. Only action `resample` calls it.
        """
        reports = self._reports(requests, feedbacks)
        screened = [
            self._apply_action(request, feedback, teacher, report)
            for request, feedback, report in zip(requests, feedbacks, reports, strict=True)
        ]
        if self.action == "resample":
            leaking = [i for i, report in enumerate(reports) if report is not None and report.leaked]
            self._resample(requests, screened, leaking, resample)
        return screened

    def _reports(self, requests: Sequence[FeedbackRequest], feedbacks: Sequence[Feedback]) -> list[LeakReport | None]:
        """Run the detectors on each message that they can check; reports on leaks name the action."""
        reports: list[LeakReport | None] = [None] * len(requests)
        if not self.detectors:
            return reports
        indices = [
            i
            for i, feedback in enumerate(feedbacks)
            if feedback.error is None and can_check_hints(self.detectors, self.environment, requests[i].task)
        ]
        queries = []
        for i in indices:
            turns = requests[i].turns
            hints = tuple(turn.reply for turn in turns if turn.hint is not None)
            queries.append(LeakQuery(requests[i].task, feedbacks[i].text, tuple(turn.attempt for turn in turns), hints))
        for i, report in zip(indices, run_cascade(self.detectors, queries), strict=True):
            reports[i] = report.model_copy(update={"action": self.action}) if report.leaked else report
        return reports

    def _apply_action(
        self, request: FeedbackRequest, feedback: Feedback, teacher: str, report: LeakReport | None
    ) -> ScreenedHint:
        """Return the hint without resampling; `resample` starts from the contentless hint."""
        hint = Hint(
            text=feedback.text,
            teacher=teacher,
            leak=report,
            source_task=feedback.source_task,
            prompt_template=feedback.prompt,
            usage=feedback.usage,
            planted=feedback.planted,
            error=feedback.error,
        )
        if feedback.error is not None:
            return _fallback(hint, feedback, request)
        if report is None or not report.leaked or self.action == "flag":
            return ScreenedHint(hint)
        text = ""
        if self.action == "redact":
            text = self.redact(request, feedback.text, report)
        elif self.action == "resample":
            text = request.fallback_hint
        hint = hint.model_copy(update={"text": text, "feedback": feedback.text})
        return ScreenedHint(hint, drop=self.action == "drop")

    def redact(self, request: FeedbackRequest, text: str, report: LeakReport | None) -> str:
        """Blank the flagged span until no detector flags the text; contentless if that fails."""
        for _ in range(MAX_REDACTIONS):
            if report is None or not report.leaked:
                return text
            if report.span is None:
                break
            start, end = report.span
            text = text[:start] + REDACTED + text[end:]
            report = self._reports([request], [Feedback(text)])[0]
        return request.fallback_hint

    def _resample(
        self,
        requests: Sequence[FeedbackRequest],
        screened: list[ScreenedHint],
        leaking: list[int],
        resample: ResampleFn,
    ) -> None:
        """Replace leaking hints by the first clean message, one batch per attempt."""
        for attempt in range(1, self.max_resamples + 1):
            if not leaking:
                return
            retries = [replace(requests[i], retry=requests[i].retry + attempt) for i in leaking]
            feedbacks = resample(retries)
            still_leaking = []
            for i, feedback, report in zip(leaking, feedbacks, self._reports(retries, feedbacks), strict=True):
                usage = _add_usage(screened[i].hint.usage, feedback.usage)
                hint = screened[i].hint.model_copy(update={"usage": usage})
                if feedback.error is not None:
                    screened[i] = _fallback(hint, feedback, requests[i])
                    continue
                if report is not None and report.leaked:
                    still_leaking.append(i)
                else:
                    hint = hint.model_copy(
                        update={
                            "text": feedback.text,
                            "source_task": feedback.source_task,
                            "prompt_template": feedback.prompt,
                        }
                    )
                screened[i] = replace(screened[i], hint=hint)
            leaking = still_leaking


def _fallback(hint: Hint, feedback: Feedback, request: FeedbackRequest) -> ScreenedHint:
    """Return the contentless hint after a teacher error, or the end of the dialogue."""
    text = "" if feedback.ends_dialogue else request.fallback_hint
    message = hint.feedback if hint.is_replaced else text
    update = {"text": text, "feedback": message, "source_task": None, "error": feedback.error}
    hint = hint.model_copy(update=update)
    return ScreenedHint(hint, fail=feedback.ends_dialogue, error=feedback.error)


def _add_usage(first: Usage | None, second: Usage | None) -> Usage | None:
    return first + second if first is not None and second is not None else first or second
