"""What happens to a leaking hint: the one place between a teacher's message and the student (methods.md §9).

| action | the student reads | the dialogue |
|---|---|---|
| flag | what the teacher wrote | goes on |
| redact | the message with each convicting span replaced by […] | goes on |
| resample | the first clean message of up to n more, else the contentless hint | goes on |
| drop | nothing | ends |

A message that came with an error is never read by the student, who gets the contentless hint instead, or nothing where
the teacher's configuration ends the dialogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from rl2f_core import registry
from rl2f_core.config import LeaksConfig
from rl2f_core.environments.base import Environment
from rl2f_core.leaks.base import LeakDetector, LeakQuery, first_leaks
from rl2f_core.teachers.base import Feedback, FeedbackRequest
from rl2f_core.types import Hint, LeakReport, StopReason, Usage

if TYPE_CHECKING:
    from rl2f_core.backends.pool import Models

Action = Literal["flag", "redact", "resample", "drop"]
AskAgain = Callable[[Sequence[FeedbackRequest]], list[Feedback]]
"""`Teacher.feedback`, or anything like it."""
BLANK = "[…]"
MAX_REDACTIONS = 100
"""A message that still leaks after so many is given up."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """What a wrong attempt is answered with."""

    hint: Hint
    """What the student reads, with the report on what the teacher wrote. Its text is empty where the dialogue ends."""
    drop: bool = False
    """The dialogue ends here, for a leak."""
    fail: bool = False
    """The dialogue ends here, since there is no hint."""
    error: str | None = None
    """Why the teacher had no message, where the hint stands in for one."""
    asked: int = 0
    """How many more messages were asked for."""

    @property
    def stop(self) -> StopReason | None:
        """Why the dialogue ends here; None where it goes on."""
        return StopReason.DROPPED if self.drop else StopReason.FAILED if self.fail else None


def build_detectors(config: LeaksConfig, environment: Environment, models: Models | None = None) -> list[LeakDetector]:
    """The configured detectors, in the configured order."""
    return [registry.get("leak", part.type)(part, environment, models) for part in config.detectors]


class LeakGuard:
    """Reads every hint before the student does and applies the configured action.

    Args:
        detectors: Tiers, cheapest first; none means that hints pass unread and carry no report.
        action: What happens to a leak.
        tries: How many more messages `resample` asks for.
        environment: The environment that all requests belong to.
    """

    def __init__(self, detectors: Sequence[LeakDetector], action: Action, tries: int, environment: Environment) -> None:
        self.detectors = tuple(detectors)
        self.action = action
        self.tries = tries
        self.environment = environment

    @classmethod
    def from_config(cls, config: LeaksConfig, environment: Environment, models: Models | None = None) -> LeakGuard:
        """The guard that `LeaksConfig` describes."""
        return cls(build_detectors(config, environment, models), config.action, config.resample_tries, environment)

    def read(
        self, requests: Sequence[FeedbackRequest], feedbacks: Sequence[Feedback], teacher: str, ask_again: AskAgain
    ) -> list[Guarded]:
        """One answer for each request, in order.

        Args:
            requests: What was asked.
            feedbacks: What the teacher said, one for each.
            teacher: The teacher's registered name, for `Hint.teacher`.
            ask_again: Asks the teacher for a batch again; each request carries `retry` + 1. Only `resample` calls it.
        """
        reports = self._reports(requests, feedbacks)
        answers: list[Guarded] = []
        refused: list[int] = []
        for index, (request, feedback, report) in enumerate(zip(requests, feedbacks, reports, strict=True)):
            answers.append(self._answer(request, feedback, teacher, report))
            if self.action == "resample" and report is not None and report.leaked:
                refused.append(index)
        self._resample(requests, answers, refused, ask_again)
        return answers

    def _reports(self, requests: Sequence[FeedbackRequest], feedbacks: Sequence[Feedback]) -> list[LeakReport | None]:
        """The detectors' finding on each message that came without an error, with the action that answers a leak."""
        reports: list[LeakReport | None] = [None] * len(requests)
        if not self.detectors:
            return reports
        told = [i for i, feedback in enumerate(feedbacks) if feedback.error is None]
        queries = []
        for i in told:
            turns = requests[i].turns
            hints = tuple(turn.hint.text for turn in turns if turn.hint is not None)
            attempts = tuple(turn.attempt for turn in turns)
            queries.append(LeakQuery(requests[i].task, feedbacks[i].text, attempts, hints))
        for i, report in zip(told, first_leaks(self.detectors, queries), strict=True):
            reports[i] = report.model_copy(update={"action": self.action}) if report.leaked else report
        return reports

    def _report(self, request: FeedbackRequest, text: str) -> LeakReport | None:
        """`_reports` of one message."""
        return self._reports([request], [Feedback(text)])[0]

    def _answer(self, request: FeedbackRequest, feedback: Feedback, teacher: str, report: LeakReport | None) -> Guarded:
        """The answer without asking again; a message to be resampled is already replaced by the contentless one."""
        hint = Hint(text=feedback.text, teacher=teacher, leak=report, source_task=feedback.source_task,
                    prompt=feedback.prompt, usage=feedback.usage, error=feedback.error)  # fmt: skip
        if feedback.error is not None:
            return _without_words(hint, feedback, request)
        if report is None or not report.leaked or self.action == "flag":
            return Guarded(hint)
        text = {"redact": self._redact(request, feedback.text, report), "resample": request.contentless, "drop": ""}[
            self.action
        ]
        return Guarded(hint.model_copy(update={"text": text, "original": feedback.text}), drop=self.action == "drop")

    def _redact(self, request: FeedbackRequest, text: str, report: LeakReport) -> str:
        """`text` with the convicting span blanked until no detector convicts; contentless where that fails."""
        found: LeakReport | None = report
        for _ in range(MAX_REDACTIONS):
            if found is None or not found.leaked:
                return text
            if found.span is None:
                return request.contentless
            start, end = found.span
            text = text[:start] + BLANK + text[end:]
            found = self._report(request, text)
        return request.contentless

    def _resample(
        self, requests: Sequence[FeedbackRequest], answers: list[Guarded], refused: list[int], ask_again: AskAgain
    ) -> None:
        """Ask up to `tries` times for the refused ones, all of them in one batch a time."""
        for attempt in range(1, self.tries + 1):
            if not refused:
                return
            again = [replace(requests[i], retry=requests[i].retry + attempt) for i in refused]
            leaking = []
            told = ask_again(again)
            for index, feedback, report in zip(refused, told, self._reports(again, told), strict=True):
                usage = _together(answers[index].hint.usage, feedback.usage)
                hint = answers[index].hint.model_copy(update={"usage": usage})
                answers[index] = replace(answers[index], hint=hint, asked=attempt)
                if feedback.error is not None:
                    answers[index] = replace(_without_words(hint, feedback, requests[index]), asked=attempt)
                    continue
                if report is not None and report.leaked:
                    leaking.append(index)
                    continue
                update = {"text": feedback.text, "source_task": feedback.source_task, "prompt": feedback.prompt}
                answers[index] = replace(answers[index], hint=hint.model_copy(update=update))
            refused = leaking


def _without_words(hint: Hint, feedback: Feedback, request: FeedbackRequest) -> Guarded:
    """The answer where the teacher had none: contentless, or the end of the dialogue."""
    text = "" if feedback.fatal else request.contentless
    told = hint.model_copy(update={"text": text, "source_task": None, "error": feedback.error})
    return Guarded(told, fail=feedback.fatal, error=feedback.error)


def _together(first: Usage | None, second: Usage | None) -> Usage | None:
    return first + second if first is not None and second is not None else first or second
