"""Alerts about a run, by webhook or command; see `config.alerts`.

The alert is one JSON object with `alert` (failed, finished, leak_rate or no_mixed_groups), `run`, `text`, `time` and,
for an alert about a step, `stage`, `step` and `value`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time

from rl2f_core import registry
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.errors import RunError
from rl2f_core.run.events import Event, MetricEvent, StatusEvent
from rl2f_core.run.observers import Observer
from rl2f_core.types import JsonObject

TIMEOUT_SECONDS = 30.0
"""Limit of a request or a command."""
ATTEMPTS = 3
"""Number of attempts to send a request, one second apart."""
ENDINGS = {"failed": "failed", "interrupted": "failed", "succeeded": "finished", "stopped": "finished"}
"""Final status → alert."""


class Alerts(Observer):
    """Sends the alerts of a run. The condition of a step alerts once, and again after a step that does not meet it."""

    name = "alerts"

    def __init__(self, config: BaseRun) -> None:
        self.config, self.settings = config, config.alerts
        stages = config.stages if isinstance(config, RunConfig) else ()
        self._on_policy = {stage.name for stage in stages if registry.get("method", stage.method.type).on_policy}
        self._leaking = False
        self._unmixed = 0

    def handles(self, event: Event) -> bool:
        """Return whether the event is a status or has metrics of a step."""
        return isinstance(event, StatusEvent) or (isinstance(event, MetricEvent) and event.step > 0)

    def observe(self, event: Event) -> None:
        """Send the alerts of an event. Raises `RunError` if one could not be sent."""
        if isinstance(event, StatusEvent):
            send_end(self.config, event.status, event.detail)
        elif isinstance(event, MetricEvent):
            self._check_leaks(event)
            self._check_groups(event)

    def _check_leaks(self, event: MetricEvent) -> None:
        rate, limit = event.values.get("leak_rate"), self.settings.leak_rate_above
        if rate is None or limit is None:
            return
        was_leaking, self._leaking = self._leaking, rate > limit
        if self._leaking and not was_leaking:
            self._send("leak_rate", event, rate, f"leak rate {rate:.3g} is above {limit:.3g}")

    def _check_groups(self, event: MetricEvent) -> None:
        mixed, limit = event.values.get("groups/frac_mixed"), self.settings.no_mixed_groups
        if mixed is None or limit is None or event.stage not in self._on_policy:
            return
        self._unmixed = 0 if mixed > 0 else self._unmixed + 1
        if self._unmixed == limit:
            self._send("no_mixed_groups", event, limit, f"no mixed groups in {limit} steps")

    def _send(self, alert: str, event: MetricEvent, value: float, text: str) -> None:
        place = {"stage": event.stage, "step": event.step, "value": value}
        send(self.config, alert, f"{event.stage} step {event.step}: {text}", **place)


def send_end(config: BaseRun, status: str, detail: str) -> None:
    """Send the alert of a run's end, if its settings request it and `status` is final. Raises `RunError`."""
    alert = ENDINGS.get(status)
    if alert is not None and getattr(config.alerts, alert):
        send(config, alert, f"{status}: {detail}" if detail else status)


def send(config: BaseRun, alert: str, text: str, **more: object) -> None:
    """Send an alert by the webhook and the command of a run, if any; raise `RunError` if one of them fails."""
    settings, errors = config.alerts, []
    text = f"{config.name}: {text}"
    data: JsonObject = {"alert": alert, "run": config.name, "text": text, "time": time.time(), **more}
    if settings.webhook is not None:
        errors.append(_post(settings.webhook, data))
    if settings.command:
        errors.append(_run([part.replace("{text}", text) for part in settings.command], data))
    if any(errors):
        raise RunError(f"The alert {alert} was not sent: {'; '.join(filter(None, errors))}.")


def _post(webhook: str, alert: JsonObject) -> str:
    """Post an alert; return why it failed, without the URL, which may contain a token."""
    import httpx2

    url = os.environ.get(webhook[1:], "") if webhook.startswith("$") else webhook
    reason = f"the variable {webhook[1:]} is not set" if not url else ""
    for attempt in range(ATTEMPTS if url else 0):
        try:
            reply = httpx2.post(url, json=alert, timeout=TIMEOUT_SECONDS / ATTEMPTS)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = f"webhook: {type(error).__name__}"
        else:
            if reply.is_success:
                return ""
            reason = f"webhook: HTTP status {reply.status_code}"
        if attempt < ATTEMPTS - 1:
            time.sleep(1)
    return reason


def _run(command: list[str], alert: JsonObject) -> str:
    """Run a command with the alert as its input; return why it failed."""
    try:
        done = subprocess.run(
            command, input=json.dumps(alert).encode(), capture_output=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"command: {type(error).__name__}"
    return f"command: exit status {done.returncode}" if done.returncode else ""
