"""Forks: what a dialogue can go on with, the job that plays it, and what came of it.

A browser names runs, dialogues and checkpoints by what the workspace knows them as, never by a path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.forms.allowlist import adapter_refusal, known_checkpoints
from jobs.db.errors import NotFoundError
from jobs.db.models import Run
from jobs.db.queries import dialogues, hint_values, runs
from rl2f_core import registry
from rl2f_core.counterfactual.arms import HINTS, Arm
from rl2f_core.counterfactual.config import known_checkpoints as named_in
from rl2f_core.counterfactual.config import nearest_checkpoint
from rl2f_core.errors import ConfigError, RL2FError, RunError
from rl2f_core.run.directory import RunDir

if TYPE_CHECKING:
    from app.common.context import Context
    from jobs.db.models import Dialogue
    from rl2f_core.counterfactual.report import CounterfactualReport

Id = Annotated[int, Field(ge=1, le=2**31 - 1)]
Text = Annotated[str, Field(max_length=1000)]
Turn = Annotated[int, Field(ge=0, le=9_999)]
FIELDS = ("id", "name", "status", "detail", "phase", "done", "total", "eta", "created", "ended", "version")


class Asked(BaseModel):
    """A fork to be played."""

    model_config = ConfigDict(extra="forbid")
    run: Id
    dialogue: Text
    turn: Turn
    checkpoints: Annotated[list[Text], Field(min_length=1, max_length=8)]
    """`base`, or labels such as `17:rl2f@24`."""
    arms: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=12)]
    """See `rl2f_core.counterfactual.arms.Arm`; a teacher by its registered name."""
    samples: Annotated[int, Field(ge=1, le=500)] = 16
    attempts: Annotated[int, Field(ge=1, le=64)] | None = None
    then: Literal["run", "arm", "contentless"] = "run"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


def router(context: Context) -> APIRouter:
    """Routes below `/api/fork`."""
    api = APIRouter(prefix="/api/fork")
    db, workspace = context.db, context.workspace

    @api.get("/place")
    def place(run: Annotated[Id, Query()], dialogue: Annotated[Text, Query()]) -> dict[str, Any]:
        """What a dialogue can go on with, and its earlier forks."""
        row, owner = dialogues.get(db, run, dialogue).row, runs.get(db, run)
        choices = _checkpoints(context, owner)
        return {
            "checkpoints": [{"label": label, "note": note} for label, (_, _, note) in choices.items()],
            "default": _default(context, owner, row, choices),
            "hints": list(HINTS),
            "teachers": _teachers(),
            "forks": forks(context, owner, dialogue),
        }

    @api.post("")
    def start(body: Asked) -> dict[str, Any]:
        """Put a fork into the queue."""
        from rl2f_core.run_kinds.fork import fork_config

        if context.read_only:
            raise RunError("This server is read-only: another one holds the workspace.", fix="Use the other server.")
        owner = runs.get(db, body.run)
        choices = _checkpoints(context, owner)
        unknown = [label for label in body.checkpoints if label not in choices]
        if unknown:
            raise NotFoundError("There is no such checkpoint.", value=unknown[0], known=choices)
        chosen = {choices[label][0]: choices[label][1] for label in body.checkpoints}
        config = fork_config(
            RunDir.open(workspace.folder(owner.folder)), owner.folder, body.dialogue, body.turn, chosen,
            _arms(body.arms),
            samples=body.samples, turns=body.attempts, later_hints=body.then, seed=body.seed,
        )  # fmt: skip
        added = context.queue.add(config, origin="app", parent=owner.id)
        return {"run": added.id}

    @api.get("/{run_id}")
    def one(run_id: Id) -> dict[str, Any]:
        """How far a fork is and what it came to so far; its dialogue and turn."""
        from rl2f_core.counterfactual.runner import read_report

        run = _fork(context, run_id)
        config = _config(context, run)
        report = read_report(workspace.folder(run.folder))
        source = runs.find(db, folder=config.source)
        return {
            "run": {name: getattr(run, name) for name in FIELDS},
            "source": None if source is None else source.id,
            "dialogue": config.dialogue,
            "turn": config.turn,
            "samples": config.samples,
            "report": None if report is None else _report_json(report),
        }

    return api


def _report_json(report: CounterfactualReport) -> dict[str, Any]:
    """Return the report with the keys that the page reads."""
    data = report.model_dump(mode="json")
    for result in data["results"]:
        result["kept"] = result.pop("retained_parts")
    for hint in data["hints"]:
        hint["said"], hint["worth"] = hint.pop("hints_by_arm"), hint.pop("hint_value")
    return data


def forks(context: Context, owner: Run, dialogue: str) -> list[dict[str, Any]]:
    """The forks of a dialogue of a run, newest first."""
    found = []
    for child in hint_values.forks(context.db, owner):
        try:
            config = _config(context, child)
        except RL2FError:  # a plug-in that it names is gone
            continue
        if config.dialogue == dialogue:
            found.append(
                {
                    "run": child.id, "status": child.status, "created": child.created, "turn": config.turn,
                    "checkpoints": list(config.checkpoints), "arms": list(config.labeled_arms()),
                    "samples": config.samples,
                }
            )  # fmt: skip
    return found


def _fork(context: Context, run_id: int) -> Run:
    run = runs.get(context.db, run_id)
    if run.kind != "fork":
        raise NotFoundError("There is no fork of that number.", value=run_id, fix="Open a dialogue and press f.")
    return run


def _config(context: Context, run: Run) -> Any:
    return RunDir.open(context.workspace.folder(run.folder)).config()


def _checkpoints(context: Context, owner: Run) -> dict[str, tuple[str, str | None, str]]:
    """What may speak, by label: name in the report, folder, note. The run's own come first, then those of other runs
    with the same base model."""
    found: dict[str, tuple[str, str | None, str]] = {"base": ("base", None, owner.model)}
    assert owner.id is not None
    for row in reversed(runs.checkpoints(context.db, owner.id)):
        folder = str((context.workspace.folder(owner.folder) / row.path).resolve())
        if adapter_refusal(folder, context.workspace) is None:
            found[f"{owner.id}:{row.name}"] = (row.name, folder, owner.name)
    for choice in known_checkpoints(context.db, context.workspace):
        number = int(choice.label.partition(":")[0])
        if choice.label not in found and runs.get(context.db, number).model == owner.model:
            found[choice.label] = (choice.label, choice.value, choice.note)
    return found


def _default(context: Context, owner: Run, row: Dialogue, choices: dict[str, tuple[str, str | None, str]]) -> str:
    """The label of the weights that played a dialogue, or of those that come closest."""
    wanted = row.checkpoint or row.policy
    try:
        known = named_in(RunDir.open(context.workspace.folder(owner.folder)))
    except RL2FError:
        return "base"
    folder = known[nearest_checkpoint(list(known), wanted)]
    return next((label for label, (_, path, _) in choices.items() if path == folder), "base")


def _teachers() -> list[str]:
    """Registered teachers that need no settings and no person."""
    found = []
    for name in registry.names("teacher"):
        try:
            registry.get("teacher", name).Config()
        except ValidationError:
            continue
        if name != "human":
            found.append(name)
    return found


def _arms(data: list[dict[str, Any]]) -> list[Arm]:
    """Arms as a page names them; settings of a teacher come from nobody but this program."""
    arms = []
    for item in data:
        teacher = item.get("teacher")
        if teacher is not None and not isinstance(teacher, str):
            raise ConfigError("A teacher is chosen by its name.", value=teacher, known=_teachers())
        try:
            arms.append(Arm.model_validate(item))
        except ValidationError as error:
            what = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(f"An arm cannot be played: {what}.", value=item.get("hint"), known=HINTS) from error
    return arms
