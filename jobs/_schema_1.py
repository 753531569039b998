"""The schema of version 1, as it was: never changed again, whatever becomes of `jobs.tables`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

_TYPES: dict[str, sa.types.TypeEngine] = {
    "int": sa.Integer(),
    "long": sa.BigInteger(),
    "float": sa.Float(),
    "bool": sa.Boolean(),
    "str": sa.String(),
    "text": sa.Text(),
    "json": sa.JSON(),
    "bytes": sa.LargeBinary(),
}


def columns(text: str) -> list[sa.Column]:
    """`name:type` of each column, with a question mark where it may be null."""
    made = []
    for word in text.split():
        name, _, kind = word.partition(":")
        made.append(sa.Column(name, _TYPES[kind.rstrip("?")], nullable=kind.endswith("?")))
    return made


def create(op: Operations) -> None:
    """All tables and the full-text index of dialogues (SQLite only)."""
    op.create_table(
        "chat",
        *columns("id:int title:str mode:str settings:json task:json? created:float changed:float"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_chat_changed", "chat", ["changed"])
    op.create_table(
        "joblog",
        *columns("id:int time:float job:str outcome:str detail:text"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_joblog_time", "joblog", ["time"])
    op.create_table(
        "run",
        *columns(
            "id:int name:str kind:str status:str detail:text config:text folder:str origin:str "
            "parent:int? environment:str model:str method:str seed:int device:str position:float "
            "created:float started:float? ended:float? pid:int? pid_started:float? sessions:int phase:str "
            "done:float total:float? eta:float? reward:float? tokens_per_second:float? heartbeat:float? "
            "version:int offset:long bad_lines:int"
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("folder"),
    )
    op.create_index("ix_run_created", "run", ["created"])
    op.create_index("ix_run_kind", "run", ["kind"])
    op.create_index("ix_run_name", "run", ["name"])
    op.create_index("ix_run_status_position", "run", ["status", "position"])
    op.create_table(
        "schedule",
        *columns(
            "id:int name:str trigger:str when:str timezone:str config:text enabled:bool created:float "
            "last_run:float? next_run:float?"
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_schedule_next_run", "schedule", ["next_run"])
    op.create_table(
        "setting",
        *columns("name:str value:str"),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "chatmessage",
        *columns("id:int chat_id:int parent:int? role:str speaker:str content:text status:str detail:json time:float"),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["chat_id"], ["chat.id"]),
    )
    op.create_index("ix_chatmessage_chat", "chatmessage", ["chat_id", "id"])
    op.create_table(
        "checkpoint",
        *columns("run_id:int name:str stage:str step:int path:str sha256:str time:float"),
        sa.PrimaryKeyConstraint("run_id", "name"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    )
    op.create_table(
        "leaklabel",
        *columns(
            "id:int run_id:int event:str turn:int labeller:str label:str start:int? end:int? note:text "
            "blind:bool time:float"
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
        sa.UniqueConstraint("run_id", "event", "turn", "labeller"),
    )
    op.create_index("ix_leaklabel_labeller_time", "leaklabel", ["labeller", "time"])
    op.create_table(
        "log",
        *columns("id:int run_id:int event:str time:float level:str text:text"),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
        sa.UniqueConstraint("run_id", "event"),
    )
    op.create_index("ix_log_run_id", "log", ["run_id"])
    op.create_table(
        "metric",
        *columns("run_id:int stage:str step:int number:int time:float tokens:float values:json"),
        sa.PrimaryKeyConstraint("run_id", "stage", "step"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    )
    op.create_table(
        "note",
        *columns("id:int run_id:int event:str? turn:int? author:str text:text time:float"),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    )
    op.create_index("ix_note_run_event", "note", ["run_id", "event"])
    op.create_table(
        "problem",
        *columns("id:int run_id:int task:str environment:str split:str level:str public:json privileged:json"),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
        sa.UniqueConstraint("run_id", "task"),
    )
    op.create_table(
        "stage",
        *columns("run_id:int index:int name:str method:str steps:int done:int started:float? ended:float?"),
        sa.PrimaryKeyConstraint("run_id", "index"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    )
    op.create_table(
        "tag",
        *columns("run_id:int tag:str"),
        sa.PrimaryKeyConstraint("run_id", "tag"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
    )
    op.create_index("ix_tag_tag", "tag", ["tag"])
    op.create_table(
        "dialogue",
        *columns(
            "id:int run_id:int event:str key:str problem_id:int environment:str level:str phase:str "
            "stage:str step:int checkpoint:str? control:str? group:str index:int stop:str error:str? "
            "policy:str seed:long solved_at:int? length:int outcomes:str reward:float advantage:float? "
            "leak:int labels:int time:float"
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"]),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"]),
        sa.UniqueConstraint("run_id", "event"),
    )
    op.create_index("ix_dialogue_environment", "dialogue", ["environment", "level", "id"])
    op.create_index("ix_dialogue_labels", "dialogue", ["labels", "id"])
    op.create_index("ix_dialogue_leak", "dialogue", ["leak", "id"])
    op.create_index("ix_dialogue_problem_id", "dialogue", ["problem_id"])
    op.create_index("ix_dialogue_run_group", "dialogue", ["run_id", "group"])
    op.create_index("ix_dialogue_run_labels", "dialogue", ["run_id", "labels", "id"])
    op.create_index("ix_dialogue_run_leak", "dialogue", ["run_id", "leak", "id"])
    op.create_index("ix_dialogue_run_level", "dialogue", ["run_id", "level", "id"])
    op.create_index("ix_dialogue_run_reward", "dialogue", ["run_id", "reward", "id"])
    op.create_index("ix_dialogue_run_solved", "dialogue", ["run_id", "solved_at", "id"])
    op.create_index("ix_dialogue_run_step", "dialogue", ["run_id", "step", "id"])
    op.create_table(
        "turn",
        *columns(
            "id:int dialogue_id:int index:int attempt:text stop:str correct:bool parsed:str? verdict:json "
            "reward:float advantage:float? hint:text? original:text? teacher:str? source_task:str? "
            "checked:bool leaked:bool tokens:bytes?"
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["dialogue_id"], ["dialogue.id"]),
        sa.UniqueConstraint("dialogue_id", "index"),
    )
    op.create_table(
        "leakfinding",
        *columns("turn_id:int source:str tier:str? start:int? end:int? share:float evidence:text action:str?"),
        sa.PrimaryKeyConstraint("turn_id", "source"),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"]),
    )
    op.create_table(
        "rewardterm",
        *columns("turn_id:int name:str score:float weight:float"),
        sa.PrimaryKeyConstraint("turn_id", "name"),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"]),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE dialogue_text USING fts5"
            "(problem, attempts, hints, tokenize = 'unicode61 remove_diacritics 2')"
        )
