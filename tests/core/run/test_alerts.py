"""When a run alerts, what it sends, and that a message contains no secret."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tracking_data import config_with, metric, status, webhook

from rl2f_core.errors import RunError
from rl2f_core.run import alerts
from rl2f_core.run.alerts import Alerts
from rl2f_core.run.events import Event
from rl2f_core.types import JsonObject


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[JsonObject]:
    """The alerts that were sent."""
    found: list[JsonObject] = []
    monkeypatch.setattr(alerts, "_post", lambda webhook, alert: found.append(alert))
    return found


def observe(events: list[Event], **settings: Any) -> None:
    observer = Alerts(config_with(name="run 7", alerts={"webhook": "https://example.org", **settings}))
    for event in events:
        if observer.handles(event):
            observer.observe(event)


def steps(name: str, *values: float, stage: str = "rl") -> list[Event]:
    return [metric(stage, step, **{name: value}) for step, value in enumerate(values, 1)]


def test_a_leak_rate_alerts_when_it_rises_above_the_limit_and_not_at_every_step(sent: list[JsonObject]) -> None:
    observe(steps("leak_rate", 0.1, 0.2, 0.3, 0.1, 0.2), leak_rate_above=0.1)
    assert [(a["alert"], a["stage"], a["step"], a["value"]) for a in sent] == [
        ("leak_rate", "rl", 2, 0.2),
        ("leak_rate", "rl", 5, 0.2),
    ]
    assert sent[0]["text"] == "run 7: rl step 2: leak rate 0.2 is above 0.1"


def test_steps_without_mixed_groups_alert_once_until_a_step_has_one(sent: list[JsonObject]) -> None:
    observe(steps("groups/frac_mixed", 0, 0.5, 0, 0, 0, 0.25, 0, 0), no_mixed_groups=2)
    assert [(a["step"], a["text"]) for a in sent] == [
        (4, "run 7: rl step 4: no mixed groups in 2 steps"),
        (8, "run 7: rl step 8: no mixed groups in 2 steps"),
    ]


def test_stages_that_learn_from_demonstrations_need_no_mixed_groups(sent: list[JsonObject]) -> None:
    observe(steps("groups/frac_mixed", 0, 0, stage="warm"), no_mixed_groups=1)
    assert sent == []


@pytest.mark.parametrize(
    ("ended", "alert"),
    [("succeeded", "finished"), ("stopped", "finished"), ("failed", "failed"), ("interrupted", "failed")],
)
def test_the_end_of_a_run_alerts_unless_it_is_switched_off(ended: str, alert: str, sent: list[JsonObject]) -> None:
    observe([status("running"), status(ended)], finished=True, failed=True)
    assert [(a["alert"], a["text"]) for a in sent] == [(alert, f"run 7: {ended}")]
    observe([status(ended)], **{alert: False})
    assert len(sent) == 1


def test_metrics_of_an_evaluation_do_not_alert(sent: list[JsonObject]) -> None:
    observe([metric("evaluation:base:hints", 0, leak_rate=1.0)], leak_rate_above=0.1)
    assert sent == []


# -- how it is sent ------------------------------------------------------------------------------------------------
def test_a_webhook_receives_the_alert_as_json_and_a_second_attempt_follows_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with webhook([503]) as (url, bodies):
        alerts.send(config_with(name="codes", alerts={"webhook": url}), "finished", "done")
    assert len(bodies) == 2 and bodies[0] == bodies[1]
    assert bodies[0].pop("time") > 1e9
    assert bodies[0] == {"alert": "finished", "run": "codes", "text": "codes: done"}


def test_a_webhook_is_read_from_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_with(alerts={"webhook": "$TEAM_WEBHOOK"})
    with webhook() as (url, bodies):
        monkeypatch.setenv("TEAM_WEBHOOK", url)
        alerts.send(config, "finished", "done")
    assert len(bodies) == 1
    monkeypatch.delenv("TEAM_WEBHOOK")
    with pytest.raises(RunError, match="TEAM_WEBHOOK is not set"):
        alerts.send(config, "finished", "done")


def test_the_error_of_a_webhook_does_not_contain_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with webhook([404, 404, 404]) as (url, bodies):
        config = config_with(alerts={"webhook": url})
        with pytest.raises(RunError, match="HTTP status 404") as refused:
            alerts.send(config, "finished", "done")
    assert len(bodies) == 3
    with pytest.raises(RunError, match="ConnectError") as dead:
        alerts.send(config, "finished", "done")
    assert "SECRET" not in f"{refused.value} {dead.value}"


def test_a_command_receives_text_and_json_without_a_shell(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import json, sys; json.dump([sys.argv[2:], json.load(sys.stdin)], open(sys.argv[1], 'w'))")
    command = [sys.executable, str(program), str(tmp_path / "out.json"), "RL2F: {text}", "$HOME"]
    alerts.send(config_with(name="codes", alerts={"command": command}), "failed", "it is $HOME; echo *")
    arguments, alert = json.loads((tmp_path / "out.json").read_text())
    assert arguments == ["RL2F: codes: it is $HOME; echo *", "$HOME"]
    assert (alert["alert"], alert["text"]) == ("failed", "codes: it is $HOME; echo *")


def test_a_failing_command_is_an_error_and_the_webhook_is_used_all_the_same() -> None:
    with webhook() as (url, bodies):
        config = config_with(alerts={"webhook": url, "command": [sys.executable, "-c", "raise SystemExit(3)"]})
        with pytest.raises(RunError, match="command: exit status 3"):
            alerts.send(config, "failed", "x")
    assert len(bodies) == 1


@pytest.mark.parametrize("value", ["ftp://host/x", "file:///etc/passwd", "hooks.slack.com/x", "$", "$A B"])
def test_a_webhook_is_an_http_url_or_a_variable(value: str) -> None:
    with pytest.raises(ValidationError, match="a webhook begins with http"):
        alerts_of: Callable[..., Any] = type(config_with().alerts)
        alerts_of(webhook=value)
