"""The routes of page New run: what a form starts from, what it amounts to, and what is done with it."""

from __future__ import annotations

import zoneinfo
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from app.common.urls import page_url
from app.forms import preflight, run_form
from app.forms import schedule as form_schedule
from app.forms.allowlist import (
    known_checkpoints,
    known_data,
    known_endpoints,
    known_models,
    known_problems,
    known_prompts,
    known_runs,
)
from app.forms.run_form import Checked
from app.forms.yaml_text import MAX_CHARACTERS, for_browser
from jobs.db.errors import NotFoundError
from jobs.db.queries import runs, scheduled_runs
from rl2f_core.config.loading import dump_yaml, parse_config
from rl2f_core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from app.common.context import Context

CLONES_SHOWN = 50
"""Past runs that the form offers to clone, newest first; any other can be named in the address."""


class Draft(BaseModel):
    """What the browser holds: the form's values or the YAML text, whichever was edited last."""

    model_config = ConfigDict(extra="forbid")
    data: dict[str, Any] | None = None
    yaml: str | None = Field(None, max_length=2 * MAX_CHARACTERS)
    text: str | None = Field(None, max_length=2 * MAX_CHARACTERS)
    """The YAML beside the form's values, whose comments stay."""
    kind: str | None = None
    """Turn the form's values into this kind of run."""
    parent: int | None = None
    """The run it was cloned from."""


class Times(BaseModel):
    """When a run is to be made."""

    model_config = ConfigDict(extra="forbid")
    trigger: Literal["at", "cron"]
    when: str = Field(max_length=200)
    timezone: str = Field("UTC", max_length=100)

    @property
    def stored_trigger(self) -> str:
        """The trigger as `ScheduledRun.trigger` stores it."""
        return "date" if self.trigger == "at" else self.trigger


class ScheduleDraft(Draft, Times):
    """A form and when it is to be run."""

    name: str = Field("", max_length=100)


