"""The initial schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "1"
down_revision = None

metadata = sa.MetaData()
"""The tables of this revision, independent of the models of later revisions."""


_PLANTED = sa.text("planted IS NOT NULL")


def _required(kind: type[TypeEngine], *names: str) -> list[sa.Column]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _nullable(kind: type[TypeEngine], *names: str) -> list[sa.Column]:
    return [sa.Column(name, kind, nullable=True) for name in names]


def upgrade() -> None:
    """Create all tables and SQLite's full-text index of dialogues."""
    metadata.create_all(op.get_bind())
    op.execute("INSERT INTO setting (name, value) VALUES ('store.version', '0')")
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE dialogue_text USING fts5"
            "(task, attempts, hints, tokenize = 'unicode61 remove_diacritics 2')"
        )


sa.Table(
    "chat",
    metadata,
    *_required(sa.Integer, "id"),
    *_required(sa.String, "title", "mode"),
    *_required(sa.JSON, "settings"),
    *_nullable(sa.JSON, "task"),
    *_required(sa.Float, "created", "changed"),
    sa.PrimaryKeyConstraint("id"),
    sa.Index("ix_chat_changed", "changed"),
)
sa.Table(
    "joblog",
    metadata,
    *_required(sa.Integer, "id"),
    *_required(sa.Float, "time"),
    *_required(sa.String, "job", "outcome"),
    *_required(sa.Text, "detail"),
    sa.PrimaryKeyConstraint("id"),
    sa.Index("ix_joblog_time", "time"),
)
sa.Table(
    "auditentry",
    metadata,
    *_required(sa.Integer, "id"),
    *_required(sa.Float, "time"),
    *_required(sa.String, "caller", "action", "outcome"),
    *_required(sa.Text, "arguments", "detail"),
    sa.PrimaryKeyConstraint("id"),
    sa.Index("ix_auditentry_time", "time"),
    sa.Index("ix_auditentry_caller", "caller"),
    sa.Index("ix_auditentry_action", "action"),
)
sa.Table(
    "run",
    metadata,
    *_required(sa.Integer, "id", "seed", "sessions", "version", "invalid_lines"),
    *_required(
        sa.String, "name", "kind", "status", "folder", "origin", "environment", "model", "method", "device", "phase"
    ),
    *_required(sa.Text, "detail", "config", "worker_location"),
    *_nullable(sa.Integer, "parent", "pid"),
    *_required(sa.Float, "position", "created", "done"),
    *_nullable(sa.Float, "started", "ended", "pid_started", "total", "eta", "reward", "tokens_per_second", "heartbeat"),
    *_required(sa.BigInteger, "events_offset"),
    sa.PrimaryKeyConstraint("id"),
    sa.UniqueConstraint("folder"),
    sa.Index("ix_run_created", "created"),
    sa.Index("ix_run_kind", "kind"),
    sa.Index("ix_run_name", "name"),
    sa.Index("ix_run_status_position", "status", "position"),
)
sa.Table(
    "scheduledrun",
    metadata,
    *_required(sa.Integer, "id"),
    *_required(sa.String, "name", "trigger", "when", "timezone"),
    *_required(sa.Text, "config"),
    *_required(sa.Boolean, "enabled"),
    *_required(sa.Float, "created"),
    *_nullable(sa.Float, "last_run", "next_run"),
    sa.PrimaryKeyConstraint("id"),
    sa.Index("ix_scheduledrun_next_run", "next_run"),
)
sa.Table(
    "setting",
    metadata,
    *_required(sa.String, "name", "value"),
    sa.PrimaryKeyConstraint("name"),
)
sa.Table(
    "testsetaccess",
    metadata,
    *_required(sa.Integer, "id"),
    *_required(sa.Float, "time"),
    *_required(sa.String, "annotator", "source", "environment"),
    *_required(sa.Text, "detectors"),
    *_nullable(sa.Integer, "run_id"),
    sa.PrimaryKeyConstraint("id"),
)
sa.Table(
    "chatmessage",
    metadata,
    *_required(sa.Integer, "id", "chat_id"),
    *_nullable(sa.Integer, "parent"),
    *_required(sa.String, "role", "checkpoint", "status"),
    *_required(sa.Text, "content"),
    *_required(sa.JSON, "detail"),
    *_required(sa.Float, "time"),
    sa.PrimaryKeyConstraint("id"),
    sa.ForeignKeyConstraint(["chat_id"], ["chat.id"]),
    sa.Index("ix_chatmessage_chat", "chat_id", "id"),
)
sa.Table(
    "checkpoint",
    metadata,
    *_required(sa.Integer, "run_id", "step"),
    *_required(sa.String, "name", "stage", "path", "sha256"),
    *_required(sa.Float, "time"),
    sa.PrimaryKeyConstraint("run_id", "name"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
)
sa.Table(
    "hintcount",
    metadata,
    *_required(sa.Integer, "run_id", "bucket", "n", "known", "determining"),
    *_required(sa.Float, "bits"),
    *_required(sa.String, "environment", "teacher", "stage", "checkpoint", "condition", "detector"),
    *_required(sa.Boolean, "test", "checked", "flagged"),
    sa.PrimaryKeyConstraint(
        *("run_id", "environment", "teacher", "stage", "bucket", "checkpoint", "condition"),
        *("test", "checked", "flagged", "detector"),
    ),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
)
sa.Table(
    "hintvalue",
    metadata,
    *_required(sa.Integer, "run_id", "turn", "n"),
    *_required(sa.String, "event_id", "checkpoint", "source"),
    *_required(sa.Float, "value", "low", "high", "time"),
    *_nullable(sa.Integer, "turns"),
    *_required(sa.JSON, "arms"),
    sa.PrimaryKeyConstraint("run_id", "event_id", "turn", "checkpoint"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    sa.Index("ix_hintvalue_source", "source", "event_id"),
)
sa.Table(
    "leaklabel",
    metadata,
    *_required(sa.Integer, "id", "run_id", "turn"),
    *_required(sa.String, "event_id", "annotator", "label"),
    *_nullable(sa.Integer, "start", "end"),
    *_required(sa.Text, "note"),
    *_required(sa.Boolean, "blind"),
    *_nullable(sa.String, "sampling_frame"),
    *_required(sa.Float, "time"),
    sa.PrimaryKeyConstraint("id"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    sa.UniqueConstraint("run_id", "event_id", "turn", "annotator"),
    sa.Index("ix_leaklabel_annotator_time", "annotator", "time"),
)
sa.Table(
    "leakscore",
    metadata,
    *_required(sa.Integer, "run_id", "turn"),
    *_required(sa.String, "target", "event_id"),
    *_required(sa.Float, "probability", "threshold"),
    sa.PrimaryKeyConstraint("run_id", "target", "event_id", "turn"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
)
sa.Table(
    "openedhint",
    metadata,
    *_required(sa.Integer, "run_id", "turn"),
    *_required(sa.String, "event_id", "annotator"),
    *_required(sa.Float, "time"),
    sa.PrimaryKeyConstraint("run_id", "event_id", "turn", "annotator"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
)
sa.Table(
    "log",
    metadata,
    *_required(sa.Integer, "id", "run_id"),
    *_required(sa.String, "event_id", "level"),
    *_required(sa.Float, "time"),
    *_required(sa.Text, "text"),
    sa.PrimaryKeyConstraint("id"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    sa.UniqueConstraint("run_id", "event_id"),
    sa.Index("ix_log_run_id", "run_id"),
)
sa.Table(
    "metric",
    metadata,
    *_required(sa.Integer, "run_id", "step", "number"),
    *_required(sa.String, "stage"),
    *_required(sa.Float, "time", "tokens"),
    *_required(sa.JSON, "values"),
    sa.PrimaryKeyConstraint("run_id", "stage", "step"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    sa.Index("ix_metric_run_number", "run_id", "number"),
)
sa.Table(
    "note",
    metadata,
    *_required(sa.Integer, "id", "run_id"),
    *_nullable(sa.String, "event_id"),
    *_nullable(sa.Integer, "turn"),
    *_required(sa.String, "author"),
    *_required(sa.Text, "text"),
    *_required(sa.Float, "time"),
    sa.PrimaryKeyConstraint("id"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    sa.Index("ix_note_run_event", "run_id", "event_id"),
)
sa.Table(
    "rescoredrun",
    metadata,
    *_required(sa.Integer, "run_id", "target_run_id", "checked", "flagged"),
    *_required(sa.Text, "detectors"),
    *_required(sa.Float, "time"),
    sa.PrimaryKeyConstraint("run_id", "target_run_id"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    sa.ForeignKeyConstraint(["target_run_id"], ["run.id"]),
)
sa.Table(
    "rescorefinding",
    metadata,
    *_required(sa.Integer, "run_id", "turn"),
    *_required(sa.String, "event_id", "target"),
    *_nullable(sa.String, "detector", "leak_type"),
    *_nullable(sa.Integer, "start", "end"),
    *_required(sa.Float, "answer_fraction"),
    *_required(sa.Text, "evidence"),
    sa.PrimaryKeyConstraint("run_id", "event_id", "turn"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
)
sa.Table(
    "rescoresummary",
    metadata,
    *_required(sa.Integer, "run_id", "checked", "flagged"),
    *_required(sa.String, "target"),
    *_required(sa.Text, "detectors"),
    *_required(sa.Float, "time"),
    sa.PrimaryKeyConstraint("run_id"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    sa.Index("ix_rescoresummary_target", "target"),
)
sa.Table(
    "stage",
    metadata,
    *_required(sa.Integer, "run_id", "index", "steps", "done"),
    *_required(sa.String, "name", "method"),
    *_nullable(sa.Float, "started", "ended"),
    sa.PrimaryKeyConstraint("run_id", "index"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
)
sa.Table(
    "tag",
    metadata,
    *_required(sa.Integer, "run_id"),
    *_required(sa.String, "tag"),
    sa.PrimaryKeyConstraint("run_id", "tag"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    sa.Index("ix_tag_tag", "tag"),
)
sa.Table(
    "task",
    metadata,
    *_required(sa.Integer, "id", "run_id"),
    *_required(sa.String, "task", "environment", "split", "level", "task_hash"),
    *_required(sa.JSON, "public", "privileged"),
    sa.PrimaryKeyConstraint("id"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    sa.UniqueConstraint("run_id", "task"),
)
sa.Table(
    "dialogue",
    metadata,
    *_required(sa.Integer, "id", "run_id", "task_id", "step", "index", "length", "leak_state", "label_count"),
    *_required(sa.String, "event_id", "dialogue_id", "environment", "level", "phase", "stage", "group"),
    *_required(sa.String, "stop_reason", "policy", "outcomes"),
    *_nullable(sa.String, "checkpoint", "condition", "error"),
    *_required(sa.BigInteger, "seed"),
    *_nullable(sa.Integer, "solved_at"),
    *_required(sa.Float, "reward", "time"),
    *_nullable(sa.Float, "advantage", "best_hint_value"),
    sa.PrimaryKeyConstraint("id"),
    sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    sa.ForeignKeyConstraint(["task_id"], ["task.id"]),
    sa.UniqueConstraint("run_id", "event_id"),
    sa.Index("ix_dialogue_environment", "environment", "level", "id"),
    sa.Index("ix_dialogue_hint_value", "best_hint_value", "id"),
    sa.Index("ix_dialogue_reward", "reward", "id"),
    sa.Index("ix_dialogue_labels", "label_count", "id"),
    sa.Index("ix_dialogue_leak", "leak_state", "id"),
    sa.Index("ix_dialogue_run_group", "run_id", "group"),
    sa.Index("ix_dialogue_run_hint_value", "run_id", "best_hint_value", "id"),
    sa.Index("ix_dialogue_run_labels", "run_id", "label_count", "id"),
    sa.Index("ix_dialogue_run_leak", "run_id", "leak_state", "id"),
    sa.Index("ix_dialogue_run_level", "run_id", "level", "id"),
    sa.Index("ix_dialogue_run_reward", "run_id", "reward", "id"),
    sa.Index("ix_dialogue_run_solved", "run_id", "solved_at", "id"),
    sa.Index("ix_dialogue_run_step", "run_id", "step", "id"),
    sa.Index("ix_dialogue_task_id", "task_id"),
)
sa.Table(
    "turn",
    metadata,
    *_required(sa.Integer, "id", "dialogue_id", "index"),
    *_required(sa.Text, "attempt"),
    *_required(sa.String, "finish_reason"),
    *_required(sa.Boolean, "correct", "determines_answer", "leak_checked", "leak_found"),
    *_nullable(sa.String, "parsed", "teacher", "source_task", "hint_prompt_template", "prompt_template", "planted"),
    *_required(sa.JSON, "verdict"),
    *_required(sa.Float, "reward"),
    *_nullable(sa.Float, "advantage", "hint_bits", "bits_left", "bits_used"),
    *_nullable(sa.Text, "hint", "feedback", "hint_error", "reflection"),
    *_nullable(sa.JSON, "usage", "actions"),
    *_nullable(sa.LargeBinary, "tokens"),
    sa.PrimaryKeyConstraint("id"),
    sa.ForeignKeyConstraint(["dialogue_id"], ["dialogue.id"]),
    sa.UniqueConstraint("dialogue_id", "index"),
    sa.Index("ix_turn_planted", "planted", sqlite_where=_PLANTED, postgresql_where=_PLANTED),
)
sa.Table(
    "leakfinding",
    metadata,
    *_required(sa.Integer, "turn_id"),
    *_required(sa.String, "source"),
    *_nullable(sa.String, "detector", "leak_type", "action"),
    *_nullable(sa.Integer, "start", "end"),
    *_required(sa.Float, "answer_fraction"),
    *_required(sa.Text, "evidence"),
    sa.PrimaryKeyConstraint("turn_id", "source"),
    sa.ForeignKeyConstraint(["turn_id"], ["turn.id"]),
)
sa.Table(
    "rewardterm",
    metadata,
    *_required(sa.Integer, "turn_id"),
    *_required(sa.String, "name"),
    *_required(sa.Float, "score", "weight"),
    sa.PrimaryKeyConstraint("turn_id", "name"),
    sa.ForeignKeyConstraint(["turn_id"], ["turn.id"]),
    sqlite_with_rowid=False,
)