def router(context: Context) -> APIRouter:
    """The routes below /api/form."""
    api = APIRouter(prefix="/api/form")
    workspace = context.workspace

    def checked(draft: Draft) -> Checked:
        if draft.yaml is not None:
            return run_form.check_yaml(draft.yaml, workspace)
        data = draft.data or {}
        if draft.kind is not None and draft.kind != data.get("kind", "train"):
            data = run_form.change_kind(data, draft.kind)
        return run_form.check_data(data, workspace, draft.text)

    def ready(draft: Draft) -> Checked:
        """Checked, and nothing wrong; raises `ConfigError` naming what is, `RunError` on a read-only server."""
        if context.read_only:
            raise RunError("This server is read-only: another one holds the workspace.", fix="Use the other server.")
        made = checked(draft)
        if made.problem is not None:
            raise ConfigError(made.problem.message, value=f"line {made.problem.line}" if made.problem.line else None)
        if not made.ok:
            wrong = "; ".join(f"{e.dotted or 'configuration'}: {e.message}" for e in made.errors)
            raise ConfigError("The configuration is not right yet.", value=wrong, fix="Correct the fields named.")
        return made

    @api.get("/start")
    def start(preset: str | None = None, clone: int | None = None) -> JSONResponse:
        """A form filled from a preset or a past run, and everything that it is drawn with."""
        text = run_form.preset_yaml(preset or run_form.DEFAULT_PRESET) if clone is None else _clone(context, clone)
        made = run_form.check_yaml(text, workspace)
        listed = {
            "models": known_models(),
            "checkpoints": known_checkpoints(context.db, workspace),
            "endpoints": known_endpoints(),
            "prompts": known_prompts(),
            "runs": known_runs(context.db),
            "data": known_data(context.db, workspace),
            "problems": known_problems(),
        }
        return JSONResponse(
            {
                **as_json(made),
                "spec": for_browser(run_form.spec(made.kind)),
                "source": {"preset": None if clone is not None else preset or run_form.DEFAULT_PRESET, "clone": clone},
                "kinds": run_form.kinds(),
                "max_characters": MAX_CHARACTERS,
                "presets": [
                    {"name": p.name, "about": p.about, "at_hand": run_form.at_hand(p)} for p in run_form.presets()
                ],
                "clones": _clones(context),
                "known": {name: [asdict(choice) for choice in known] for name, known in listed.items()},
            }
        )

    @api.get("/spec")
    def spec(kind: str) -> JSONResponse:
        """The form of a kind of run."""
        if kind not in run_form.kinds():
            raise NotFoundError("There is no such kind of run.", value=kind, known=run_form.kinds())
        return JSONResponse(for_browser(run_form.spec(kind)))

    @api.post("/validate")
    def validate(draft: Draft) -> JSONResponse:
        """What the form or the text amounts to, and what is wrong with it."""
        return JSONResponse(as_json(checked(draft)))

    @api.post("/launch")
    def launch(draft: Draft) -> JSONResponse:
        """Queue the run."""
        made = ready(draft)
        assert made.config is not None
        run = context.queue.add(made.config, origin="app", parent=draft.parent)
        assert run.id is not None
        return JSONResponse({"run": run.id, "url": page_url("run", run=run.id)})

    @api.post("/preflight")
    def start_preflight(draft: Draft) -> JSONResponse:
        """Queue the preflight of a training run."""
        made = ready(draft)
        assert made.data is not None
        if made.kind not in ("train", "preflight"):
            raise ConfigError("Only a training run has a preflight.", value=made.kind, fix="Start the run itself.")
        config = parse_config(preflight.preflight_data(made.data))
        run = context.queue.add(config, origin="app", parent=draft.parent)
        return JSONResponse({"run": run.id})

    @api.get("/preflight/{run_id}")
    def show_preflight(run_id: int) -> JSONResponse:
        """How far a preflight is, or what it found."""
        run = _preflight_run(context, run_id)
        return JSONResponse(for_browser(preflight.view(run, workspace.folder(run.folder))))

    @api.post("/preflight/{run_id}/abort")
    def abort_preflight(run_id: int) -> JSONResponse:
        """End a preflight."""
        if context.read_only:
            raise RunError("This server is read-only: another one holds the workspace.", fix="Use the other server.")
        _preflight_run(context, run_id)
        context.queue.abort(run_id)
        return JSONResponse({"run": run_id})

    @api.get("/timezones")
    def timezones() -> JSONResponse:
        """All time zones by name."""
        return JSONResponse(sorted(zoneinfo.available_timezones()))

    @api.post("/times")
    def times(draft: Times) -> JSONResponse:
        """The next three times of a trigger, as ISO text in its time zone, or what is wrong while it is typed."""
        try:
            found = form_schedule.next_times(draft.stored_trigger, draft.when, draft.timezone)
        except ConfigError as error:
            return JSONResponse({"times": [], "problem": {"what": error.what, "fix": error.fix}})
        return JSONResponse({"times": found, "problem": None})

    @api.post("/schedule")
    def schedule(draft: ScheduleDraft) -> JSONResponse:
        """Make the run at a time, or again and again."""
        made = ready(draft)
        upcoming = form_schedule.next_times(draft.stored_trigger, draft.when, draft.timezone)
        held = scheduled_runs.add(
            context.db,
            name=draft.name.strip() or str((made.data or {}).get("name", "run")),
            trigger=draft.stored_trigger,
            when=draft.when,
            timezone=draft.timezone,
            config=made.yaml,
        )
        return JSONResponse({"schedule": held.id, "times": upcoming, "url": page_url("")})

    return api


def as_json(made: Checked) -> dict[str, Any]:
    """A checked form for the browser."""
    problem = made.problem
    name = made.data.get("name") if made.data else None
    return {
        "ok": made.ok,
        "kind": made.kind,
        "data": for_browser(made.data),
        "yaml": made.yaml,
        "resolved": made.config and dump_yaml(made.config),
        "errors": [
            {"path": list(e.path), "dotted": e.dotted, "message": e.message, "line": e.line} for e in made.errors
        ],
        "problem": problem and {"message": problem.message, "line": problem.line, "column": problem.column},
        "file": run_form.file_name(name),
        "command": run_form.command(name),
    }


def _clone(context: Context, run_id: int) -> str:
    """The configuration of a past run; raises `RunError` where there is none."""
    runs.get(context.db, run_id)
    return context.queue.clone_yaml(run_id)


def _clones(context: Context) -> list[dict[str, Any]]:
    shown = ("name", "kind", "environment", "method", "status")
    rows = runs.page(context.db, limit=CLONES_SHOWN).rows
    return [{"run": row.id, **{name: getattr(row, name) for name in shown}} for row in rows]


def _preflight_run(context: Context, run_id: int) -> Any:
    run = runs.get(context.db, run_id)
    if run.kind != "preflight":
        raise NotFoundError("There is no preflight of that number.", value=run_id, fix="Start one from the form.")
    return run
